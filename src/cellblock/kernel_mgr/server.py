"""`KernelGateway`, where programs for ipybox import it from."""

from cellblock.fronts.kernel_mgr.server import KernelGateway

__all__ = ["KernelGateway"]
