"""A machine that has no room for another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def no_room() -> Iterator[None]:
    """Let this process start no thread: a stack that no address space can hold is no room."""
    before = threading.stack_size(2**47)
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(before)
