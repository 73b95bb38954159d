"""Isolation: the sandbox, the Linux features that it uses, egress, and package sources."""
