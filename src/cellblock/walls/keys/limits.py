"""Limits that a host and its turnkeys share."""

MESSAGE = 128 * 1024
"""The largest message between a host and a turnkey, in bytes."""
