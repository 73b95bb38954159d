"""The Ray actor that decides where sessions are placed: one per cluster, with soft state."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.emptying import Emptying
from cellblock.cluster.names import InDoubt, Names, Site
from cellblock.cluster.node import be_as_important
from cellblock.cluster.placement import Node, Wanted
from cellblock.cluster.reaching import connect, context_of
from cellblock.cluster.routing import Where
from cellblock.common.version import __version__
from cellblock.errors import DaemonError
from cellblock.model.sessions import mark_of
from cellblock.operations.moving import TakeOver
from cellblock.service.daemon.link import DaemonLink

if TYPE_CHECKING:
    from cellblock.cluster.ray_nodes import RayHost, RayNodes

_REPORTS = 200
"""Reports that a director takes in a second. It has time for some 1,200 calls."""

_LOOK = 0.5
"""Seconds between two looks at Ray's nodes."""

_LONG = 86_400.0
"""Seconds to wait for the sessions of a node that Ray drains without a deadline."""

_SUSPECT = 1.0
"""Seconds to wait for news of a host that may have ended."""


_LOOK_AGAIN = 0.25
"""Seconds between two checks whether a name is in doubt."""


class _Waiting:
    """A caller that waits for room.

    Attributes:
        name: The session's name.
        wanted: The session's needs.
        why: Why it waits.
        since: The start of the wait (`time.monotonic`).
        turn: Set to make the caller look again.
    """

    def __init__(self, name: str, wanted: Wanted, why: str) -> None:
        self.name = name
        self.wanted = wanted
        self.why = why
        self.since = time.monotonic()
        self.turn = asyncio.Event()


def pause(hosts: int, lease: float) -> float:
    """Return the seconds between two reports of a host: a second, or more if there are many hosts.

    Reports list ended sessions. A director knows its own placements, and learns of losses at once.

    Args:
        hosts: The number of hosts.
        lease: The duration of their leases in seconds; a few reports may be lost meanwhile.
    """
    return min(max(1.0, hosts / _REPORTS), lease / 10 if hosts <= _REPORTS else lease / 6, 5.0)


