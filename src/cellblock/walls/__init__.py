"""What contains code: the sandbox, what Linux offers for it, the way out to the network, and where packages come from."""
