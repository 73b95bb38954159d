"""`KernelGateway` and `KernelClient`, under ipybox's names."""
