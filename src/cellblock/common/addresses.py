"""Listening addresses of servers, and connections to them."""

from __future__ import annotations

import asyncio
import errno
import socket

from cellblock.errors import InvalidInputError


def bracketed(host: str) -> str:
    """Return a host in URL syntax: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int, what: str) -> socket.socket:
    """Open a listener.

    Args:
        host: The address, or a name.
        port: The port; 0 for any free one.
        what: The name of the listening program, for the error message.

    Raises:
        InvalidInputError: The address cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server(address, family=family, backlog=1024)
        # asyncio disables Nagle's algorithm only for this protocol number. Otherwise small messages wait for 40 ms.
        return socket.socket(made.family, made.type, socket.IPPROTO_TCP, fileno=made.detach())
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "another program listens there: choose another port" if taken else error
        raise InvalidInputError(f"{what} cannot listen at {host}:{port}: {why}") from error


async def connect(address: str, port: int, seconds: float | None = None) -> socket.socket:
    """Connect to a server, without a lookup, for asyncio.

    Args:
        address: Its IP address.
        port: Its port.
        seconds: Time limit in seconds; None if the caller has one.

    Raises:
        OSError: It cannot be reached; `TimeoutError` if it does not answer in time.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:  # includes cancellation: nothing else closes it
        sock.close()
        raise
    return sock
