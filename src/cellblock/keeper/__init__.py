"""The process above an MCP server: ends the server, and all that it has started, when the host is gone."""
