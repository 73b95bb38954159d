"""Processes that are killed at a chosen point of their work: for tests of what the process after them finds."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from os import rename  # that of `os` may be counted
from typing import Any

NOT_KILLED = 7
"""How a process of a chain exits that was not killed at its point."""


def forked(run: Callable[[], object]) -> int:
    """Run something in a fork of this process, and return its id. It exits with 0 if that returns, and with 1 if it raises."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


class Fuse:
    """Kills this process before or after a call of one of some functions, once it is armed.

    Attributes:
        point: How many times these functions are entered and left before that; 0: it never comes to it.
        passed: How many times that has been so far.
        armed: Whether they are counted.
    """

    def __init__(self, point: int, *functions: tuple[Any, str]) -> None:
        """Replace functions, each given by the module or class that has it, and its name."""
        self.point = point
        self.passed = 0
        self.armed = False
        for owner, name in functions:
            setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*given: Any, **named: Any) -> Any:
            self._pass_by()
            try:
                return call(*given, **named)
            finally:
                self._pass_by()

        return wrapped

    def _pass_by(self) -> None:
        if self.armed:
            self.passed += 1
            if 0 < self.point <= self.passed:  # other threads pass by as well
                os.kill(os.getpid(), signal.SIGKILL)


class Chain:
    """Processes that run one after the other, each a fork of this one that is killed at a point of its own.

    Attributes:
        killed: How many were killed.
    """

    def __init__(self) -> None:
        self.killed = 0
        tempfile.gettempdir()  # writes a file to find out, which would be left by one that is killed at that moment

    def run(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> bool:
        """Run one; return whether it was killed. If it fails, this program ends and says `what` it was."""
        pid = forked(lambda: asyncio.run(work()))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.killed += 1
            return True
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, NOT_KILLED):
            sys.exit(f"{what}: it has found what it should not, or failed")
        return False


def note(path: str, what: object) -> None:
    """Note something for the next process of a chain."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(what, file)
    rename(f"{path}.new", path)


def noted(path: str) -> Any:
    """Return what the process before has noted; None if there was none."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)
