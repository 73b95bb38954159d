"""Objects that a process creates once for all its threads: a loop, a connection, its own sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, ParamSpec, Protocol, TypeVar


class _Usable(Protocol):
    @property
    def usable(self) -> bool: ...


_P = ParamSpec("_P")
_UsableT = TypeVar("_UsableT", bound=_Usable)


class PerProcess(Generic[_P, _UsableT]):
    """A factory with a cache: it creates an object on first use, and again once that is unusable, or after a fork.

    The parent's object is kept in a child process: a collected loop would remove its descriptors from the epoll that both
    processes share.
    """

    def __init__(self, make: Callable[_P, _UsableT]) -> None:
        """Start with an empty cache.

        Args:
            make: Creates an object from hashable arguments; there is one for each.
        """
        self._make = make
        self._made: dict[tuple[Hashable, ...], _UsableT] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _UsableT:
        """Return this process's object."""
        key = os.getpid(), *args, *kwargs.items()
        with self._lock:
            found = self._made.get(key)
            if found is None or not found.usable:
                found = self._made[key] = self._make(*args, **kwargs)
            return found

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
