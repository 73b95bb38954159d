"""A session's kernels and the cells that they run: requests, output and stopping."""
