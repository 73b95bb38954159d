"""Typed Python APIs for the tools of MCP servers: schemas become modules."""
