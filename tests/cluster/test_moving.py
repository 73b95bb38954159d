"""Nodes are drained: sessions move between two cells, and whoever holds them goes on."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.cluster import RayHosts
from cellblock.cluster.names import Names, Site
from cellblock.cluster.session import ClusterSession
from cellblock.errors import BusyError, ConflictError
from cellblock.operations.clones import CloneApply, CloneFetch
from cluster.nodes import daemon_of, kill, until
from cluster.small import MEMORY, OPTIONS, SmallCluster, age_lease, hosts_of, small_cluster
from git_repositories import Repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    """Two nodes."""
    async with small_cluster(tmp_path, 2) as made:
        yield made


@pytest.fixture
async def hosts(cluster: SmallCluster) -> AsyncIterator[RayHosts]:
    """Sessions on them."""
    made = hosts_of(cluster)
    yield made
    await made.close()


def node_of(cluster: SmallCluster, session: ClusterSession) -> str:
    return cluster.host_of(session.name).ray_node


async def drained(cluster: SmallCluster, node: str, seconds: float = 20.0) -> dict[str, Any]:
    """Drain a node; return what is said at the end."""
    name = cluster.hosts[node].name
    while not (found := await cluster.director.drain(name, True, seconds))["over"]:
        await asyncio.sleep(0.05)
    return found


async def test_what_a_node_refuses_is_placed_again(
    cluster: SmallCluster, hosts: RayHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node does after a session has moved, until the director has heard of that."""
    grant, refused = Names.grant, [""] * 7

    def refuse(names: Names, site: Site) -> str:
        return refused.pop() if refused else grant(names, site)

    monkeypatch.setattr(Names, "grant", refuse)
    session = await hosts.get_or_create("trunk")
    assert not refused
    node = cluster.director._names.sites[cluster.host_of("trunk").mark].node
    free = node.free
    refused += ["", ""]
    (branch,) = await session.fork(["branch"])
    assert not refused
    assert (await branch.execute("1")).text == "1"
    assert free - node.free == OPTIONS.session_memory
    with pytest.raises(ConflictError):
        await session.fork(["branch"])


async def test_an_idle_session_moves_with_variables_files_and_keys(cluster: SmallCluster, hosts: RayHosts) -> None:
    session = await hosts.get_or_create("moves", tags={"a": "b"})
    await session.execute("x = [1, 2]\nopen('f', 'w').write('kept')")
    before = await session.submit("x.append(3)", key="once")
    await session.result(before)
    node = node_of(cluster, session)
    said = await drained(cluster, node)
    assert (said["moved"], said["sessions"], said["left"]) == (1, [], {})
    assert node_of(cluster, session) != node
    assert (await session.execute("x, open('f').read()")).text == "([1, 2, 3], 'kept')"
    again = await session.submit("x.append(3)", key="once")
    assert again.id == before.id, "a key that was used does not run again"
    assert (await session.execute("x")).text == "[1, 2, 3]"
    found = await hosts.find("moves")
    assert (found.id, found.record.tags) == (session.id, {"a": "b"})
    assert (await hosts.get_or_create("moves")).id == session.id
    later = await session.submit("print('there'); 5")
    assert str((await session.result(later)).text).endswith("5")
    assert (await session.lookup(later)).state == "done"
    assert (await session.history())[0].code.startswith("x = [1, 2]")
    (branch,) = await session.fork(["branch"])
    assert (await branch.execute("x")).text == "[1, 2, 3]"
    await branch.close()
    await session.close()
    assert await hosts.list_sessions() == []


