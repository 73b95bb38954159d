"""Starting kernels: their specification, and the processes that make them."""
