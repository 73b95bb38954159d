"""What a process makes once, for all its threads: a loop, a connection, sessions of its own."""

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
    """Makes something when it is first asked for, and anew when that is not usable any more, or after a fork.

    What the process before a fork has made is kept: a loop that is collected would take its descriptors out of the epoll that
    both processes share.
    """

    def __init__(self, make: Callable[_P, _UsableT]) -> None:
        """Begin with nothing made.

        Args:
            make: Makes it, of arguments that can be hashed: there is one for each.
        """
        self._make = make
        self._made: dict[tuple[Hashable, ...], _UsableT] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _UsableT:
        """Return this process's."""
        key = os.getpid(), *args, *kwargs.items()
        with self._lock:
            found = self._made.get(key)
            if found is None or not found.usable:
                found = self._made[key] = self._make(*args, **kwargs)
            return found

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
