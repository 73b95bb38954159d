"""What happens in all sessions of a cluster, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock.cluster.routing import Where
from cellblock.cluster.watching import Told, watch_all
from cellblock.errors import SessionLostError
from cellblock.operations.overview import Watch
from cluster.small import SmallCluster, hosts_of, small_cluster


def change(*sessions: str, **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {name: [] for name in ("ended", "approvals", "decided", "refusals", "samples")}
    return {"position": "n", "fresh": False, "sessions": [{"kernel_id": one} for one in sessions], **empty, **more}


def sample(at: float, **figures: float) -> dict[str, Any]:
    none = dict.fromkeys(("sessions", "running", "waiting", "memory", "checkpoints", "cells", "failures", "started"), 0)
    return {"at": at, **none, "start_ms": 1.0, **figures}


def test_a_session_that_moves_has_not_ended() -> None:
    told = Told()
    told.heard("a", change("moves", "stays"))
    assert told.heard("b", change("moves"))["sessions"] == [{"kernel_id": "moves"}]
    assert told.heard("a", change(ended=["moves"]))["ended"] == []
    assert told.heard("b", change(ended=["moves"]))["ended"] == ["moves"]
    assert told.lost("a")["ended"] == ["stays"]
    assert told.lost("a")["ended"] == []


def test_figures_are_those_of_all_nodes() -> None:
    told = Told()
    assert told.heard("a", change(samples=[sample(1, sessions=1, cells=5)]))["samples"] == [sample(1, sessions=1, cells=5)]
    assert told.heard("b", change(samples=[sample(1.5, sessions=2, cells=7, start_ms=3.0)]))["samples"] == []
    (both,) = told.heard("a", change(samples=[sample(2, sessions=1, cells=6)]))["samples"]
    assert both == sample(2, sessions=3, cells=13, start_ms=3.0)
    told.lost("a")
    (left,) = told.heard("b", change(samples=[sample(3, sessions=2, cells=8)]))["samples"]
    assert left == sample(3, sessions=2, cells=14)


def test_refusals_of_two_nodes_have_ids_of_their_own() -> None:
    told = Told()
    refused = [told.heard(mark, change(refusals=[{"id": "1"}]))["refusals"][0]["id"] for mark in ("a", "b")]
    assert len({*refused}) == 2


async def test_nodes_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.cluster.watching._LOOK", 0.001)
    there, ended = {"a"}, asyncio.Event()

    async def nodes() -> list[Where]:
        if "none" in there:
            raise SessionLostError("no director")
        return [Where(one, one, "", 0, "") for one in there]

    async def watch(where: Where) -> AsyncGenerator[dict[str, Any], None]:
        yield change(f"of-{where.mark}")
        await ended.wait()
        there.discard(where.mark)
        raise SessionLostError("lost")

    async with aclosing(watch_all(nodes, watch)) as changes:
        assert (await anext(changes))["fresh"]
        assert (await anext(changes))["sessions"] == [{"kernel_id": "of-a"}]
        there.add("none")
        await asyncio.sleep(0.01)
        there.remove("none")
        there.add("b")
        assert (await anext(changes))["sessions"] == [{"kernel_id": "of-b"}]
        ended.set()
        gone = [await anext(changes) for _ in range(2)]
        assert sorted(one["ended"][0] for one in gone) == ["of-a", "of-b"]
        assert not any(one["fresh"] for one in gone)


@pytest.mark.slow
@pytest.mark.timeout(40)
async def test_all_sessions_of_a_cluster_are_followed(cluster: SmallCluster) -> None:
    hosts = hosts_of(cluster)
    made = await asyncio.gather(*(hosts.get_or_create(f"s{n}") for n in range(4)))
    known: dict[str, Any] = {}
    link = hosts._made
    assert link is not None
    async with asyncio.timeout(60), aclosing(link.follow(Watch())) as changes:

        async def until(reached: Any) -> None:
            while not reached():
                one = await anext(changes)
                known.update((each["kernel_id"], each) for each in one["sessions"])
                for gone in one["ended"]:
                    del known[gone]

        await until(lambda: {one["name"] for one in known.values()} == {"s0", "s1", "s2", "s3"})
        await made[0].execute("6 * 7")
        await until(lambda: known[made[0].id]["cells"] == 1)
        lost = cluster.host_of("s0").ray_node
        names = {one.name for one in made if cluster.host_of(one.name).ray_node != lost}
        cluster.hosts[lost].kill()
        await until(lambda: {one["name"] for one in known.values()} == names)
    await hosts.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    """Two nodes."""
    async with small_cluster(tmp_path, 2) as made:
        yield made
