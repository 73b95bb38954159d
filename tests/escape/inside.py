"""The first cell of every attacked session: ways to try things, and to say what the system answered."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)


def answer(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns, or the name of the error that it meets."""
    try:
        return action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def call(number: int, *arguments: Any) -> Any:
    """Make a system call; return what it returns, or the name of its error."""
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = libc.syscall(ctypes.c_long(number), *converted)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result


def end(action: Callable[[], Any]) -> str:
    """Do something in a child; return the signal that ends it, or ``lives``."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "lives"


def read(path: str) -> Any:
    """Return what is in a file, or the name of the error."""

    def action() -> str:
        with open(path, errors="replace") as file:
            return file.read(100_000)

    return answer(action)


def write(path: str, content: str = "planted") -> Any:
    """Write a file; return the name of the error if there is one."""

    def action() -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(content)

    return answer(action)
