"""Holds the descriptors of kernels, so that kernels survive the process that uses them."""
