"""Servers that sessions share: who may name which, who uses which, and when they are stopped. With real servers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock.tools.mcp.lease import Lease, SharedServers
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.registry.servers import ServerRegistry
from processes import alive
from tool_sessions import servers_below

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parents[2] / "servers" / "hostile_server.py"
ROOTS = {"a": "/one", "b": "/one", "elsewhere": "/two"}


def lookup(root: str, name: str) -> StdioServer:
    return StdioServer(sys.executable, (str(SERVER), "good"), {"ROOT": root, "NAME": name})


@pytest.fixture
def shared() -> SharedServers:
    """Servers of one host."""
    return SharedServers(lookup, connect_timeout=20)


@pytest.fixture
async def leases(nothing_left_behind: None, shared: SharedServers) -> AsyncIterator[tuple[Lease, Lease]]:
    """Two sessions' parts in them, which know the same servers."""
    first, second = Lease(shared, ROOTS.get), Lease(shared, ROOTS.get)
    yield first, second
    await first.close()
    await second.close()


async def call(lease: Lease, server: str, tool: str) -> str:
    caller = lease.caller(server)
    assert caller is not None
    return (await caller(tool, {})).text


async def pid(lease: Lease, server: str) -> int:
    return int(await call(lease, server, "pid"))


async def test_a_server_is_one_process_for_all_and_stops_with_its_last_user(leases: tuple[Lease, Lease]) -> None:
    first, second = leases
    shared = await pid(first, "a")
    assert await pid(second, "a") == shared
    await first.reset()
    assert alive(shared)
    await second.reset()
    assert not alive(shared)
    assert await pid(first, "a") != shared, "it starts again with the next call"


async def test_a_reset_leaves_what_others_use_and_what_one_has_not_used(leases: tuple[Lease, Lease]) -> None:
    first, second = leases
    mine, others = await pid(first, "a"), await pid(second, "b")
    await first.reset()
    await first.reset()  # it has nothing any more
    assert (alive(mine), alive(others)) == (False, True)


async def test_servers_of_one_name_and_different_roots_are_different_ones(shared: SharedServers) -> None:
    first, second = Lease(shared, {"a": "/one"}.get), Lease(shared, {"a": "/two"}.get)
    try:
        assert '"ROOT": "/one"' in await call(first, "a", "env")
        assert '"ROOT": "/two"' in await call(second, "a", "env")
        assert len(servers_below(os.getpid())) == 2
        await first.close()
        assert len(servers_below(os.getpid())) == 1
    finally:
        await first.close()
        await second.close()


async def test_what_is_not_known_starts_nothing(leases: tuple[Lease, Lease]) -> None:
    lease = leases[0]
    assert lease.caller("a") is not None
    assert lease.caller("c") is None
    assert servers_below(os.getpid()) == set()


async def test_a_call_reaches_the_server_that_is_registered_when_it_is_made(shared: SharedServers, tmp_path: Path) -> None:
    registry, other = ServerRegistry(tmp_path / "state"), ServerRegistry(tmp_path / "state")
    lease = Lease(shared, lambda name: registry.root_within(name, "/workspace"))
    try:
        assert lease.caller("x") is None
        for root in ("/workspace/one", "/workspace/two"):
            other.register("x", lookup(root, "x"), "", root)
            assert f'"ROOT": "{root}"' in await call(lease, "x", "env")
        other.remove("x")
        assert lease.caller("x") is None
    finally:
        await lease.close()
        registry.close()
