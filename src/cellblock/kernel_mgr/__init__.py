"""ipybox's import paths: `cellblock.kernel_mgr.client` and `cellblock.kernel_mgr.server`."""
