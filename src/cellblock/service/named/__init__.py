"""Named sessions, their executions, and pending approvals: the daemon's state."""
