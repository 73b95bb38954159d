"""The MCP server: sessions as tools for agents."""
