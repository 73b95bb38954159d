"""Sessions with names, and the daemon that keeps them."""