class Director:
    """An actor that places sessions on hosts, and locates them. Its methods return plain data."""

    def __init__(self, credentials: str, options: dict[str, Any], version: str, nodes: RayNodes | None = None) -> None:
        """Start without any knowledge.

        Args:
            credentials: The cluster's certificate and key.
            options: `ClusterOptions`.
            version: The version of the program that creates the director.
            nodes: The nodes; by default the nodes of its Ray cluster.
        """
        if version != __version__:
            raise RuntimeError(f"the head node has cellblock {__version__}, and this program {version}")
        be_as_important()
        self._credentials = credentials
        self._options = ClusterOptions(**options)
        self._nodes = nodes
        self._numbered: Names | None = None
        self._successor = 0
        self._emptying: dict[str, Emptying] = {}
        """By the mark of the host."""
        self._tls: Any = None
        self._queue: deque[_Waiting] = deque()
        self._hosts: dict[str, RayHost] = {}
        """The actors, by the node's id."""
        self._making: dict[str, asyncio.Task[None]] = {}
        self._marks: dict[str, str] = {}
        """Ray's node → the mark of its host."""
        self._pids: dict[str, Any] = {}
        self._problems: dict[str, str] = {}
        self._ray_nodes: dict[str, str] = {}
        self._heard: dict[str, asyncio.Event] = {}
        self._asked: list[dict[str, float]] = []
        self._stopping = False
        self._lost = asyncio.Event()
        """Set, and replaced, when a host is lost."""
        self._begun = asyncio.Event()
        self._beginning = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def _names(self) -> Names:
        assert self._numbered is not None, "it has not begun"
        return self._numbered

    async def _begin(self) -> Names:
        """Start to watch nodes, once: at the first call after a start or a restart.

        Raises:
            DaemonError: A later director exists.
        """
        if self._task is None:
            async with self._beginning:
                if self._task is None:
                    await self._start()
        await self._begun.wait()
        if self._successor:
            raise DaemonError(
                f"director {self._names.epoch} was replaced by director {self._successor}: connect to the cluster again"
            )
        return self._names

    async def _start(self) -> None:
        if self._nodes is None:
            from cellblock.cluster.ray_nodes import RayNodes

            self._nodes = RayNodes()
        self._numbered = Names(self._options.lease, await self._nodes.number())
        # Nodes may have leases of an earlier director, which may be dead for Ray but still running.
        self._names.await_reports(node["NodeID"] for node in await self._nodes.all())
        self._task = asyncio.create_task(self._look_after())

    # -- for hosts -------------------------------------------------------------------------------------------------------

    async def report(self, mark: str, epoch: int, census: dict[str, Any]) -> dict[str, Any]:
        """Handle the census of a host, and renew its lease.

        Args:
            mark: The host's mark.
            epoch: The number of the director that the host obeys; 0 if none. A higher number means that this
                director was replaced.
            census: The answer to `Census`.
        """
        names = await self._begin()
        if epoch > names.epoch:
            self._successor = epoch
            await self._begin()
        if epoch != names.epoch:
            return {"epoch": names.epoch, "lost": False}
        about = {name: value for name, value in census.items() if name not in ("made", "names", "time")}
        renewed = names.census(mark, census["time"], census["names"], about, census["made"])
        self._heard.setdefault(mark, asyncio.Event()).set()
        self._serve()
        return {"epoch": names.epoch, "lost": not renewed, "pause": pause(len(names.sites), self._options.lease)}

    async def join(self, host: dict[str, Any]) -> None:
        """Add a host."""
        await self._begin()
        known = self._ray_nodes.get(host["ray_node"], "")
        memory = await self._memory_of(host["ray_node"])
        node = Node(host["name"], memory, memory, draining=host["draining"])
        site = Site(node, host["ray_node"], host["mark"], host["address"], host["port"])
        self._names.join(site)
        self._tell_losses()
        self._marks[host["ray_node"]] = host["mark"]
        self._pids[host["mark"]] = {**host["pids"], "directory": host["directory"]}
        self._problems.pop(known or host["name"], None)

    # -- for clients -----------------------------------------------------------------------------------------------------

    async def credentials(self) -> dict[str, Any]:
        """Return the credentials that clients need to connect to hosts."""
        await self._begin()
        return {"credentials": self._credentials, "version": __version__}

    async def place_at_once(self, wanted: Sequence[tuple[str, int, Sequence[str]]]) -> list[dict[str, Any] | None]:
        """Return the result of `place` for each session that need not wait, and None for the others.

        Args:
            wanted: The name, the memory and the modules of each session, as for `place`.
        """
        await self._begin()
        placed: list[dict[str, Any] | None] = []
        for name, memory, preload in wanted:
            found = None
            if not self._queue or self._names.find(name):  # others have waited for longer
                found = self._names.place(name, self._wanted(memory, preload))
            placed.append(self._where(found) if isinstance(found, Site) else None)
        return placed

    def _wanted(self, memory: int, preload: Sequence[str]) -> Wanted:
        return Wanted(memory or self._options.session_memory, frozenset(preload))

    async def place(self, name: str, memory: int, preload: Sequence[str], patience: float) -> dict[str, Any]:
        """Return the location of an existing or new session; wait for room if necessary.

        Args:
            name: The session's name.
            memory: Bytes that it needs; 0 for the cluster's default.
            preload: Modules to have imported.
            patience: Seconds to wait.
        """
        await self._begin()
        wanted = self._wanted(memory, preload)
        waiting: _Waiting | None = None
        deadline = time.monotonic() + patience
        try:
            while True:
                first = (waiting is None and self._queue) or (waiting is not None and self._queue[0] is not waiting)
                found = self._names.place(name, wanted) if not first or self._names.find(name) else None
                if isinstance(found, Site):
                    return self._where(found)
                left = deadline - time.monotonic()
                if isinstance(found, InDoubt):  # wait apart from those who wait for room, so that others are placed at once
                    if left <= 0:
                        return {"full": self._full(name, str(found), patience)}
                    await asyncio.sleep(min(left, found.seconds + 0.01, _LOOK_AGAIN))
                    continue
                if found is not None and not found.fits_later and found.nodes:
                    return {"full": f"there is no room for session {name!r}, and waiting would not help: {found}"}
                if waiting is None:
                    waiting = _Waiting(name, wanted, str(found or "others wait before it"))
                    self._queue.append(waiting)
                elif found is not None:
                    waiting.why = str(found)
                if left <= 0:
                    ahead = self._queue.index(waiting)
                    others = f" ({ahead} callers wait before it)" if ahead else ""
                    return {"full": self._full(name, waiting.why, patience) + others}
                waiting.turn.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, 5.0)):
                        await waiting.turn.wait()
        finally:
            if waiting is not None:
                self._queue.remove(waiting)
                self._serve()

    async def reserve(self, names: Sequence[str], mark: str, memory: int) -> dict[str, Any]:
        """Reserve names on the host of a session for its branches."""
        await self._begin()
        site = self._names.sites.get(mark)
        if site is None or site.why:
            return {"lost": self._why_lost(mark)}
        if site.node.draining:
            return {
                "full": f"node {site.node.name} is draining and accepts no branches: try again when its sessions have moved"
            }
        if (doubt := self._names.doubt) is not None:
            await asyncio.sleep(doubt.seconds)
        if taken := self._names.reserve(names, mark, memory or self._options.session_memory):
            return {"taken": taken}
        return self._where(site)

    async def locate(self, key: str, suspect: str = "") -> dict[str, Any]:
        """Return the location of a session, by its name or by the mark of its host.

        Args:
            key: The name or the mark.
            suspect: A host whose connection was lost: wait a moment to learn its fate.
        """
        await self._begin()
        if suspect and (site := self._names.sites.get(suspect)) is not None and not site.why:
            heard = self._heard[suspect] = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SUSPECT * 0.8):
                    await heard.wait()
        site = self._names.sites.get(key) or self._names.find(key)
        if site is None and (doubt := self._names.doubt) is not None and key not in self._names.lost:
            await asyncio.sleep(min(doubt.seconds, 5.0))
            site = self._names.sites.get(key) or self._names.find(key)
        if site is None:
            return {"lost": self._names.lost.get(key, "")}
        if site.why:
            return {"lost": self._why_lost(site.mark)}
        return self._where(site)

    async def heirs(self, mark: str) -> list[dict[str, Any]]:
        """Return the hosts to which sessions have moved that were created on another one."""
        await self._begin()
        return [self._where(site) for site in self._names.heirs(mark)]

    async def until_lost(self, mark: str) -> str:
        """Wait until a host is lost, and return why: its clients wait for answers that may never arrive."""
        await self._begin()
        while True:
            site = self._names.sites.get(mark)
            if site is not None and site.why:
                return site.why
            if site is None and self._names.doubt is None:
                return self._names.lost.get(mark, "its host has ended")
            changed = self._lost
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK if site is None else 60.0):
                    await changed.wait()

    async def everywhere(self) -> list[dict[str, Any]]:
        """Return all reachable hosts."""
        await self._begin()
        return [self._where(site) for site in self._names.sites.values() if site.until and not site.why]

    async def status(self) -> dict[str, Any]:
        """Return nodes, sessions and the waiting queue, for people."""
        await self._begin()
        now = time.monotonic()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "lease": self._options.lease,
            "nodes": [
                {
                    "name": site.node.name,
                    "ray_node": site.ray_node,
                    "mark": site.mark,
                    "address": f"{site.address}:{site.port}",
                    "state": f"lost: {site.why}" if site.why else "draining" if site.node.draining else "ready",
                    "sessions": len(site.sessions),
                    "running": site.about.get("running", 0),
                    "used": site.about.get("memory", 0),
                    "memory": site.node.memory,
                    "free": site.node.free,
                    "problems": [*site.about.get("problems", [])],
                    "lease": round(max(site.until - now, 0.0), 2),
                    "processes": self._pids.get(site.mark, {}),
                }
                for site in self._names.sites.values()
                if site.until
            ],
            "waiting": [
                {"name": one.name, "memory": one.wanted.memory, "why": one.why, "seconds": round(now - one.since, 1)}
                for one in self._queue
            ],
            "problems": dict(self._problems),
            "doubt": str(self._names.doubt or ""),
        }

    async def status_soon(self, patience: float) -> dict[str, Any]:
        """Return `status` once there is a host or a problem on every node.

        Args:
            patience: The maximum number of seconds to wait.
        """
        await self._begin()
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            ready = {site.ray_node for site in self._names.sites.values() if site.until and not site.why}
            bad = {node for node, name in self._ray_nodes.items() if name in self._problems}
            if self._ray_nodes.keys() <= ready | bad:
                break
            await asyncio.sleep(0.05)
        return await self.status()

    async def drain(self, node: str, on: bool, seconds: float = 0.0) -> dict[str, Any]:
        """Drain a node, so that it takes no new sessions and moves its sessions away; or end the draining.

        Args:
            node: The node's name, or a prefix of Ray's id.
            on: Whether to drain it.
            seconds: How long to wait for busy sessions, if this starts to move sessions.

        Returns:
            The progress, or why the node cannot be found.
        """
        await self._begin()
        alive = [site for site in self._names.sites.values() if site.until and not site.why]
        found = [site for site in alive if node == site.node.name or (node and site.ray_node.startswith(node))]
        if len(found) != 1:
            there = ", ".join(site.node.name for site in alive) or "none"
            return {"unknown": f"there {'is no node' if not found else 'are several nodes'} {node!r}; the nodes are {there}"}
        site = found[0]
        if not on:
            self._stop_emptying(site.mark)
        await self._hosts[site.ray_node].ask("drain", self._names.epoch, on)
        site.node.draining = on
        self._serve()
        emptying = self._empty(site, seconds) if on else None
        return {
            "name": site.node.name,
            "sessions": site.sessions,
            "moved": 0 if emptying is None else emptying.moved,
            "left": {} if emptying is None else dict(emptying.left),
            "over": emptying is None or emptying.task.done(),
        }

    def _empty(self, site: Site, seconds: float, *, ends: bool = False) -> Emptying:
        emptying = self._emptying.get(site.mark)
        if emptying is None:
            emptying = self._emptying[site.mark] = Emptying(self._names, site, self._move, seconds, ends=ends)
        return emptying

    def _stop_emptying(self, mark: str) -> None:
        if (emptying := self._emptying.pop(mark, None)) is not None:
            emptying.task.cancel()

    async def _move(self, here: Site, there: Site, name: str, seconds: float, whole: bool) -> str:
        """Make a host take a session over from another one; see `emptying.Move`.

        Raises:
            CellblockError: The host cannot.
        """
        if self._tls is None:
            self._tls = await asyncio.to_thread(context_of, self._credentials)
        link = DaemonLink(connect=lambda: connect(Where(**self._where(there))), tls=self._tls)
        grant = self._names.grant(there)
        try:
            moved = await link.call(TakeOver(name, here.address, here.port, grant, round(seconds * 1000), whole))
            return mark_of(moved["kernel_id"])
        finally:
            await link.close()

    async def stop(self) -> None:
        """End all hosts with their sessions. The caller kills this actor."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
        for mark in [*self._emptying]:
            self._stop_emptying(mark)
        epoch = 0 if self._numbered is None else self._names.epoch
        ends = [asyncio.ensure_future(host.ask("stop", epoch)) for host in self._hosts.values()]
        await asyncio.wait(ends, timeout=15) if ends else None
        for host in self._hosts.values():
            host.kill()

    # -- looking after nodes ---------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        while not self._stopping:
            assert self._nodes is not None
            with suppress(Exception):  # Ray's control service may be restarting
                if (latest := await self._nodes.latest()) > self._names.epoch:
                    self._successor = latest
                self._see(await self._nodes.all())
                self._begun.set()
                await self._follow_draining(await self._nodes.draining())
            before = len(self._names.sites)
            self._names.expire()
            if len(self._names.sites) != before:
                self._tell_losses()
            self._serve()
            await self._ask_for_nodes()
            await asyncio.sleep(_LOOK)

    async def _follow_draining(self, draining: Mapping[str, float]) -> None:
        """Drain the nodes that Ray drains, such as those that a cloud reclaims."""
        for ray_node, seconds in draining.items():
            site = self._names.sites.get(self._marks.get(ray_node, ""))
            if site is not None and site.until and not site.why and not site.node.draining:
                site.node.draining = True
                self._empty(site, min(max(seconds * 0.9, 1.0), _LONG), ends=True)

    def _see(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        alive = {}
        for node in nodes:
            if node["Alive"] and (not self._options.on or self._options.on in node["Resources"]):
                alive[node["NodeID"]] = node
        for ray_node in alive.keys() - self._making.keys():
            self._ray_nodes[ray_node] = _name_of(alive[ray_node])
            self._making[ray_node] = asyncio.create_task(self._keep_host(ray_node, alive[ray_node]))
        for ray_node in self._making.keys() - alive.keys():
            self._making.pop(ray_node).cancel()
            self._hosts.pop(ray_node, None)
            self._problems.pop(self._ray_nodes.pop(ray_node), None)
            mark = self._marks.pop(ray_node, "")
            self._stop_emptying(mark)
            if mark and not self._stopping:
                self._lose(mark, "Ray says that the node is dead")

    async def _keep_host(self, ray_node: str, node: Mapping[str, Any]) -> None:
        """Create the host of a node, unless it exists, and watch for its end."""
        name, resources = self._ray_nodes[ray_node], node["Resources"]
        options = self._options
        cpus = resources.get("CPU", 0) // 2 if options.cpus is None else options.cpus
        while True:
            try:
                assert self._nodes is not None
                arguments = (name, node["NodeManagerAddress"], __version__, self._credentials, options.to_dict())
                memory = await self._memory_of(ray_node)
                host = self._nodes.host(ray_node, cpus=cpus, memory=memory, on=options.on, arguments=arguments)
                self._hosts[ray_node] = host
                await host.ask("describe")
                self._problems.pop(name, None)
                await host.ask("watch")
                raise DaemonError("the node's program has ended, and is started again")  # the actor ends last
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if (mark := self._marks.pop(ray_node, "")) and not self._stopping:
                    self._lose(mark, "its host ended")
                self._problems[name] = _reason(error)
            await asyncio.sleep(_LOOK)

    async def _memory_of(self, ray_node: str) -> int:
        if self._options.memory is not None:
            return self._options.memory
        assert self._nodes is not None
        for node in await self._nodes.all():
            if node["NodeID"] == ray_node:
                return int(node["Resources"].get("memory", 0)) // 2
        return 0

    def _lose(self, mark: str, why: str) -> None:
        self._names.lose(mark, why)
        self._heard.setdefault(mark, asyncio.Event()).set()
        self._tell_losses()

    def _tell_losses(self) -> None:
        self._lost.set()
        self._lost = asyncio.Event()

    async def _ask_for_nodes(self) -> None:
        """Tell Ray's autoscaler what waiting sessions need."""
        wanted = [{"memory": float(one.wanted.memory)} for one in self._queue][:1000]
        if wanted != self._asked:
            self._asked = wanted
            assert self._nodes is not None
            await self._nodes.request(wanted)

    def _serve(self) -> None:
        """Wake the first waiting caller."""
        if self._queue:
            self._queue[0].turn.set()

    def _where(self, site: Site) -> dict[str, Any]:
        return {
            "node": site.node.name,
            "mark": site.mark,
            "address": site.address,
            "port": site.port,
            "grant": self._names.grant(site),
        }

    def _why_lost(self, mark: str) -> str:
        site = self._names.sites.get(mark)
        if site is None:
            return f"the node is lost: {self._names.lost.get(mark, 'the director has no record of it')}"
        return f"node {site.node.name} is lost: {site.why}"

    def _full(self, name: str, why: str, patience: float) -> str:
        problems = "".join(f"; node {node}: {problem}" for node, problem in self._problems.items())
        return (
            f"no node had room for session {name!r} within {patience:g} s: {why}{problems}. End sessions, add nodes to the "
            "Ray cluster, or give hosts more memory ('cellblock cluster status' shows them)"
        )


def _name_of(node: Mapping[str, Any]) -> str:
    name = node.get("NodeName") or node["NodeManagerHostname"]
    return f"{name}-{node['NodeID'][:6]}"


def _reason(error: Exception) -> str:
    """Return the last line of Ray's message, which has the cause on the node."""
    lines = [line.strip() for line in str(getattr(error, "cause", None) or error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(error).__name__
