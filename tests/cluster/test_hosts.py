"""Sessions of a cluster, as programs with asyncio use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock.cluster import RayHosts
from cellblock.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    LaunchError,
    NotFoundError,
    StateError,
    UnsupportedError,
)
from cluster.nodes import Nodes, alive, below, ready, until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]


async def test_a_session_ends_with_its_block_and_its_directory_too(hosts: RayHosts) -> None:
    async with hosts.session("block") as session:
        assert (await session.execute("6 * 7")).text == "42"
        assert (await session.write_file("note", "text")).size == 4
        directory = Path(session.workspace)
        assert (directory / "note").read_text() == "text"
        with pytest.raises(ConflictError):
            async with hosts.session("block"):
                pass
        assert (await hosts.find("block")).id == session.id
        assert "block" in [record.name for record in await hosts.list_sessions()]
    await until(lambda: not directory.exists())
    with pytest.raises(NotFoundError):
        await hosts.find("block")


async def test_sessions_are_spread_over_the_nodes(hosts: RayHosts) -> None:
    await ready(hosts, 3)
    made = await asyncio.gather(*(hosts.get_or_create(f"spread-{number}") for number in range(30)))
    assert len({session.id[-8:] for session in made}) == 3
    results = await asyncio.gather(*(session.execute(f"{number}") for number, session in enumerate(made)))
    assert [result.text for result in results] == [str(number) for number in range(30)]
    await asyncio.gather(*(session.close() for session in made))


async def test_callers_of_one_name_get_one_session(hosts: RayHosts) -> None:
    made = await asyncio.gather(*(hosts.get_or_create("same") for _ in range(20)))
    assert len({session.id for session in made}) == 1
    await made[0].close()
    assert (await hosts.get_or_create("same")).id != made[0].id
    await (await hosts.find("same")).close()


async def test_the_parts_of_a_session(hosts: RayHosts) -> None:
    async with hosts.session() as session:
        kinds = []
        async with aclosing(session.stream("print(1)\n2")) as events:
            async for event in events:
                kinds.append(event.kind)
        assert kinds == ["begun", "stream", "display", "result"]
        await session.execute("x = [1]")
        kept = await session.checkpoint("kept")
        await session.execute("x.append(2)")
        assert [variable.name for variable in await session.variables()] == ["x"]
        await session.restore(kept)
        one, two = await session.fork([f"{session.name}-1", f"{session.name}-2"])
        await one.execute("x.append('one')")
        await session.adopt(one)
        assert (await session.execute("x")).text == "[1, 'one']"
        assert "x = [1]" in [cell.code for cell in await two.history()]
        await two.close()
        assert (await session.exec(["cat"], input="text")).stdout == b"text"

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"12"

        assert (await session.write_file("pieces", pieces())).size == 6
        async with aclosing(session.read_parts("pieces")) as parts:
            assert b"".join([part async for part in parts]) == b"121212"


async def test_code_of_a_cancelled_caller_stops(hosts: RayHosts, tmp_path: Path) -> None:
    async with hosts.session(working_dir=tmp_path) as session:
        code = "import time\nopen('begun', 'w').close()\nfor _ in range(600): time.sleep(0.1)"
        task = asyncio.ensure_future(session.execute(code))
        await until((tmp_path / "begun").exists)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        began = time.monotonic()
        assert (await session.execute("1")).text == "1"
        assert time.monotonic() - began < 30


async def test_a_full_cluster_lets_callers_wait_in_order(hosts: RayHosts) -> None:
    await ready(hosts, 3)
    big = (4 << 30) - (64 << 20)
    held = await asyncio.gather(*(hosts.get_or_create(f"big-{number}", memory=big) for number in range(3)))
    with pytest.raises(BusyError, match=r"no node had room for session 'late' within .*needs 4,032 MB"):
        await hosts.get_or_create("late", memory=big, patience=0.5)
    with pytest.raises(BusyError, match="waiting would not help"):
        await hosts.get_or_create("huge", memory=1 << 40)
    order: list[str] = []

    async def wait(name: str) -> None:
        session = await hosts.get_or_create(name, memory=big, patience=60)
        order.append(name)
        await session.close()

    waiting = []
    for name in ("first", "second", "third"):
        waiting.append(asyncio.ensure_future(wait(name)))

        async def waits(wanted: str = name) -> bool:
            return wanted in [one["name"] for one in (await hosts.status())["waiting"]]

        await until(waits)
    await held[0].close()
    await asyncio.gather(*waiting)
    assert order == ["first", "second", "third"]
    await asyncio.gather(*(session.close() for session in held[1:]))


async def test_a_drained_node_moves_its_sessions_and_takes_no_new_ones(hosts: RayHosts) -> None:
    node = (await ready(hosts, 3))[0]
    held = [await hosts.get_or_create(f"drained-{number}") for number in range(12)]
    there = [session for session in held if session.id.endswith(node["mark"])]
    for session in there:
        await session.execute("x = 41")

    async def drained() -> Any:
        found = await hosts.link.director.asked("drain", node["ray_node"][:10], True, 60.0)
        return found if found["over"] else None

    said = await until(drained, 60)
    assert (said["name"], said["sessions"], said["left"]) == (node["name"], [], {})
    assert said["moved"] == len(there)
    for session in there:
        assert (await session.execute("x + 1")).text == "42"
        assert (await hosts.get_or_create(session.name)).id == session.id
    more = [await hosts.get_or_create(f"undrained-{number}") for number in range(12)]
    assert not [session.name for session in more if session.id.endswith(node["mark"])]
    assert "unknown" in await hosts.link.director.asked("drain", "nowhere", True)
    assert not (await hosts.link.director.asked("drain", node["name"], False)).get("unknown")
    await asyncio.gather(*(session.close() for session in [*held, *more]))


async def test_what_is_wrong_names_the_node(hosts: RayHosts, tmp_path: Path) -> None:
    names = [node["name"] for node in (await hosts.status())["nodes"]]
    with pytest.raises(LaunchError) as caught:
        await hosts.get_or_create("no-python", python=str(tmp_path / "nothing"))
    assert any(name in str(caught.value) for name in names)
    with pytest.raises(InvalidInputError):
        await hosts.get_or_create("wrong", no_such_option=1)
    await hosts.get_or_create("right")
    await (await hosts.find("right")).close()


async def test_branches_of_other_nodes_are_not_adopted(hosts: RayHosts) -> None:
    made = [await hosts.get_or_create(f"apart-{number}") for number in range(12)]
    other = next(session for session in made if session.id[-8:] != made[0].id[-8:])
    with pytest.raises(UnsupportedError, match="is on node"):
        await made[0].adopt(other)
    await asyncio.gather(*(session.close() for session in made))


async def test_hosts_that_were_not_started(nodes: Nodes) -> None:
    with pytest.raises(StateError, match="not started"):
        await RayHosts(nodes.address).find("x")


async def test_what_serves_sessions_is_free_of_what_ray_gives_its_workers(hosts: RayHosts) -> None:
    for node in await ready(hosts, 3):
        for pid in alive(below(node["processes"]["node"])):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"RAY_" not in environment, pid
            assert b"OMP_NUM_THREADS" not in environment, pid
        supervisor = node["processes"]["node"]
        assert Path(f"/proc/{supervisor}/oom_score_adj").read_text().strip() == "0"
        status = Path(f"/proc/{supervisor}/status").read_text()
        assert "Threads:\t1\n" in status
        assert "SigBlk:\t0000000000000000\n" in status
    async with hosts.session() as session:
        assert "RAY_" not in str((await session.execute("import os; dict(os.environ)")).text)
