"""The process above an MCP server: ends the server and all of its processes when the host is gone."""
