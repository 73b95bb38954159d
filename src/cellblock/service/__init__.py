"""Named sessions, and the daemon that runs them."""
