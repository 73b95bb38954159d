"""`KernelClient` and its results, at the import path of programs for ipybox."""

from cellblock.fronts.kernel_mgr.client import ExecutionError, ExecutionResult, KernelClient

__all__ = ["ExecutionError", "ExecutionResult", "KernelClient"]
