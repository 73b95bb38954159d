"""Holds the descriptors of kernels, so that kernels outlive the process that uses them."""
