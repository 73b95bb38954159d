"""Neither code in a session nor a stranger reaches Ray or the nodes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from cellblock.cluster import RayHosts
from cellblock.cluster.credentials import make_credentials
from cellblock.common.version import __version__
from cellblock.errors import DaemonError, NotRunError
from cellblock.operations.base import PROTOCOL
from cellblock.operations.sessions import Census, Create, Hello
from cellblock.service.daemon.async_connection import AsyncConnection
from cellblock.service.daemon.codec import encode_request
from cluster.nodes import Nodes, ready

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.sampled(1), pytest.mark.timeout(600)]

REACH = """
import socket
reached = []
for address in {addresses!r}:
    try:
        socket.create_connection(address, 1).close()
        reached.append(address)
    except OSError as error:
        pass
reached
"""
SOCKETS = """
import os, socket
found = []
for top in ('/tmp', '/var/tmp', '/dev/shm', '/run'):
    for place, _, names in os.walk(top):
        paths = [os.path.join(place, name) for name in names if '/ray' in place or 'plasma' in name or 'nodes' in place]
        found += [path for path in paths if '/site-packages/' not in path]
[path for path in found if os.getcwd() not in path]
"""


def listening() -> list[tuple[str, int]]:
    """Return all addresses at which something listens on this machine: Ray's parts, the nodes, and more."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            found.add(int(fields[1].rpartition(":")[2], 16))
    return [(host, port) for port in sorted(found) for host in ("127.0.0.1", socket.gethostbyname(socket.gethostname()))]


@pytest.mark.parametrize("allowed", [(), ("example.org",), ("*",)])
async def test_code_reaches_nothing_that_listens(hosts: RayHosts, nodes: Nodes, allowed: tuple[str, ...]) -> None:
    addresses = listening()
    host, _, port = nodes.address.partition(":")
    assert int(port) in [port for _, port in addresses]
    addresses.append((host, int(port)))
    options: dict[str, Any] = {"allow_hosts": list(allowed)} if allowed else {}
    async with hosts.session(**options) as session:
        result = await session.execute(REACH.format(addresses=addresses), timeout=300)
        assert result.text == "[]"
        assert (await session.execute(SOCKETS)).text == "[]"


async def test_code_sees_no_credentials(hosts: RayHosts) -> None:
    node = (await ready(hosts, 3))[0]
    async with hosts.session() as session:
        directory = node["processes"]["directory"]
        # On this node, the directory itself is there, above the session's own, with nothing else in it.
        code = f"import os; [os.path.exists({directory!r} + name) for name in ('/credentials.pem', '/state', '/lease')]"
        assert (await session.execute(code)).text == "[False, False, False]"


async def test_strangers_get_no_byte(hosts: RayHosts) -> None:
    """Without a certificate, with another cluster's, and without TLS at all."""
    from cellblock.cluster.reaching import context_of

    node = (await ready(hosts, 3))[0]
    host, _, port = node["address"].rpartition(":")
    plain = ssl.create_default_context()
    plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
    other = context_of(make_credentials())
    for context in (plain, other):
        sock = socket.create_connection((host, int(port)))
        with pytest.raises((DaemonError, NotRunError)):
            await AsyncConnection.open(sock, __version__, context)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_request(1, Hello(PROTOCOL, __version__)))
    assert b"reply" not in await asyncio.wait_for(reader.read(), 30)
    writer.close()
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE  # a client that trusts anybody
    sock = socket.create_connection((host, int(port)))
    with pytest.raises((DaemonError, NotRunError)):
        await AsyncConnection.open(sock, __version__, other)


async def test_sessions_are_made_by_placements_alone(hosts: RayHosts) -> None:
    from cellblock.cluster.reaching import context_of

    node = (await ready(hosts, 3))[0]
    host, _, port = node["address"].rpartition(":")
    sock = socket.create_connection((host, int(port)))
    connection = await AsyncConnection.open(sock, __version__, context_of(hosts.link.director.credentials))
    for grant in ("", "99:99999999999999999999", "x"):
        with pytest.raises(DaemonError, match="placement"):
            await connection.call(Create("smuggled", grant=grant))
    assert "smuggled" not in (await connection.call(Census()))["names"]
    await connection.close()