async def test_a_clone_moves_with_its_session(cluster: SmallCluster, hosts: RayHosts, tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    project.commit(a="one")
    session = await hosts.get_or_create("cloned", working_dir=str(project.path), workspace="clone")
    await session.execute("x = 1\n!echo two > a && git commit -qam two && echo s > b && git add b && ln -s a l")
    look = "!pwd; git status --porcelain -b; git log --format=%s; cat a; git fsck --no-dangling\nx"
    before = (await session.execute(look)).text
    node = node_of(cluster, session)
    said = await drained(cluster, node)
    assert (said["moved"], said["left"]) == (1, {})
    assert node_of(cluster, session) != node
    assert (await session.execute(look)).text == before
    assert len(project.git("for-each-ref", "refs/cellblock").splitlines()) == 1
    assert (await hosts.link.call(CloneFetch("cloned")))["commits"] == 1
    assert (await hosts.link.call(CloneApply("cloned")))["files"] == ["a", "b", "l"]
    assert (project.path / "a").read_text() == "two\n"
    await session.close()
    assert project.git("for-each-ref", "refs/cellblock") == ""


async def test_cells_go_on_while_their_session_moves_and_each_runs_once(cluster: SmallCluster, hosts: RayHosts) -> None:
    session = await hosts.get_or_create("busy")
    await session.execute("n = 0")
    node = node_of(cluster, session)
    moved = asyncio.Event()

    async def count() -> int:
        rounds = 0
        while not moved.is_set() or rounds < 5:
            rounds += 1
            assert (await session.execute("n += 1; n")).text == str(rounds)
        return rounds

    counting = asyncio.create_task(count())
    said = await drained(cluster, node)
    moved.set()
    assert said["sessions"] == [], said
    rounds = await counting
    assert (await session.execute("n")).text == str(rounds)
    assert node_of(cluster, session) != node
    await session.close()


async def test_a_session_that_runs_code_until_the_deadline_stays_and_is_named(cluster: SmallCluster, hosts: RayHosts) -> None:
    session = await hosts.get_or_create("long")
    node = node_of(cluster, session)
    running = asyncio.create_task(session.execute("import time; time.sleep(4); 'done'"))
    await asyncio.sleep(0.3)
    said = await drained(cluster, node, 0.5)
    assert said["left"] == {"long": "it runs code"}
    assert (await running).text == "'done'"
    assert node_of(cluster, session) == node
    with pytest.raises(BusyError, match="draining"):
        await session.fork(["branch"])
    other = await hosts.get_or_create("other")
    assert node_of(cluster, other) != node, "a node that is drained takes no new sessions"
    await cluster.director.drain(cluster.hosts[node].name, False)
    assert cluster.hosts[node].draining is False
    await session.close()
    await other.close()


async def test_what_would_lose_something_stays_and_the_reason_is_said(cluster: SmallCluster, hosts: RayHosts) -> None:
    sessions = {name: await hosts.get_or_create(name) for name in ("opened", "program", "checkpoint")}
    await cluster.director.drain("nobody", True)
    await sessions["opened"].execute("f = open('f', 'w'); x = 5")
    await sessions["program"].spawn(["sleep", "60"])
    await sessions["checkpoint"].checkpoint("before")
    reasons: dict[str, str] = {}
    for node in {node_of(cluster, session) for session in sessions.values()}:
        reasons |= (await drained(cluster, node, 0.5))["left"]
        await cluster.director.drain(cluster.hosts[node].name, False)
    assert re.match(r"this would be lost: f \(", reasons["opened"])
    assert reasons["program"] == "it has running programs, which a move would end"
    assert reasons["checkpoint"] == "a move would lose its checkpoints: 'before'"
    assert (await sessions["opened"].execute("x")).text == "5"
    for session in sessions.values():
        await session.close()


async def test_a_node_that_ray_drains_saves_what_can_be_saved(cluster: SmallCluster, hosts: RayHosts) -> None:
    """It ends soon, so it is better to lose a part of a session than all of it. Its next result says what."""
    session = await hosts.get_or_create("spot")
    await session.execute("f = open('f', 'w'); x = 5")
    node = node_of(cluster, session)
    cluster.drained = {node: 3.0}
    await until(lambda: node_of(cluster, session) != node, 20)
    result = await session.execute("x")
    assert result.text is not None
    assert result.text.endswith("\n5")
    assert "The session was moved to another node. Not moved: f (" in result.text
    await session.close()


async def test_without_room_elsewhere_sessions_stay(cluster: SmallCluster, hosts: RayHosts) -> None:
    session = await hosts.get_or_create("large", memory=MEMORY - (64 << 20))
    node = node_of(cluster, session)
    other = await hosts.get_or_create("fills", memory=MEMORY - (64 << 20))
    said = await drained(cluster, node, 0.5)
    assert "free" in said["left"]["large"]
    assert (await session.execute("1")).text == "1"
    await session.close()
    await other.close()


@pytest.mark.parametrize("part", ["old", "new"])
async def test_if_a_daemon_is_killed_while_a_session_moves_there_is_one_of_it(
    cluster: SmallCluster, hosts: RayHosts, part: str
) -> None:
    session = await hosts.get_or_create("killed")
    await session.execute("x = 'a' * 3_000_000")
    node = node_of(cluster, session)
    old, new = cluster.hosts[node], next(host for name, host in cluster.hosts.items() if name != node)
    await cluster.director.drain(old.name, True, 0.5)
    await until(lambda: "killed" in cluster.director._names.sites[new.mark].told)
    chosen = old if part == "old" else new
    kill(daemon_of(chosen.about() | {"processes": {"node": chosen.process.pid}}))
    assert (await session.execute("len(x)")).text == "3000000"
    await until(lambda: cluster.director._emptying[old.mark].task.done())
    assert (await session.execute("len(x)")).text == "3000000"
    assert [one.name for one in await hosts.list_sessions()] == ["killed"]


async def test_a_durable_session_moves_with_its_lease(cluster: SmallCluster, hosts: RayHosts, tmp_path: Path) -> None:
    url = (tmp_path / "saves").as_uri()
    session = await hosts.get_or_create("durable", durable=url, save_every=0.2)
    await session.execute("x = 1")
    node = node_of(cluster, session)
    assert (await drained(cluster, node))["sessions"] == []
    assert (await session.execute("x += 1; x")).text == "2"
    ran = time.time() * 1000
    folder = tmp_path / "saves" / "durable"

    def saved_there() -> bool:
        lease = json.loads(max(folder.glob("lease-*")).read_bytes())
        return lease["saved_at"] >= ran and not lease["released"] and max(folder.glob("lease-*")).name > "lease-00000001.json"

    await until(saved_there, 30)
    cluster.host_of("durable").kill_all()
    age_lease(folder)
    await cluster.ready(1)
    await cluster.director.drain(cluster.hosts[node].name, False)
    again = await hosts.get_or_create("durable", durable=url, save_every=0.2, patience=90)
    result = await again.execute("x")
    assert result.text is not None
    assert result.text.endswith("\n2")
    assert "The session continues from the save of" in result.text
    await again.close()
