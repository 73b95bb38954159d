"""Search and calls of tools from code in a session. Standard library only."""
