"""A session's kernels and the cells that they run: asking, listening and stopping."""
