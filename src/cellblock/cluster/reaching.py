"""Connects to the hosts of a cluster: authentication of both sides, and detection of a host's end."""

from __future__ import annotations

import socket
import ssl
import tempfile
from pathlib import Path

from cellblock.cluster.routing import Where
from cellblock.common import addresses
from cellblock.errors import DaemonError
from cellblock.service.daemon.tls import tls

_CONNECT = 3.0
"""Seconds in which a connection to a node is made."""


class EndedError(DaemonError):
    """A host has ended: its port is open as long as it lives."""


def has_ended(error: BaseException | None) -> bool:
    """Return whether an error comes from a host that has ended."""
    while error is not None and not isinstance(error, EndedError):
        error = error.__cause__
    return error is not None


async def connect(where: Where) -> socket.socket:
    """Connect to a host.

    Raises:
        DaemonError: The host cannot be reached.
    """
    try:
        return await addresses.connect(where.address, where.port, _CONNECT)
    except ConnectionRefusedError as error:
        raise EndedError(f"node {where.node} has ended: nothing listens at {where.address}:{where.port}") from error
    except OSError as error:
        raise DaemonError(f"node {where.node} cannot be reached: {error.strerror or 'it does not answer'}") from error


def context_of(credentials: str) -> ssl.SSLContext:
    """Return the client's TLS settings. OpenSSL reads the certificate only from a file."""
    with tempfile.NamedTemporaryFile(prefix="cellblock-", suffix=".pem") as file:
        file.write(credentials.encode())
        file.flush()
        return tls(Path(file.name), server=False)
