"""MCP tools from code: typed APIs, the servers behind them, and who decides whether a call is made."""
