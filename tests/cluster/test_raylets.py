"""Nodes are lost for good. It runs after whatever needs three nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from cellblock.cluster import RayHosts
from cellblock.errors import OutcomeUnknownError, SessionLostError
from cluster.nodes import daemon_of, kill, node_of, parent, ready, until
from cluster.small import age_lease

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]


async def test_a_durable_session_goes_on_elsewhere_after_its_node_was_killed(hosts: RayHosts, tmp_path: Path) -> None:
    """All of the node is killed at once: raylet, actor, supervisor and daemon, as with a machine that is gone."""
    await ready(hosts, 3)
    url = (tmp_path / "saves").as_uri()
    session = await hosts.get_or_create("durable", durable=url, save_every=0.1)
    fleeting = [await hosts.get_or_create(f"fleeting-{number}") for number in range(9)]
    await session.execute("x = 1")
    for _ in range(3):  # the first new save can be of the state before, and the last one incomplete
        before = {*(tmp_path / "saves" / "durable").glob("save-*")}
        await session.execute("y = 2")
        await until(lambda: {*(tmp_path / "saves" / "durable").glob("save-*")} - before)  # noqa: B023  # it is over by then
    node = await node_of(hosts, session.id)
    lost = next(one for one in fleeting if one.id[-8:] == session.id[-8:])
    actor = node["processes"]["actor"]
    kill(parent(actor), actor, node["processes"]["node"], daemon_of(node))
    began = time.monotonic()
    with pytest.raises((SessionLostError, OutcomeUnknownError), match="lost"):
        await lost.execute("1")
    assert time.monotonic() - began < 3, "on an idle machine, it is a tenth of a second"
    with pytest.raises(SessionLostError, match="lost"):
        await lost.execute("1")
    await until(lambda: not Path(f"/proc/{node['processes']['node']}").exists())
    age_lease(tmp_path / "saves" / "durable")
    again = asyncio.ensure_future(hosts.get_or_create("durable", durable=url, save_every=0.1, patience=120))
    await ready(hosts, 2)
    made = await again
    assert made.id[-8:] != session.id[-8:]
    result = await made.execute("x, y")
    assert result.text is not None
    assert result.text.endswith("(1, 2)")
    assert "The session continues from the save of" in result.text
    assert "It is unknown which cells ran after" in result.text
    assert result.recovery == "restored_earlier"
    for one in (made, *(one for one in fleeting if one.id[-8:] != session.id[-8:])):
        await one.close()


async def test_what_ray_drains_is_moved(hosts: RayHosts) -> None:
    """As when a cloud takes a node back (`ray drain-node`)."""
    from ray._private.worker import global_worker

    await ready(hosts, 2)
    session = await hosts.get_or_create("drained-by-ray")
    await session.execute("x = 41")
    node = await node_of(hosts, session.id)
    deadline = int((time.time() + 30) * 1000)
    accepted, why = global_worker.gcs_client.drain_node(node["ray_node"], 2, "the cloud takes it back", deadline)
    assert accepted, why

    async def moved() -> bool:
        names = {one["mark"]: one["sessions"] for one in (await hosts.status())["nodes"] if one["state"] == "ready"}
        return node["mark"] not in names and sum(names.values()) > 0

    await until(moved, 20)
    assert (await session.execute("x + 1")).text == "42"
    await session.close()
