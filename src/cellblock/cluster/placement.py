"""Decides on which cluster node a new session is placed: the one with more room of two random nodes.

A pure function of the nodes' known state. It changes nothing: the caller subtracts the session's memory from the node's
`free`, and adds it again when the session ends or a report of the node differs.

    chosen = place(nodes, Wanted(memory=256 * MB, preload=frozenset({"pandas"})), random.random)
    match chosen:
        case Node():
            chosen.free -= wanted.memory
        case NoRoom():
            ...  # wait if chosen.fits_later, else refuse: str(chosen) says why

Two random nodes are as good as all of them. With hundreds of nodes, the fullest one holds hardly more than the average,
even if several directors place concurrently and learn of each other's placements later. If each director chose the emptiest
node, all would choose the same one. `bench/placement.py` measures both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

_SPILL = 2
"""A node that is prepared is taken unless another one has more than this many times its free memory."""


@dataclass(slots=True)
class Node:
    """A node, as far as it is known.

    Attributes:
        name: The node's name in errors.
        memory: Bytes that its sessions may use in total.
        free: Bytes of these that are not reserved.
        warm: The sets of preloaded modules that a zygote of the node has imported.
        draining: Whether it takes no new sessions.
    """

    name: str
    memory: int
    free: int
    warm: Collection[frozenset[str]] = field(default_factory=set)
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """The needs of a new session.

    Attributes:
        memory: Bytes to reserve.
        preload: Modules to import before it starts; empty if every node is equal.
    """

    memory: int
    preload: frozenset[str] = frozenset()

    def is_prepared(self, node: Node) -> bool:
        """Return whether a session starts on a node without waiting for imports."""
        return not self.preload or self.preload in node.warm


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why no node can take a session. As text, it is one sentence for the caller.

    Attributes:
        wanted: Bytes that the session needs.
        nodes: The number of nodes.
        draining: The number of draining nodes.
        free: The maximum of free bytes on a node that is not draining; 0 if none.
        memory: The maximum of bytes that such a node can ever have free.
    """

    wanted: int
    nodes: int
    draining: int
    free: int
    memory: int

    @property
    def fits_later(self) -> bool:
        """Whether a node can take the session when others have ended, so that waiting makes sense."""
        return 0 < self.memory >= self.wanted

    def __str__(self) -> str:
        if not self.nodes:
            return "the cluster has no nodes"
        if self.draining == self.nodes:
            return f"all {self.nodes:,} nodes are draining" if self.nodes > 1 else "the only node is draining"
        draining = f" ({self.draining:,} of {self.nodes:,} nodes are draining)" if self.draining else ""
        if not self.fits_later:
            return f"the session needs {_mb(self.wanted)}, and no node has more than {_mb(self.memory)} for sessions{draining}"
        return f"the session needs {_mb(self.wanted)}, and no node has more than {_mb(self.free)} free{draining}"


def place(nodes: Sequence[Node], wanted: Wanted, random: Callable[[], float]) -> Node | NoRoom:
    """Choose a node for a session.

    Of two suitable nodes, the one with more free memory is chosen. A prepared node is preferred, unless another one has
    more than twice its free memory. Otherwise only the nodes prepared first would be used.

    Usually, only two nodes are examined. All nodes are examined only if one of the two cannot take the session, or neither
    is prepared.

    Args:
        nodes: All nodes.
        wanted: The needs of the session.
        random: Returns a number from 0 up to, but not including, 1, such as `random.random`.

    Returns:
        A node, or why no node fits.
    """
    pair = _two_of(nodes, random)
    if not pair or not all(_can_take(node, wanted) for node in pair):
        pair = _two_of([node for node in nodes if _can_take(node, wanted)], random)
    if not pair:
        return _no_room(nodes, wanted)
    prepared = [node for node in pair if wanted.is_prepared(node)] or _two_of(
        [node for node in nodes if wanted.is_prepared(node) and _can_take(node, wanted)], random
    )
    roomiest = max(pair, key=_free)
    if not prepared:
        return roomiest
    best = max(prepared, key=_free)
    return roomiest if roomiest.free > _SPILL * best.free else best


def _can_take(node: Node, wanted: Wanted) -> bool:
    return not node.draining and node.free >= wanted.memory


def _free(node: Node) -> int:
    return node.free


def _two_of(nodes: Sequence[Node], random: Callable[[], float]) -> Sequence[Node]:
    """Return two different nodes, in random order; fewer if there are fewer."""
    count = len(nodes)
    if count < 2:
        return nodes
    first = int(random() * count)
    second = (first + 1 + int(random() * (count - 1))) % count
    return nodes[first], nodes[second]


def _no_room(nodes: Sequence[Node], wanted: Wanted) -> NoRoom:
    takes = [node for node in nodes if not node.draining]
    return NoRoom(
        wanted.memory,
        len(nodes),
        len(nodes) - len(takes),
        max((node.free for node in takes), default=0),
        max((node.memory for node in takes), default=0),
    )


def _mb(size: int) -> str:
    return f"{size / 1024**2:,.0f} MB"
