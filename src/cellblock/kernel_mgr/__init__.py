"""The names of ipybox: `cellblock.kernel_mgr.client` and `cellblock.kernel_mgr.server`, as programs for ipybox import them."""
