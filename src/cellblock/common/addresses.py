"""Addresses at which servers listen, and connections to them."""

from __future__ import annotations

import asyncio
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
        what: The name of the listening program, for the error message.

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


async def connect(address: str, port: int, seconds: float) -> socket.socket:
    """Return a connection to a server, for asyncio.

    Args:
        address: Its IP address.
        port: Its port.
        seconds: In which it has to answer.

    Raises:
        OSError: It cannot be reached; `TimeoutError` if it does not answer in time.
    """
    # asyncio turns off Nagle's algorithm only for this protocol number.
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:  # also a cancellation: nobody else closes it
        sock.close()
        raise
    return sock
