"""Explains failed connections in a session without a network, or with a proxy only."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from cellblock.worker.replaced import replace

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)


def explain_failures(why: str) -> None:
    """Make Python's own functions for names and connections explain why they fail.

    Args:
        why: The text to add to the message.
    """
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
        replace(socket, name, _explaining(getattr(socket, name), why))
    connect = socket.socket.connect

    def explain(self: socket.socket, address: Any, /) -> None:
        try:
            connect(self, address)
        except OSError as error:
            if error.errno not in _UNREACHABLE:
                raise
            raise OSError(error.errno, f"{error.strerror} ({why})") from None

    replace(socket.socket, "connect", explain)


def _explaining(original: Callable[..., Any], why: str) -> Callable[..., Any]:
    def lookup(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except socket.gaierror as error:
            raise socket.gaierror(error.errno, f"{error.strerror} ({why})") from None

    return lookup
