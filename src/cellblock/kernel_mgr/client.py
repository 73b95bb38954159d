"""`KernelClient` and what it returns, where programs for ipybox import it from."""

from cellblock.fronts.kernel_mgr.client import ExecutionError, ExecutionResult, KernelClient

__all__ = ["ExecutionError", "ExecutionResult", "KernelClient"]
