"""Servers that sessions share: who may name which, who uses which, and when they are stopped. With real servers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.errors import McpServerError
from cellblock.store.servers import ServerRegistry
from cellblock.tools.lease import Lease, SharedServers
from cellblock.tools.params import StdioServer
from processes import alive, eventually
from tool_sessions import servers_below

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parent / "hostile_server.py"
ROOTS = {"a": "/one", "b": "/one", "elsewhere": "/two"}


def lookup(root: str, name: str) -> StdioServer:
    return StdioServer(sys.executable, (str(SERVER), "good"), {"ROOT": root, "NAME": name})


@pytest.fixture
def shared() -> SharedServers:
    """Servers of one host."""
    return SharedServers(lookup, connect_timeout=20, environment=os.environ)


@pytest.fixture
async def leases(nothing_left_behind: None, shared: SharedServers) -> AsyncIterator[tuple[Lease, Lease]]:
    """Two sessions' parts in them, which know the same servers."""
    first, second = Lease(shared, ROOTS.get), Lease(shared, ROOTS.get)
    yield first, second
    await first.close()
    await second.close()


async def pid(lease: Lease, server: str) -> int:
    return int((await lease.call(server, "pid", {})).text)


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
        assert '"ROOT": "/one"' in (await first.call("a", "env", {})).text
        assert '"ROOT": "/two"' in (await second.call("a", "env", {})).text
        assert len(servers_below(os.getpid())) == 2
        await first.close()
        assert len(servers_below(os.getpid())) == 1
    finally:
        await first.close()
        await second.close()


async def test_what_is_not_known_starts_nothing(leases: tuple[Lease, Lease]) -> None:
    lease = leases[0]
    assert (lease.known("a"), lease.known("c")) == (True, False)
    with pytest.raises(InvalidInputError, match="registered as 'c' for this workspace"):
        await lease.call("c", "pid", {})
    assert servers_below(os.getpid()) == set()


async def test_giving_up_fails_the_calls_that_are_under_way(leases: tuple[Lease, Lease]) -> None:
    lease = leases[0]
    await pid(lease, "a")
    call = asyncio.create_task(lease.call("a", "hang", {}))
    await asyncio.sleep(0)
    await lease.reset()
    with pytest.raises(McpServerError, match="'a'"):
        await call
    await eventually(lambda: not servers_below(os.getpid()))


async def test_a_call_reaches_the_server_that_is_registered_when_it_is_made(shared: SharedServers, tmp_path: Path) -> None:
    registry, other = ServerRegistry(tmp_path / "state"), ServerRegistry(tmp_path / "state")
    lease = Lease(shared, lambda name: registry.root_within(name, "/workspace"))
    try:
        assert not lease.known("x")
        for root in ("/workspace/one", "/workspace/two"):
            other.register("x", lookup(root, "x"), "", root)
            assert lease.known("x")
            assert f'"ROOT": "{root}"' in (await lease.call("x", "env", {})).text
        other.remove("x")
        assert not lease.known("x")
        with pytest.raises(InvalidInputError, match="registered as 'x' for this workspace"):
            await lease.call("x", "env", {})
    finally:
        await lease.close()
        registry.close()
