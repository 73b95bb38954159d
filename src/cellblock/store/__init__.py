"""What is kept on disk, in SQLite, on the trusted side."""
