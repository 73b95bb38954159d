"""The daemon as a cluster node: a second listener with TLS for clients on other machines.

Both sides prove that they belong to the cluster before either reads daemon protocol bytes. Each side has the cluster's
certificate and key, and trusts no other certificate.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
from dataclasses import dataclass
from pathlib import Path

from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.lease import Lease
from cellblock.service.daemon.tls import tls

_HANDSHAKE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """How a daemon serves a cluster.

    Attributes:
        descriptor: The listening socket, which outlives the daemon.
        credentials: A file with the cluster's certificate and key.
        lease: The file of the lease.
        mark: The suffix of the sessions' ids.
        workspaces: The parent directory of session workspaces.
    """

    descriptor: int
    credentials: str
    lease: str
    mark: str
    workspaces: str

    @classmethod
    def from_json(cls, text: str) -> Remote:
        """Parse the settings, an argument of the daemon."""
        return cls(**json.loads(text))

    async def serve(self, server: Server, lease: Lease) -> asyncio.Server:
        """Listen. The socket stays open for the next daemon."""
        sock = socket.socket(fileno=self.descriptor)
        context = tls(Path(self.credentials), server=True)
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            functools.partial(Client, server, lease), sock=sock, ssl=context, ssl_handshake_timeout=_HANDSHAKE, backlog=1024
        )
