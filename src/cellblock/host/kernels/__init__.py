"""A session's kernels and cells: requests, output and stopping."""
