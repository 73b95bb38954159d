"""Environments: read-only directories of unpacked wheels, which all sessions of a user share."""
