"""Makes processes of `multiprocessing` print whole lines, so that their lines do not mix.

The environment has ``PYTHONUNBUFFERED``, for programs whose output should appear at once. But Python then writes each argument
of `print` separately. There are usually many processes of `multiprocessing`; they write their output when they end.
"""

from __future__ import annotations

import os
from typing import Any

from cellblock.worker.on_import import on_import

_VARIABLE = "PYTHONUNBUFFERED"


def install() -> None:
    """Make `multiprocessing` start processes without that variable."""
    on_import("multiprocessing.util", _change)


def _change(module: Any) -> None:
    start = module.spawnv_passfds

    def spawnv_passfds(path: bytes, args: list[bytes], passfds: list[int]) -> int:
        kept = os.environ.pop(_VARIABLE, None)
        try:
            number: int = start(path, args, passfds)
            return number
        finally:
            if kept is not None:
                os.environ[_VARIABLE] = kept

    module.spawnv_passfds = spawnv_passfds
