"""The extras of the package, and the error that names a missing one."""

from __future__ import annotations

import importlib.util

from cellblock.errors import UnsupportedError

MODULES = {
    "client": ("httpx2", "websockets"),
    "jupyter": ("zmq",),
    "keys": ("cryptography",),
    "mcp": ("anyio", "httpx2", "mcp", "websockets"),
    "ray": ("cryptography", "ray"),
    "serve": ("fastapi", "fastapi_offline", "httpx2", "python_multipart", "starlette", "uvicorn", "websockets"),
}
"""Extra → the modules that it brings and cellblock imports."""


def require_extra(extra: str, features: str) -> None:
    """Check that the modules of an extra are installed, without importing them.

    Args:
        extra: The extra's name in `pyproject.toml`.
        features: What needs it, in the plural.

    Raises:
        UnsupportedError: A module is missing.
    """
    if not all(_is_installed(module) for module in MODULES[extra]):
        raise missing_extra(extra, features)


def missing_extra(extra: str, features: str) -> UnsupportedError:
    """Return the error for a missing extra."""
    return UnsupportedError(f"{features} need an extra: pip install 'cellblock[{extra}]'")


def _is_installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # a directory with the module's name has no origin
