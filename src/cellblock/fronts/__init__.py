"""The public interfaces: executors, functions, clients, the gateway, Jupyter, MCP, the command line."""
