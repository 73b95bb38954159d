"""MCP tools: what servers there are, how they are spoken to, and what their tools return. The trusted side of it."""
