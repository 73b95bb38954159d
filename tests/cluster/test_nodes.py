"""Nodes that cannot do what is asked, and nodes and clients that are gone: each error names the node. Without Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellblock.errors import BusyError, CellblockError, OutcomeUnknownError, SandboxError, SessionLostError, UnsupportedError
from cellblock.operations.sessions import Census
from cluster.nodes import alive, until
from cluster.small import hosts_of, small_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "--kill-child", "--fork", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"',
    "sh",
)

CLIENT = """
import asyncio, socket, sys
from pathlib import Path
from cellblock.operations.executions import Submit
from cellblock.operations.programs import Spawn
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.daemon.tls import tls

async def connect():
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    sock.setblocking(False)
    return sock

async def main():
    link = DaemonLink(connect=connect, tls=tls(Path(sys.argv[1]), server=False))
    program = await link.call(Spawn("client", ("sleep", "600"), bound=True))
    print(program["pid"] if "pid" in program else 0, flush=True)
    code = b"import time; open('begun', 'w'); time.sleep(2); n += 1"
    await link.call(Submit("client", wait=True, key="k"), code)

asyncio.run(main())
"""


async def test_a_client_that_is_killed_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """Its connections and what was bound to them go with it; the session and the code that it ran go on."""
    async with small_cluster(tmp_path, 1) as cluster:
        hosts, host = hosts_of(cluster), cluster.hosts["n0"]
        (tmp_path / "w").mkdir()
        session = await hosts.get_or_create("client", working_dir=tmp_path / "w")
        await session.execute("n = 0")
        own = host.link()  # another connection of a link that others use, too, would be counted
        clients = (await own.call(Census()))["clients"]
        command = [sys.executable, "-c", CLIENT, str(host.directory / "credentials.pem"), str(host.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            await until((tmp_path / "w" / "begun").exists)
            assert (await own.call(Census()))["clients"] > clients
            process.send_signal(signal.SIGKILL)

        async def gone() -> bool:
            programs = [one for one in await session.processes() if one.running]
            return not programs and (await own.call(Census()))["clients"] == clients

        await until(gone)
        await until(lambda: session.executions(1))
        assert (await session.execute("n")).text == "1"
        await own.close()
        await hosts.close()


async def test_a_node_with_another_version_is_named(tmp_path: Path) -> None:
    why = UnsupportedError("it has cellblock 0.0.1, and the director 0.0.2: install the same on all nodes")
    async with small_cluster(tmp_path, 2, broken={"n1": why}) as cluster:
        hosts = hosts_of(cluster, patience=0.5)
        status = await cluster.director.status()
        assert status["problems"] == {"n1-n1": str(why)}
        await hosts.get_or_create("fills", memory=(1 << 30) - 1, patience=30)
        with pytest.raises(BusyError, match=r"node n1-n1: it has cellblock 0\.0\.1"):
            await hosts.get_or_create("more", memory=64 << 20)
        await hosts.close()


@pytest.mark.skipif(os.system("unshare --user --map-root-user true") != 0, reason="no user namespaces here")
async def test_a_node_without_user_namespaces_is_named(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 1, inside={"n0": WITHOUT_NAMESPACES}) as cluster:
        hosts = hosts_of(cluster)
        with pytest.raises(SandboxError, match=r"^node n0-n0: .*namespace"):
            await hosts.get_or_create("x")
        with pytest.raises(CellblockError, match=r"^node n0-n0: "):  # nor can the node enforce what this one promises
            await hosts.get_or_create("x", allow_hosts=["example.org"])
        await hosts.close()


async def test_a_policy_that_a_node_does_not_have(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 1) as cluster:
        hosts = hosts_of(cluster)
        with pytest.raises(CellblockError, match=r"^node n0-n0: .*nowhere"):
            await hosts.get_or_create("x", sandbox_config="/nowhere/sandbox.json")
        await hosts.close()


async def test_the_loss_of_a_node_is_seen_at_once(tmp_path: Path) -> None:
    """By the connection that it closes. `bench/cluster.py` says how soon that is."""
    async with small_cluster(tmp_path, 2) as cluster:
        hosts = hosts_of(cluster)
        session = await hosts.get_or_create("x")
        running = asyncio.create_task(session.execute("import time; open('begun', 'w'); time.sleep(60)"))
        await until((Path(session.workspace) / "begun").exists)
        host = cluster.host_of("x")
        began = time.monotonic()
        host.kill_all()
        with pytest.raises(OutcomeUnknownError, match="lost"):
            await running
        assert time.monotonic() - began < 3
        with pytest.raises(SessionLostError, match="lost"):
            await session.execute("1")
        again = await hosts.get_or_create("x", patience=30)
        assert again.id != session.id
        assert not alive({host.process.pid})
        await hosts.close()
