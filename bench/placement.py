"""Simulates the placement of sessions on the hosts of a cluster: how even it is, and how many placements a second it makes.

python bench/placement.py            100 and 1,000 hosts, 100,000 sessions at once; about a minute
python bench/placement.py --quick    a tenth of the sessions

No session is started: hosts are numbers. Sessions arrive at random, stay for a random time, need a random amount of memory.
There is one director, which knows of its own placements at once, and of sessions that have ended when hosts report; many hosts
report less often. Beside `cluster.placement.place`, two other ways to choose are simulated: one host at random, and the
roomiest of all.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from cellblock.cluster.director import pause  # noqa: E402
from cellblock.cluster.placement import Node, NoRoom, Wanted, place  # noqa: E402

MB = 1024**2
LIFE = 60.0
"""Seconds that a session stays on average."""

USED = 0.8
"""Part of all memory that is promised to sessions when as many arrive as leave."""

MEAN = 64 * MB
LEASE = 30.0

ACTOR_CALL = 0.73e-3
"""Seconds of one call of a Ray actor, as it was measured with Ray 2.60 on two cores: a director answers by such calls."""

Choose = Callable[[Sequence[Node], Wanted, Callable[[], float]], Node | NoRoom]


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly sessions were spread, in the second half of a simulation.

    Attributes:
        way: How hosts were chosen.
        hosts: How many there were.
        sessions: How many sessions there were at once.
        refused: How many found no host that had room, by what their director knew.
        overrun: How many were sent to a host that had no room in fact.
        fullest: The memory in use on the fullest host, as a multiple of the average: the largest that was seen.
        usual: The same, the median.
        deviation: The standard deviation of memory in use, as a part of the average: the median.
    """

    way: str
    hosts: int
    sessions: int
    refused: int
    overrun: int
    fullest: float
    usual: float
    deviation: float


def at_random(nodes: Sequence[Node], wanted: Wanted, chance: Callable[[], float]) -> Node | NoRoom:
    """Choose any host that has room."""
    for _ in range(len(nodes)):
        node = nodes[int(chance() * len(nodes))]
        if node.free >= wanted.memory:
            return node
    return NoRoom(wanted.memory, len(nodes), 0, 0, 0)


