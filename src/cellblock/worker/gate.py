"""Keeps Python's signal handlers out of what must not be cut in two: frames, the queue of text, the end of a cell.

A handler may raise: KeyboardInterrupt, or the TimeoutError of somebody's SIGALRM. Blocking the signals does not keep it out:
another thread, one of OpenBLAS perhaps, then takes the signal and the main thread runs the handler all the same, and a
handler that is due already runs just after they were blocked. So every handler is wrapped, and waits while the gate is shut.

To shut the gate, say ``GATE.shut += 1`` just before a ``try:``, and ``GATE.open()`` in its ``finally:``. There must be no
call between: between these two, and nowhere near a call, no handler runs. Only the main thread may (handlers run only there).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

_set_handler = signal.signal
_get_handler = signal.getsignal


class Gate:
    """Shut while `shut` is not zero.

    Attributes:
        shut: How many blocks of code want it shut.
    """

    __slots__ = ("_late", "shut")

    def __init__(self) -> None:
        self.shut = 0
        self._late: list[int] = []

    def open(self) -> None:
        """Undo one ``shut += 1``; the handlers that came too early run now, and may raise."""
        self.shut -= 1
        while self._late and not self.shut:
            signal.raise_signal(self._late.pop(0))  # where it raises, the others run when the gate is next opened

    def reset(self) -> None:
        """In a child that was forked while the gate was shut: open it."""
        self.shut = 0
        self._late = []

    def install(self) -> None:
        """Wrap every handler that is set from now on. Code sees its own handlers only."""
        signal.signal = _signal  # type: ignore[assignment]  # the real one has a signature that depends on the platform
        signal.getsignal = _getsignal  # type: ignore[assignment]

    def keep_for_later(self, number: int) -> None:
        """Take note of a signal that came while the gate was shut."""
        if number not in self._late:
            self._late.append(number)


GATE = Gate()


class _Gated:
    """A handler that waits at the gate."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        if GATE.shut:
            GATE.keep_for_later(number)
        else:
            self.handler(number, frame)


def _signal(signalnum: int, handler: Any, /) -> Any:
    return _unwrapped(_set_handler(signalnum, _Gated(handler) if callable(handler) else handler))


def _getsignal(signalnum: int, /) -> Any:
    return _unwrapped(_get_handler(signalnum))


_signal.__doc__, _getsignal.__doc__ = _set_handler.__doc__, _get_handler.__doc__


def _unwrapped(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Gated) else handler
