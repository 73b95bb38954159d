"""The locations of sessions in a cluster: names, placements, leases, and losses. Knows neither Ray nor sockets.

A name is given to one node at a time, until that node certainly has no session with this name:

- A placement is valid for a limited time, by the clock of the node. The node reports its names in a census with its time. A
  name that is missing in a census after the placement's expiry is free again.
- A node answers only while its lease lasts, counted from before its request. The director counts from the arrival of the
  request, with a margin for clock drift, so here the lease ends later. A node that does not renew its lease is lost. Its
  names are free when the lease has ended, or earlier if all of its processes have certainly ended.
- After a restart, nothing is known. Names that no node reports are free only when every node has reported its names, or can
  no longer have a lease.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellblock.cluster.placement import Node, NoRoom, Wanted, place
from cellblock.service.daemon.lease import GRANT

_MARGIN, _DRIFT = 0.2, 1.05
_MOVES = 1.0
"""Seconds between two checks whether a session has moved."""

_MOST_LOST = 100_000


@dataclass(slots=True)
class Promise:
    """A name that is given to a node.

    Attributes:
        site: The node.
        until: The time of the node's clock after which the promise needs an existing session.
        memory: Bytes reserved for the session.
    """

    site: Site
    until: int
    memory: int


@dataclass(slots=True)
class Site:
    """A host of sessions: one run of a node's daemon.

    Attributes:
        node: The node, for placement.
        ray_node: Ray's id of the node.
        mark: The suffix of its sessions' ids.
        address: The address of its daemon.
        port: The port of its daemon.
        time: The time of its clock at its last census.
        until: When its lease ends, by the director's clock.
        about: Its daemon's description of itself.
        names: The promises, by name.
        told: The names in its last census.
        origins: The marks of the hosts that created sessions which are, or were, here.
        why: Why it is lost; empty if it is not.
    """

    node: Node
    ray_node: str
    mark: str
    address: str
    port: int
    time: int = 0
    until: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)
    names: dict[str, Promise] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    origins: set[str] = field(default_factory=set)
    why: str = ""

    @property
    def sessions(self) -> list[str]:
        """The names of its sessions, including those about to be created."""
        return sorted(name for name, promise in self.names.items() if promise.memory or name in self.told)


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An unknown state of a name. As text, it gives the reason.

    Attributes:
        seconds: The maximum duration.
    """

    why: str
    seconds: float

    def __str__(self) -> str:
        return self.why


