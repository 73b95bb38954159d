"""`KernelGateway`, at the import path of programs for ipybox."""

from cellblock.fronts.kernel_mgr.server import KernelGateway

__all__ = ["KernelGateway"]
