"""Starts and connects to MCP servers, calls their tools within limits, and ends them."""
