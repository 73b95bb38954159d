"""KernelBox, through its four functions. It does not stream."""

from __future__ import annotations

import itertools
import os
import tempfile

# Its registry of kernels is a file that all processes of a user share by default.
os.environ["KERNELBOX_HOME"] = tempfile.mkdtemp(dir=".")

from kernelbox import destroy, execute, get_or_create  # type: ignore[import-not-found]

from bench.systems import Kernel, System

_COLD = """
from kernelbox import destroy, execute, get_or_create
kernel = get_or_create("cold")
print(execute(kernel, "6 * 7").return_value)
destroy("cold")
"""


class _Kernel:
    def __init__(self, name: str) -> None:
        self._name = name
        self._kernel = get_or_create(name)

    async def execute(self, code: str, timeout: float | None = None) -> str:
        result = execute(self._kernel, code, timeout=timeout)
        return (result.output or result.return_value or "").strip("\n")

    async def stream(self, code: str) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        destroy(self._name)


class _KernelBox(System):
    cold = _COLD
    module = "kernelbox"

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def kernel(self, isolate: str = "none") -> Kernel:
        return _Kernel(f"bench-{next(self._numbers)}")


SYSTEM = _KernelBox()
