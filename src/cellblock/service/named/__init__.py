"""Sessions with names, their executions, and what waits for a decision: what the daemon keeps."""
