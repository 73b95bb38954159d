"""Processes that are killed at a chosen point of their work: for tests of what the process after them finds."""

from __future__ import annotations

import functools
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any


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
