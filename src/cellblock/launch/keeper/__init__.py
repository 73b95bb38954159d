"""The parent process of an MCP server: ends the server and all of its processes when the host has ended."""
