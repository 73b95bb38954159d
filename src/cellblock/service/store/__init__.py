"""Persistent state: SQLite files in one directory on the trusted side, outside every workspace."""
