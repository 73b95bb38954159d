"""One behavioural suite for every way to run a kernel."""
