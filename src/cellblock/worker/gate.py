"""Keeps exceptions from signal handlers out of code that must not be interrupted.

A handler may raise: KeyboardInterrupt, or a TimeoutError for SIGALRM. The exception is meant for the user's code. In the
middle of a frame, of the event loop or of the end of a cell it would put the kernel out of sync with its host. Blocking the
signals does not prevent it: another thread, perhaps one of OpenBLAS, then takes the signal, and the main thread runs the
handler anyway. And a pending handler runs even after the signals were blocked. So every handler is wrapped:

- While the gate is shut, it waits. To shut it, write ``GATE.shut += 1`` just before a ``try:``, and ``GATE.open()`` in its
  ``finally:``. There must be no call in between: Python runs handlers only near calls. Main thread only.
- If only the loop and the worker are on the stack, and no cell, it runs, and its exception goes to `Gate.stray`.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from cellblock.worker.replaced import replace

_set_handler = signal.signal
_get_handler = signal.getsignal

_HERE = os.path.dirname(__file__) + os.sep
_MACHINERY = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__, _HERE)


class Gate:
    """A gate that delays signal handlers while `shut` is not zero.

    Attributes:
        shut: Number of code blocks that keep it shut.
        stray: Takes an exception from a handler that ran while no user code was running.
    """

    __slots__ = ("_late", "shut", "stray")

    def __init__(self) -> None:
        self.shut = 0
        self.stray: Callable[[BaseException], None] | None = None
        self._late: list[int] = []

    def open(self) -> None:
        """Revert one ``shut += 1``. Delayed handlers run now, and may raise."""
        self.shut -= 1
        while self._late and not self.shut:
            signal.raise_signal(self._late.pop(0))  # if it raises, the others run the next time the gate is opened

    @property
    def waited_for(self) -> bool:
        """Whether handlers run when the gate is opened."""
        return bool(self._late)

    def forget(self) -> None:
        """Drop the signals that have arrived while the gate is shut."""
        self._late = []

    def reset(self) -> None:
        """Open the gate in a child that was forked while it was shut."""
        self.shut = 0
        self._late = []

    def install(self, stray: Callable[[BaseException], None]) -> None:
        """Wrap every handler that is set from now on. Code sees only its own handlers."""
        self.stray = stray
        replace(signal, "signal", _signal)
        replace(signal, "getsignal", _getsignal)

    def keep_for_later(self, number: int) -> None:
        """Record a signal that arrived while the gate was shut."""
        if number not in self._late:
            self._late.append(number)


GATE = Gate()


class _Gated:
    """A handler that waits at the gate."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if GATE.shut:
            GATE.keep_for_later(number)
        elif GATE.stray is None or not _in_machinery(frame):
            self.handler(number, frame)
        else:
            try:
                self.handler(number, frame)
            except BaseException as error:  # usually KeyboardInterrupt
                GATE.stray(error)


def _in_machinery(frame: FrameType | None) -> bool:
    """Return whether only code of the loop and the worker is on the stack, up to `Worker.run`."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_MACHINERY) or code.co_qualname == "Shell.run":
            return False
        if code.co_qualname == "Worker.run":
            return True
        frame = frame.f_back
    return False


def _signal(signalnum: int, handler: Any, /) -> Any:
    return _unwrapped(_set_handler(signalnum, _Gated(handler) if callable(handler) else handler))


def _getsignal(signalnum: int, /) -> Any:
    return _unwrapped(_get_handler(signalnum))


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Gated) else handler
