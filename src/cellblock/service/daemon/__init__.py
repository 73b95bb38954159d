"""The daemon: one user's sessions behind a Unix socket, for short-lived clients."""
