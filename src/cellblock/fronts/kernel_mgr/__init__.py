"""`KernelGateway` and `KernelClient`, under the names by which ipybox has them."""
