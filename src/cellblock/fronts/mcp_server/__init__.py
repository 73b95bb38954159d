"""cellblock as an MCP server: sessions as tools, for agents that speak MCP."""
