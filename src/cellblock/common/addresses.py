"""Addresses at which servers of a front listen."""

from __future__ import annotations

import errno
import socket

from cellblock.errors import InvalidInputError


def bracketed(host: str) -> str:
    """Return a host as URLs have it: addresses of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int, what: str) -> socket.socket:
    """Listen at an address.

    Args:
        host: The address, or a name.
        port: The port; 0 for any that is free.
        what: What listens, for the error.

    Raises:
        InvalidInputError: It cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server(address, family=family, backlog=1024)
        # asyncio turns off Nagle's algorithm only for this protocol number; with it, small messages wait for 40 ms.
        return socket.socket(made.family, made.type, socket.IPPROTO_TCP, fileno=made.detach())
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "another program listens there (--port 0 takes a free port)" if taken else error
        raise InvalidInputError(f"{what} cannot listen at {host}:{port}: {why}") from error
