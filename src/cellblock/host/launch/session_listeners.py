"""The listeners that a session's sandboxes open for its services: tools and the proxy."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Serve: TypeAlias = Callable[[socket.socket], Callable[[], None]]
"""Takes ownership of a listener, serves on it, and returns a function that closes it and its connections."""

Hold: TypeAlias = Callable[[int, str, socket.socket], Callable[[], None]]
"""Preserves a listener for the next host: takes its sandbox, its name and itself, and returns what ends that."""


@dataclass(frozen=True)
class _Served:
    """A listener that is served.

    Attributes:
        port: Its port, in the sandbox.
        stop: Closes it and its connections.
        release: Stops preserving it for the next host.
    """

    port: int
    stop: Callable[[], None]
    release: Callable[[], None]


class SessionListeners:
    """The listeners of the sandbox of a session's kernel, and of the sandbox of a kernel that may replace it.

    Both are served until it is decided which kernel is the session's. Sandboxes have the number of their first kernel.
    """

    def __init__(self, services: Mapping[str, Serve], hold: Hold) -> None:
        """Start without listeners.

        Args:
            services: What serves on them, by name.
            hold: Preserves them for the next host, if the session should outlive this one.
        """
        self._services = services
        self._hold = hold
        self._current = 0
        self._served: dict[int, dict[str, _Served]] = {}

    def take(self, sandbox: int, name: str, listener: socket.socket) -> None:
        """Serve on a listener that a sandbox has opened."""
        served = self._served.setdefault(sandbox, {})
        if name in served:
            listener.close()
            return
        release = self._hold(sandbox, name, listener)
        if name not in self._services:  # a session whose last secret was removed may no longer have a network
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            release()
            return
        served[name] = _Served(listener.getsockname()[1], self._services[name](listener), release)

    def ports(self, sandbox: int) -> dict[str, int]:
        """Return the ports in a sandbox, by name; empty if it has no listeners of the session."""
        return {name: one.port for name, one in self._served.get(sandbox, {}).items()}

    def settle(self, sandbox: int | None = None) -> None:
        """Close the listeners of all other sandboxes.

        Args:
            sandbox: The sandbox of the session's kernel from now on; by default, the last one.
        """
        self._current = self._current if sandbox is None else sandbox
        for other in [one for one in self._served if one != self._current]:
            for served in self._served.pop(other).values():
                served.release()
                served.stop()

    def release(self) -> None:
        """Stop preserving all listeners for the next host, because the session is closed."""
        for served in self._served.values():
            for one in served.values():
                one.release()
