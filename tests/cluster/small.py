"""A cluster without Ray, for tests: the real director in this process, real nodes as processes, and hosts that are tasks."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cellblock.cluster import RayHosts
from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.credentials import make_credentials
from cellblock.cluster.director import Director
from cellblock.cluster.link import ClusterLink
from cellblock.cluster.node import Options
from cellblock.cluster.renewal import Renewal
from cellblock.common.version import __version__
from cellblock.errors import CellblockError, DaemonError
from cellblock.operations.sessions import Census
from cellblock.service.daemon.lease import Lease, now
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.daemon.place import Place

if TYPE_CHECKING:
    from cellblock.cluster.ray_nodes import RayNodes

MEMORY = 1 << 30
OPTIONS = ClusterOptions(memory=MEMORY, session_memory=16 << 20, lease=10.0)


class SmallHost:
    """As `HostActor`: looks after one node."""

    def __init__(self, cluster: SmallCluster, ray_node: str, name: str, seconds: float) -> None:
        self.cluster = cluster
        self.ray_node, self.name = ray_node, name
        self.mark = secrets.token_hex(4)
        self.directory = cluster.directory / f"{ray_node}-{self.mark}"
        self.draining = False
        self.seconds = seconds
        self.ended = asyncio.Event()
        self.cut_off = False
        self.task = asyncio.create_task(self._run())
        self.started = asyncio.Event()

    async def ask(self, what: str, *arguments: Any) -> Any:
        if what == "watch":
            await self.ended.wait()
            raise RuntimeError("it has ended")
        await self.started.wait()
        if what in ("drain", "stop"):
            self.renewal.check(arguments[0])
        if what == "drain":
            self.draining = arguments[1]
        if what == "stop":
            await self.end()
        return self.about() if what == "describe" else None

    def kill(self) -> None:
        self.task.cancel()

    def about(self) -> dict[str, Any]:
        return {
            "ray_node": self.ray_node,
            "name": self.name,
            "mark": self.mark,
            "address": "127.0.0.1",
            "port": self.port,
            "draining": self.draining,
            "pids": {"actor": 0, "node": self.process.pid},
            "directory": str(self.directory),
        }

    async def _run(self) -> None:
        options = Options(directory=str(self.directory), address="127.0.0.1", port=0, mark=self.mark)
        for made in (self.directory, options.state, options.workspaces):
            made.mkdir(mode=0o700)
        options.credentials.touch(mode=0o600)
        options.credentials.write_text(self.cluster.credentials)
        self.lease = Lease(options.lease)
        self.renewal = Renewal(self.lease, self.seconds)
        self.process = await asyncio.create_subprocess_exec(
            *self.cluster.inside.get(self.ray_node, ()),
            *(sys.executable, "-m", "cellblock.cluster.node", options.to_json()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "CELLBLOCK_DAEMON_IDLE_TIMEOUT": "0"},
        )
        assert self.process.stdout is not None
        self.port = int(await self.process.stdout.readline())
        self.started.set()
        self.daemon = self.link()
        ending = asyncio.ensure_future(self.process.wait())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait([ending, renewing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewing.cancel()
            await self.end()
            await self.daemon.close()
            self.ended.set()

    def link(self) -> DaemonLink:
        """Return a link of one's own to the daemon."""
        return DaemonLink(connect=self._connect)

    async def _connect(self) -> socket.socket:
        sock = Place(self.directory / "state").connect()
        if sock is None:
            raise DaemonError("it does not listen yet")
        sock.setblocking(False)
        return sock

    async def _renew(self) -> None:
        while True:
            with suppress(CellblockError):
                census = await self.daemon.call(Census())
                asked = now()
                if not self.cut_off:
                    director = self.cluster.director_of(self)
                    answer = await director.report(self.mark, self.renewal.epoch, census)
                    outcome = self.renewal.answered(answer, asked)
                    if outcome == "lost":
                        return
                    if outcome == "join":
                        await director.join(self.about())
                        continue
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self.process.wait()

    def kill_all(self) -> None:
        """As if the machine were gone."""
        from cluster.nodes import below

        for pid in below(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class SmallCluster:
    """Nodes, a director, and links to it. As `RayNodes`, it tells the director of them."""

    def __init__(self, directory: Path, options: ClusterOptions = OPTIONS) -> None:
        self.directory = directory
        self.options = options
        self.credentials = make_credentials()
        self.hosts: dict[str, SmallHost] = {}
        self.names: list[str] = []
        self.drained: dict[str, float] = {}
        self.inside: dict[str, tuple[str, ...]] = {}
        """Commands that run nodes."""
        self.broken: dict[str, Exception] = {}
        """Why nodes have no hosts."""
        self.numbers = 0
        self.divided = False
        """Whether directors cannot see which others there are."""
        self.directors = [self.new_director()]
        self.obeys: dict[str, Director] = {}

    def new_director(self) -> Director:
        return Director(self.credentials, self.options.to_dict(), __version__, cast("RayNodes", self))

    @property
    def director(self) -> Director:
        return self.directors[-1]

    def director_of(self, host: SmallHost) -> Director:
        return self.obeys.get(host.ray_node, self.director)

    async def asked(self, what: str, *arguments: Any) -> Any:
        return await getattr(self.director, what)(*arguments)

    # -- as `RayNodes`
    async def number(self) -> int:
        self.numbers += 1
        return self.numbers

    async def latest(self) -> int:
        return 0 if self.divided else self.numbers

    async def all(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"NodeID": name, "NodeName": name, "Alive": True, "Resources": {"CPU": 2}, "NodeManagerAddress": "127.0.0.1"}
            for name in self.names
        ]

    async def draining(self) -> Mapping[str, float]:
        return self.drained

    def host(self, ray_node: str, *, cpus: float, memory: int, on: str, arguments: tuple[Any, ...]) -> SmallHost:
        if ray_node in self.broken:
            raise self.broken[ray_node]
        found = self.hosts.get(ray_node)
        if found is None or found.ended.is_set():
            found = self.hosts[ray_node] = SmallHost(self, ray_node, arguments[0], self.options.lease)
        return found

    async def request(self, bundles: list[dict[str, float]]) -> None:
        pass

    # -- for tests
    def host_of(self, name: str) -> SmallHost:
        site = self.director._names.find(name)
        assert site is not None
        return self.hosts[site.ray_node]

    async def ready(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            status = await self.director.status()
            if sum(node["state"] == "ready" for node in status["nodes"]) == count:
                return
            assert time.monotonic() < deadline, status
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        for director in self.directors:
            director._stopping = True
            tasks = [director._task, *director._making.values(), *(one.task for one in director._emptying.values())]
            for task in tasks:
                if task is not None:
                    task.cancel()
        for host in self.hosts.values():
            await asyncio.wait([host.task], timeout=0)
            if not host.ended.is_set():
                await host.started.wait()
                await host.end()
                await asyncio.wait([host.task], timeout=10)


@asynccontextmanager
async def small_cluster(
    directory: Path,
    count: int,
    options: ClusterOptions = OPTIONS,
    *,
    inside: Mapping[str, tuple[str, ...]] | None = None,
    broken: Mapping[str, Exception] | None = None,
) -> AsyncIterator[SmallCluster]:
    """A cluster of so many nodes."""
    cluster = SmallCluster(directory, options)
    cluster.inside |= inside or {}
    cluster.broken |= broken or {}
    cluster.names = [f"n{number}" for number in range(count)]
    try:
        await cluster.ready(count - len(cluster.broken))
        yield cluster
    finally:
        await cluster.end()


def age_lease(folder: Path) -> None:
    """Have the lease of a durable session whose node is dead run out now, instead of in a minute."""
    lease = max(folder.glob("lease-*"))
    before = lease.stat().st_mtime - 60
    os.utime(lease, (before, before))


def hosts_of(cluster: SmallCluster, patience: float = 20.0) -> RayHosts:
    """Return sessions on a cluster."""
    hosts = RayHosts("small", patience=patience)
    hosts._made = ClusterLink(cluster, patience)  # type: ignore[arg-type]  # it is asked as `DirectorCalls`
    return hosts
