"""Daemons and directors are killed at any point of a move: one node has the session, with its variables and files."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from cellblock.cluster import RayHosts
from cellblock.errors import CellblockError, DaemonError, MovingError, NotFoundError
from cellblock.model.sessions import mark_of
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Census
from cluster.nodes import daemon_of, until
from cluster.small import SmallCluster, SmallHost, hosts_of, small_cluster

TESTS = Path(__file__).parents[1]
FILE, PASSED = "fuse", "passed"
CODE = "x = {0}; f = open('f', 'w').write('{0}')"
INSTALL = """
import sys
if "cellblock.daemon" in sys.orig_argv:
    import cluster.moving_fuse
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    """Two nodes, whose daemons can be killed at a point of a move."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(INSTALL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(TESTS), os.environ.get("PYTHONPATH", "")]))
    async with small_cluster(tmp_path, 2) as made:
        yield made


@pytest.fixture
async def hosts(cluster: SmallCluster) -> AsyncIterator[RayHosts]:
    made = hosts_of(cluster)
    yield made
    await made.close()


async def names(host: SmallHost) -> list[str] | None:
    """Return the sessions of a node; None while its daemon does not answer."""
    try:
        async with asyncio.timeout(10):
            return [*(await host.daemon.call(Census()))["names"]]
    except (DaemonError, TimeoutError):
        return None


async def only_holder(cluster: SmallCluster) -> SmallHost:
    """Wait until both daemons answer and one node has the session; return that node."""
    found: list[list[str] | None] = []

    async def settled() -> bool:
        found[:] = [await names(host) for host in cluster.hosts.values()]
        return None not in found and sorted(one or [] for one in found) == [[], ["s"]]

    with suppress(AssertionError):
        await until(settled, 60)
    assert await settled(), found
    return [*cluster.hosts.values()][found.index(["s"])]


def pid(host: SmallHost) -> int:
    return daemon_of({"processes": {"node": host.process.pid}})


async def ask(cluster: SmallCluster, key: str, code: str) -> tuple[SmallHost, str | None]:
    """Run code once in the session, wherever it is; return its node and the value. A daemon may be starting."""
    deadline = time.monotonic() + 60
    while True:
        holder = await only_holder(cluster)
        try:
            result = await holder.daemon.call(Submit("s", key=key, wait=True), code.encode())
            return holder, result["return_value"]
        except (DaemonError, MovingError, NotFoundError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def check(cluster: SmallCluster, value: int) -> SmallHost:
    """Check the session's variable and its file; return its node."""
    holder, found = await ask(cluster, f"look {value}", "x, open('f').read()")
    assert found == f"({value}, '{value}')"
    return holder


def left_in(host: SmallHost, has: bool) -> list[str]:
    """Return what a move has left in a node: saves, notes about it, and files of a session that the node does not have."""
    left = [*(host.directory / "state").glob("move-*"), *(host.directory / "state").glob("arriving-*")]
    return [*map(str, left), *(map(str, (host.directory / "workspaces").glob("*/*")) if not has else ())]


@pytest.mark.parametrize("part", ["source", "target"])
@pytest.mark.sampled(2)
async def test_if_a_daemon_is_killed_at_any_point_of_a_move_one_node_has_the_session(
    cluster: SmallCluster, hosts: RayHosts, part: str
) -> None:
    await hosts.get_or_create("s")
    points, last = [0], 0
    for value in range(4):
        source, _ = await ask(cluster, f"run {value}", CODE.format(value))
        (target,) = (host for host in cluster.hosts.values() if host is not source)
        chosen = source if part == "source" else target
        before = pid(chosen)
        (chosen.directory / FILE).write_text(str(points[-1]))
        sites = cluster.director._names.sites
        with suppress(CellblockError):
            await cluster.director._move(sites[source.mark], sites[target.mark], "s", 5.0, True)
        holder = await check(cluster, value)
        if value == 0:
            with suppress(CellblockError):
                await chosen.daemon.call(Submit("s", key="disarm"), b"")
            last = int((chosen.directory / PASSED).read_text())
        print("point", points[-1], "of", last, "killed" * (pid(chosen) != before), "moved" * (holder is target))
        # The last ones are those at which both nodes may have it, or none.
        points.append(random.randint(1, last) if value == 0 else random.randint(last - 40, last))
        for host in cluster.hosts.values():
            await until(lambda host=host, has=host is holder: left_in(host, has) == [])  # type: ignore[misc]


async def test_if_the_director_is_killed_at_any_moment_of_a_move_one_node_has_the_session(
    cluster: SmallCluster, hosts: RayHosts
) -> None:
    """Its connections end with it."""
    session = await hosts.get_or_create("s")
    took = 1.0
    for value in range(6):
        source, _ = await ask(cluster, f"run {value}", CODE.format(value))
        (target,) = (host for host in cluster.hosts.values() if host is not source)
        sites = cluster.director._names.sites
        move = asyncio.create_task(cluster.director._move(sites[source.mark], sites[target.mark], "s", 5.0, True))
        if value == 0:
            began = time.monotonic()
            assert await move == mark_of(session.id)
            took = time.monotonic() - began
        else:
            await asyncio.sleep(random.random() * took)
            move.cancel()
            await asyncio.wait([move])
        await check(cluster, value)
