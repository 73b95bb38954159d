"""MCP tools from code: what may be called, who decides, and the ways from a session to an MCP server and back.

Nothing is imported here: `runner` is used inside sessions, and must not bring the rest with it.
"""
