"""What outlives a program: SQLite files in one directory of the trusted side, outside every workspace."""
