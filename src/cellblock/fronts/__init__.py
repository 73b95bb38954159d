"""What users see: executors, functions, clients, the gateway, Jupyter, MCP, the command line."""