class Names:
    """The knowledge of one director.

    Attributes:
        epoch: The director's number, which is higher for later directors.
        lease: Seconds that a node may answer after it requested a lease.
        sites: The hosts by mark, including lost ones whose lease has not ended.
        lost: The reasons of the last losses: of hosts by mark, and of sessions by name.
    """

    def __init__(self, lease: float, epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.epoch = epoch
        self.lease = lease
        self.sites: dict[str, Site] = {}
        self.lost: OrderedDict[str, str] = OrderedDict()
        self._names: dict[str, Promise] = {}
        self._moving: dict[str, Promise] = {}
        """Where sessions move to that are, or were, on another node."""
        self._clock = clock
        self._awaited: set[str] = set()
        self._settled_at = 0.0

    @property
    def longest(self) -> float:
        """Seconds after which an earlier lease has certainly ended."""
        return self.lease * _DRIFT + _MARGIN

    # -- after a restart -------------------------------------------------------------------------------------------------

    def await_reports(self, ray_nodes: Iterable[str]) -> None:
        """Keep unknown names in doubt until these nodes have reported theirs, or can no longer have a lease."""
        self._awaited = {*ray_nodes}
        self._settled_at = self._clock() + self.longest

    @property
    def doubt(self) -> InDoubt | None:
        """Why unknown names may be in use; None if they are free."""
        left = self._settled_at - self._clock()
        if not self._awaited or left <= 0:
            self._awaited = set()
            return None
        return InDoubt(
            f"the director has just started, and {len(self._awaited)} nodes have not reported their sessions yet", left
        )

    # -- nodes -----------------------------------------------------------------------------------------------------------

    def join(self, site: Site) -> None:
        """Add a host, idempotently. It has ensured that earlier hosts of its node have ended."""
        for mark, other in [*self.sites.items()]:
            if other.ray_node == site.ray_node and mark != site.mark:
                self.end(mark, "its host on the node ended")
        if site.mark not in self.sites:
            self.sites[site.mark] = site

    def census(
        self, mark: str, at: int, names: Collection[str] | None, about: Mapping[str, Any], made: Collection[str] = ()
    ) -> bool:
        """Renew the lease of a host that has reported its names.

        Args:
            mark: The host's mark.
            at: The time of its clock when it looked.
            names: The names; None: unchanged.
            about: Its daemon's description of itself.
            made: Names of sessions that were created since its last census, and may have ended.

        Returns:
            Whether the lease is renewed. Otherwise the host is lost, and has to start over.
        """
        site = self.sites.get(mark)
        if site is None or site.why or (site.until and self._clock() >= site.until):
            return False
        site.time, site.about = at, about
        site.origins.update(about.get("origins", ()))
        site.node.warm = {frozenset(modules) for modules in about.get("warm", ())}
        site.until = self._clock() + self.longest
        self._awaited.discard(site.ray_node)
        before = site.told.union(made)
        if names is not None:
            site.told = frozenset(names)
            for name in site.told - site.names.keys():
                moves = name in self._names  # from another node, by an earlier director
                self._promise(self._moving if moves else self._names, name, site, 0, 0)
        for name in before - site.told:  # they have ended; valid placements may still use their names
            self._give_back(name, site)
        for name, promise in [*site.names.items()]:
            if promise.until < at and name not in site.told:
                self._free(name, site)
        return True

    def lose(self, mark: str, why: str) -> None:
        """Record that a host is lost. Its names stay in doubt until its lease has ended."""
        site = self.sites.get(mark)
        if site is not None and not site.why:
            site.why = why

    def end(self, mark: str, why: str) -> None:
        """Record that all processes of a host have ended."""
        site = self.sites.pop(mark, None)
        if site is None:
            return
        site.why = site.why or why
        self._remember(mark, site.why)
        for name in [*site.names]:
            if self._free(name, site):
                self._remember(name, f"session {name!r} was on node {site.node.name}, and is lost: {site.why}")

    def expire(self) -> None:
        """Record expired leases."""
        now = self._clock()
        for mark, site in [*self.sites.items()]:
            if site.until and now >= site.until:
                self.end(mark, "it did not renew its lease in time: it was stopped, overloaded or cut off")

    def _remember(self, key: str, why: str) -> None:
        self.lost[key] = why
        self.lost.move_to_end(key)
        while len(self.lost) > _MOST_LOST:
            self.lost.popitem(last=False)

    # -- names -----------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Site | None:
        """Return the host that has a name, or None."""
        promise = self._names.get(name)
        return None if promise is None else promise.site

    def place(self, name: str, wanted: Wanted) -> Site | NoRoom | InDoubt:
        """Return the host that has, or will create, the session with a name."""
        if (moves := self._moving.get(name)) is not None:
            return InDoubt(f"session {name!r} is moving to node {moves.site.node.name}", _MOVES)
        if (promise := self._names.get(name)) is not None:
            if promise.site.why:
                left = max(promise.site.until - self._clock(), 0.0)
                what = f"node {promise.site.node.name}, which had session {name!r}, is lost ({promise.site.why})"
                return InDoubt(f"{what}, and may still run it for {left:.1f} s", left)
            promise.until = promise.site.time + GRANT
            if not promise.memory:
                promise.memory = wanted.memory
                promise.site.node.free -= wanted.memory
            return promise.site
        if (doubt := self.doubt) is not None:
            return doubt
        sites = {id(site.node): site for site in self.sites.values() if site.until and not site.why}
        chosen = place([site.node for site in sites.values()], wanted, random.random)
        if isinstance(chosen, NoRoom):
            return chosen
        site = sites[id(chosen)]
        self._promise(self._names, name, site, site.time + GRANT, wanted.memory)
        self.lost.pop(name, None)
        return site

    def reserve(self, names: Iterable[str], mark: str, memory: int) -> str:
        """Reserve names on a host for branches of a session there; return a name that is in use, or empty.

        A host that was given a name and has not created its session may get it again, and orders the requests itself.
        """
        site, new = self.sites[mark], [*names]
        given = {name: promise for name in new if (promise := self._names.get(name)) is not None}
        taken = (name for name, promise in given.items() if promise.site is not site or name in site.told)
        if (used := next(taken, "")) or site.why:
            return used or new[0]
        for name in new:
            if name in given:
                given[name].until = site.time + GRANT
                continue
            self._promise(self._names, name, site, site.time + GRANT, memory)
            self.lost.pop(name, None)
        return ""

    def grant(self, site: Site) -> str:
        """Return the grant for sessions that were just placed on a host (`Lease.check`)."""
        return f"{self.epoch}:{site.time + GRANT}"

    # -- moving ----------------------------------------------------------------------------------------------------------

    def move(self, name: str, mark: str) -> Site | NoRoom | InDoubt | None:
        """Return the host to which a session will move from another one, which has it until `moved`.

        Args:
            name: The session.
            mark: The host that has it.

        Returns:
            The new host; None if the session is no longer there; otherwise, why it cannot move now.
        """
        promise = self._names.get(name)
        if promise is None or promise.site.mark != mark or name not in promise.site.told:
            return None
        if (other := self._moving.get(name)) is not None:
            return InDoubt(f"it is moving to node {other.site.node.name} already", _MOVES)
        wanted = Wanted(promise.memory)
        sites = {id(site.node): site for site in self.sites.values() if site.until and not site.why and site.mark != mark}
        chosen = place([site.node for site in sites.values()], wanted, random.random)
        if isinstance(chosen, NoRoom):
            return chosen
        site = sites[id(chosen)]
        self._promise(self._moving, name, site, site.time + GRANT, wanted.memory)
        return site

    def moved(self, name: str, mark: str, origin: str) -> None:
        """Record that a session has moved to a host, and left the previous one.

        Args:
            name: The session.
            mark: The host.
            origin: The mark of the host that created the session.
        """
        if (there := self._moving.get(name)) is None or there.site.mark != mark:
            return
        if (before := self._names.get(name)) is not None:
            self._free(name, before.site)
        there.site.told |= {name}
        there.site.origins.add(origin)

    def stayed(self, name: str, mark: str) -> None:
        """Record that a session has not moved to a host, which reports that it does not have it."""
        if (there := self._moving.get(name)) is not None and there.site.mark == mark:
            there.site.told -= {name}
            self._free(name, there.site)

    def heirs(self, mark: str) -> list[Site]:
        """Return the hosts to which sessions have moved that were created on another one."""
        return [site for site in self.sites.values() if mark in site.origins and site.mark != mark and not site.why]

    # -- promises --------------------------------------------------------------------------------------------------------

    def _promise(self, among: dict[str, Promise], name: str, site: Site, until: int, memory: int) -> None:
        among[name] = site.names[name] = Promise(site, until, memory)
        site.node.free -= memory

    def _give_back(self, name: str, site: Site) -> None:
        """Release the memory that a host has reserved for a session."""
        if (promise := site.names.get(name)) is not None:
            site.node.free += promise.memory
            promise.memory = 0

    def _free(self, name: str, site: Site) -> bool:
        """End the promise of a host. If the session has moved, its new host has the name now.

        Returns:
            Whether the name is free.
        """
        self._give_back(name, site)
        promise = site.names.pop(name)
        if self._moving.get(name) is promise:
            del self._moving[name]
        elif self._names.get(name) is promise:
            del self._names[name]
            if (there := self._moving.pop(name, None)) is not None:
                self._names[name] = there
        return name not in self._names
