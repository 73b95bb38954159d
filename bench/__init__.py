"""The comparison with the peers: `make bench`."""
