"""Finds and calls tools from code in a session. Standard library only."""
