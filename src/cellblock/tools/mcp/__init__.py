"""How an MCP server is reached: started or connected to, asked, bounded and ended."""
