"""State that outlives a program: SQLite files in one directory on the trusted side, outside every workspace."""
