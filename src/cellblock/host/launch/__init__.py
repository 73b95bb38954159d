"""Starting kernels: what a kernel is to be, and the processes that make it."""
