"""Runs hooks of the code in a copy of a worker, and interrupts those that wait for another process.

The other processes of the session stay with the original: during an undo they are stopped, and then end. A hook of
`os.register_at_fork` that waits for one of them would wait until the copy counts as lost.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_signals: Any = importlib.import_module("_signal")
"""What `signal` is made of. In a worker, `signal.signal` delays handlers until no code of cellblock runs (`gate`). It also
looks for members of enumerations, and each page that it writes to is copied in a new kernel."""
_SIGALRM, _UNBLOCK, _BLOCK, _IGNORE, _DEFAULT, _TIMER = map(
    int, (signal.SIGALRM, signal.SIG_UNBLOCK, signal.SIG_BLOCK, signal.SIG_IGN, signal.SIG_DFL, signal.ITIMER_REAL)
)

_TICK = 0.01
_BUSY = 0.003
"""Seconds between two looks, and the processor time between them from which on a hook is at work."""

_PATIENCE, _LITTLE_PATIENCE = 10, 2
"""How many looks in a row a hook may wait; the second after one was interrupted."""

_MOST = 100
"""Maximum number of interruptions: a hook that catches all of them would never end."""


class InterruptedHookError(BaseException):
    """A hook waits for another process. It is no `Exception`, which hooks tend to catch."""


class _Watch:
    """Interrupts this process when it waits for too long."""

    def __init__(self) -> None:
        self.interrupted = 0
        self._waited = 0
        self._work, self._waits = 0.0, 0

    def look(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the hook if it has waited for too long. A busy machine causes no voluntary waits."""
        work, waits = _usage()
        idle = waits > self._waits and work - self._work < _BUSY
        self._work, self._waits = work, waits
        self._waited = self._waited + 1 if idle else 0
        if self._waited >= (_LITTLE_PATIENCE if self.interrupted else _PATIENCE):
            self._waited = 0
            self.interrupted += 1
            if self.interrupted > _MOST:
                os._exit(1)
            raise InterruptedHookError("it waits for a process that was not copied")


def _usage() -> tuple[float, int]:
    """Return the CPU time of this process, and its number of voluntary waits."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.process_time(), usage.ru_nvcsw


_forking = False
"""Whether `run` is about to call the first of Python's hooks in a copy."""


def _begin_watching() -> None:
    """Start to interrupt this process periodically, as the first hook: no signal may arrive before Python is ready for it."""
    if _forking:
        _signals.setitimer(_TIMER, _TICK, _TICK)


os.register_at_fork(after_in_child=_begin_watching)


def run(hooks: Callable[[], object], *, forking: bool = False) -> list[str]:
    """Run hooks, and interrupt those that wait for another process.

    Args:
        hooks: Runs them. Python reports their exceptions, and continues with the next one.
        forking: Whether it first makes the interpreter ready after a fork (`PyOS_AfterFork_Child`).

    Returns:
        The names of the interrupted ones.
    """
    global _forking
    names: list[str] = []
    before, watch = sys.unraisablehook, _Watch()

    def report(failure: Any) -> None:
        if isinstance(failure.exc_value, InterruptedHookError):
            names.append(_interrupted(failure))
        else:
            before(failure)

    sys.unraisablehook = report
    handler = _signals.signal(_SIGALRM, watch.look)
    blocked = _SIGALRM in _signals.pthread_sigmask(_UNBLOCK, (_SIGALRM,))
    try:
        try:
            _forking = forking
            if not forking:
                _signals.setitimer(_TIMER, _TICK, _TICK)
            hooks()
        finally:
            _forking = False
            _signals.setitimer(_TIMER, 0)
            _signals.signal(_SIGALRM, _IGNORE)  # drops a signal that is still pending
            if blocked:
                _signals.pthread_sigmask(_BLOCK, (_SIGALRM,))
            _signals.signal(_SIGALRM, _DEFAULT if handler is None else handler)
            sys.unraisablehook = before
    except InterruptedHookError:  # after the last hook
        pass
    return names


def _interrupted(failure: Any) -> str:
    """Return the name of an interrupted hook. Python 3.14 gives no object, but frames."""
    if failure.object is not None:
        return name_of(failure.object)
    outermost = failure.exc_traceback.tb_frame.f_code if failure.exc_traceback else _Watch.look.__code__
    return "of a C function" if outermost is _Watch.look.__code__ else str(outermost.co_qualname)[:100]


def name_of(hook: object) -> str:
    """Return the name of a function, for messages."""
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return str(name)[:100]


def sentence(names: list[str]) -> str | None:
    """Return, for the user, which hooks were interrupted, or None."""
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"The hook {names[0]}{more} (os.register_at_fork, multiprocessing) was interrupted: it waited for a "
        "process that was not copied."
    )
