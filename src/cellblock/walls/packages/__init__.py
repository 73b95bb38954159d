"""Serves the host's package index to pip in a session, and limits the size of packages."""
