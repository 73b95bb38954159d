"""`CodeExecutor`, and `SyncCodeExecutor`."""