class Roomiest:
    """Chooses the host with the most free memory by what one director knows."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._of: Sequence[Node] = ()

    def __call__(self, nodes: Sequence[Node], wanted: Wanted, _: Callable[[], float]) -> Node | NoRoom:
        if nodes is not self._of:  # there was a report
            self._of, self._heap = nodes, [(-node.free, number) for number, node in enumerate(nodes)]
            heapq.heapify(self._heap)
        free, number = self._heap[0]
        node = nodes[number]
        if -free < wanted.memory:
            return NoRoom(wanted.memory, len(nodes), 0, -free, node.memory)
        heapq.heapreplace(self._heap, (free + wanted.memory, number))
        return node


WAYS: dict[str, Callable[[], Choose]] = {
    "the roomier of two": lambda: place,
    "one at random": lambda: at_random,
    "the roomiest of all": Roomiest,
}


def simulate(way: str, hosts: int, sessions: int, seed: int = 1) -> Spread:
    """Let sessions arrive and leave until as many have arrived again as there are at once."""
    chance = random.Random(seed)
    memory = int(sessions * MEAN / USED / hosts)
    free = [memory] * hosts
    view, choose, reports = _view(free, memory), WAYS[way](), pause(hosts, LEASE)
    leaving: list[tuple[float, int, int]] = []
    now, next_report, refused, overrun = 0.0, reports, 0, 0
    fullest: list[float] = []
    deviations: list[float] = []
    count, total = 0, 5 * sessions  # after three lives, as many leave as arrive
    while count < total:
        now += chance.expovariate(sessions / LIFE)
        while leaving and leaving[0][0] <= now:
            _, number, size = heapq.heappop(leaving)
            free[number] += size
        if now >= next_report:
            next_report += reports
            view = _view(free, memory)
            if count > total - sessions:
                mean = memory - sum(free) / hosts
                fullest.append((memory - min(free)) / mean)
                deviations.append((sum((memory - one - mean) ** 2 for one in free) / hosts) ** 0.5 / mean)
        count += 1
        size = int(chance.expovariate(1 / MEAN))
        chosen = choose(view, Wanted(size), chance.random)
        if isinstance(chosen, NoRoom):
            refused += 1
            continue
        number = int(chosen.name)
        chosen.free -= size
        if free[number] < size:
            overrun += 1
        free[number] -= size
        heapq.heappush(leaving, (now + chance.expovariate(1 / LIFE), number, size))
    middle = len(fullest) // 2
    return Spread(way, hosts, sessions, refused, overrun, max(fullest), sorted(fullest)[middle], sorted(deviations)[middle])


def _view(free: Sequence[int], memory: int) -> list[Node]:
    return [Node(str(number), memory, one) for number, one in enumerate(free)]


def rate(hosts: int, what: str, seconds: float = 1.0) -> float:
    """Return how many placements the code alone makes in a second of processor time, with nothing around it."""
    chance = random.Random(1)
    pandas = frozenset({"pandas"})
    nodes = [Node(str(number), 1 << 40, 1 << 39) for number in range(hosts)]
    wanted = Wanted(MEAN)
    if what == "one host in a hundred is warm":
        wanted = Wanted(MEAN, pandas)
        for node in nodes[:: min(100, hosts)]:
            node.warm = {pandas}
    elif what == "nine hosts in ten are full":
        for number, node in enumerate(nodes):
            node.free = 1 << 39 if number % 10 == 0 else 0
    elif what == "all are full":
        for node in nodes:
            node.free = 0
    count, ends = 0, time.process_time() + seconds
    while time.process_time() < ends:
        for _ in range(100):
            chosen = place(nodes, wanted, chance.random)
            if isinstance(chosen, Node):
                chosen.free -= wanted.memory
                chosen.free += wanted.memory
        count += 100
    return count / seconds


RATES = ("all have room", "one host in a hundred is warm", "nine hosts in ten are full", "all are full")


def main() -> None:
    """Simulate, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    sessions = 10_000 if quick else 100_000
    spreads = [simulate(way, hosts, sessions) for hosts in (100, 1000) for way in WAYS]
    print(
        f"{sessions:,} sessions at once, reports each second or, of 1,000 hosts, each {pause(1000, LEASE):g} s, "
        f"{USED:.0%} of the memory in use\n"
    )
    print("| hosts | chosen | fullest / average, median | worst | deviation | sent where there was no room | refused |")
    print("|---|---|---|---|---|---|---|")
    for one in spreads:
        shown = (f"{one.usual:.3f}", f"{one.fullest:.3f}", f"{one.deviation:.1%}", f"{one.overrun:,}", f"{one.refused:,}")
        print(f"| {one.hosts:,} | {one.way} | {' | '.join(shown)} |")
    rates = {hosts: {what: rate(hosts, what, 0.2 if quick else 1.0) for what in RATES} for hosts in (100, 1000)}
    print("\n| placements a second of processor time, code alone | 100 hosts | 1,000 hosts |\n|---|---|---|")
    for what in RATES:
        print(f"| {what} | {rates[100][what]:,.0f} | {rates[1000][what]:,.0f} |")
    usual = rates[1000]["all have room"]
    by_calls = 1 / (ACTOR_CALL + 1 / usual)
    print(
        f"\nOne director answers {by_calls:,.0f} placements a second, if each is a call of {ACTOR_CALL * 1000:g} ms: the call"
    )
    print(
        f"takes {ACTOR_CALL * usual:,.0f} times as long as the decision. {sessions:,} sessions that stay {LIFE:g} s each need"
    )
    print(f"{sessions / LIFE:,.0f} placements a second: {sessions / LIFE / by_calls:.1f} directors.")
    if not quick:
        figures = {"spreads": [asdict(one) for one in spreads], "rates": {str(hosts): found for hosts, found in rates.items()}}
        (ROOT / "bench" / "results" / "placement.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
