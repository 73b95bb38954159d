"""Launch of kernels: their specification, and the processes that start them."""
