"""Parts of a cluster are killed and stopped: nothing runs twice, nothing is silently missing, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock.cluster import RayHosts
from cellblock.cluster.session import ClusterSession
from cellblock.errors import CellblockError, DaemonError, OutcomeUnknownError, SessionLostError
from cluster.nodes import LEASE, alive, below, daemon_of, kill, node_of, parent, ready, until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

APPEND = "with open({path!r}, 'a') as file:\n    file.write('once\\n')\n"


async def session_with_file(hosts: RayHosts, name: str, tmp_path: Path) -> ClusterSession:
    """Make a session that works in a directory of the test."""
    return await hosts.get_or_create(name, fresh=True, working_dir=tmp_path)


async def running(session: ClusterSession, path: Path, seconds: float) -> asyncio.Task[Any]:
    """Begin a cell that writes a line to a file, and goes on for a while."""
    code = f"import time\n{APPEND.format(path=str(path))}time.sleep({seconds})\n'done'"
    task = asyncio.ensure_future(session.execute(code))
    await until(path.exists)
    return task


async def lost_within(task: asyncio.Task[Any]) -> tuple[CellblockError, float]:
    """Return what a cell meets whose node was just killed, and after how many seconds."""
    began = time.monotonic()
    with pytest.raises((OutcomeUnknownError, SessionLostError)) as caught:
        await asyncio.wait_for(task, 30)
    return caught.value, time.monotonic() - began


async def lose_a_host(hosts: RayHosts, tmp_path: Path, part: str) -> None:
    """Kill a part of a host that has a session, and look what becomes of it."""
    session = await session_with_file(hosts, f"{part}-killed", tmp_path)
    node = await node_of(hosts, session.id)
    task = await running(session, tmp_path / "f", 60)
    processes = below(node["processes"]["node"])
    assert len(processes) > 3
    pid = node["processes"]["actor"]
    kill({"actor": pid, "node": node["processes"]["node"], "raylet": parent(pid)}[part])
    error, seconds = await lost_within(task)
    assert seconds < 5  # on an idle machine, a tenth of a second
    assert isinstance(error, OutcomeUnknownError)
    await until(lambda: not alive(processes), 5.0)
    with pytest.raises(SessionLostError, match="lost"):
        await session.execute("1")
    assert (tmp_path / "f").read_text() == "once\n"
    async with hosts.session(f"after-{part}", patience=20) as other:
        assert (await other.execute("6 * 7")).text == "42"
    again = await hosts.get_or_create(session.name, patience=LEASE * 3, working_dir=tmp_path)
    assert again.id != session.id
    assert (await again.execute("2")).text == "2"
    await again.close()
    await until(lambda: not Path(node["processes"]["directory"]).exists(), 30)


async def test_a_killed_daemon_is_started_again_and_its_cells_go_on(hosts: RayHosts, tmp_path: Path) -> None:
    session = await session_with_file(hosts, "daemon-killed", tmp_path)
    await session.execute("x = 41")
    record = await session.submit(f"import time\n{APPEND.format(path=str(tmp_path / 'f'))}time.sleep(2)\nx + 1")
    await until((tmp_path / "f").exists)
    node = await node_of(hosts, session.id)
    kill(daemon_of(node))
    result = await session.result(record)
    assert result.text == "42"
    assert (tmp_path / "f").read_text() == "once\n"
    assert (await session.execute("x")).text == "41"
    assert (await node_of(hosts, session.id))["mark"] == node["mark"]
    await session.close()


@pytest.mark.parametrize("part", ["actor", "node"])
async def test_a_killed_host_loses_its_sessions_and_says_so(hosts: RayHosts, tmp_path: Path, part: str) -> None:
    await ready(hosts, 3)
    await lose_a_host(hosts, tmp_path, part)
    await ready(hosts, 3)


async def test_a_frozen_node_ends_its_sessions_before_it_answers(hosts: RayHosts, tmp_path: Path) -> None:
    """All of a host stands still for longer than its lease. Meanwhile, its name is given to another one."""
    session = await session_with_file(hosts, "frozen", tmp_path)
    await session.execute("x = 'old'")
    node = await node_of(hosts, session.id)
    frozen = {node["processes"]["actor"], *below(node["processes"]["node"])}
    kill(*frozen, number=signal.SIGSTOP)
    asking = asyncio.ensure_future(session.execute("x"))  # it is in the daemon's socket when that wakes up
    try:
        again = await hosts.get_or_create("frozen", patience=LEASE * 4, working_dir=tmp_path)
        assert again.id[-8:] != session.id[-8:]
        await again.execute("x = 'new'")
    finally:
        kill(*frozen, number=signal.SIGCONT)
    with pytest.raises((OutcomeUnknownError, SessionLostError, DaemonError)):
        await asyncio.wait_for(asking, 30)
    await until(lambda: not alive(frozen - {node["processes"]["actor"]}), 5)
    assert (await again.execute("x")).text == "'new'"
    assert (await (await hosts.find("frozen")).execute("x")).text == "'new'"
    await again.close()
    await ready(hosts, 3)


async def test_a_frozen_daemon_alone_loses_its_lease_too(hosts: RayHosts, tmp_path: Path) -> None:
    await ready(hosts, 3)
    session = await session_with_file(hosts, "frozen-daemon", tmp_path)
    node = await node_of(hosts, session.id)
    processes = below(node["processes"]["node"])
    kill(daemon_of(node), number=signal.SIGSTOP)
    await until(lambda: not alive(processes), LEASE * 3)
    await ready(hosts, 3)  # the director knows: what is sent while it learns that has an unknown outcome
    with pytest.raises(SessionLostError):
        await session.execute("1")


async def test_a_killed_director_begins_anew_and_knows_all_sessions(hosts: RayHosts, tmp_path: Path) -> None:
    await ready(hosts, 3)
    sessions = [await session_with_file(hosts, f"director-{number}", tmp_path) for number in range(3)]
    for session in sessions:
        await session.execute("x = 1")
    task = await running(sessions[0], tmp_path / "f", 3)
    kill((await hosts.status())["pid"])
    for session in sessions[1:]:
        assert (await session.execute("x")).text == "1"
    assert (await task).text == "'done'"
    found = await hosts.find("director-1")
    assert found.id == sessions[1].id
    async with hosts.session("after-the-director", patience=30) as other:
        assert (await other.execute("1")).text == "1"
    same = await hosts.get_or_create("director-2")
    assert same.id == sessions[2].id
    for session in sessions:
        await session.close()


async def test_a_stream_goes_on_after_its_connection_was_lost(hosts: RayHosts, tmp_path: Path) -> None:
    session = await session_with_file(hosts, "stream", tmp_path)
    record = await session.submit("import time\nfor i in range(20):\n    print(i)\n    time.sleep(0.1)")
    numbers = []
    async with aclosing(session.attach(record)) as events:
        async for event in events:
            numbers.append(event.seq)
            if len(numbers) == 5:
                kill(daemon_of(await node_of(hosts, session.id)))
    assert numbers == [*range(1, len(numbers) + 1)]
    assert (await session.result(record)).output == "".join(f"{number}\n" for number in range(20))
    await session.close()
