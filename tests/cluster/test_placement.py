from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cellblock.cluster.placement import Node, NoRoom, Wanted, place

MB = 1024**2
PANDAS, TORCH = frozenset({"pandas"}), frozenset({"torch"})


sizes = st.integers(0, 8) | st.integers(0, 2**50)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        memory = draw(sizes)
        free = draw(st.integers(0, memory))
        warm = draw(st.sets(st.sampled_from([PANDAS, TORCH])))
        made.append(Node(f"node-{number}", memory, free, warm, draw(st.booleans())))
    return made


wanted = st.builds(
    Wanted,
    memory=sizes,
    preload=st.sampled_from([frozenset[str](), PANDAS, TORCH]),
)


def takers(nodes: list[Node], session: Wanted) -> list[Node]:
    return [node for node in nodes if not node.draining and node.free >= session.memory]


@given(clusters(), wanted, st.integers())
def test_a_session_gets_a_node_exactly_if_one_can_take_it(nodes: list[Node], session: Wanted, seed: int) -> None:
    chosen = place(nodes, session, random.Random(seed).random)
    possible = takers(nodes, session)
    if possible:
        assert any(chosen is node for node in possible)
    else:
        assert isinstance(chosen, NoRoom)


@given(clusters(), wanted, st.integers())
def test_why_there_is_no_room_is_true(nodes: list[Node], session: Wanted, seed: int) -> None:
    chosen = place(nodes, session, random.Random(seed).random)
    if not isinstance(chosen, NoRoom):
        return
    open_ones = [node for node in nodes if not node.draining]
    assert (chosen.nodes, chosen.draining) == (len(nodes), len(nodes) - len(open_ones))
    assert chosen.free == max((node.free for node in open_ones), default=0) < max(session.memory, 1)
    assert chosen.fits_later == any(node.memory >= session.memory and node.memory for node in open_ones)
    assert "\n" not in str(chosen)


@given(clusters(), wanted, st.integers())
def test_nothing_is_changed(nodes: list[Node], session: Wanted, seed: int) -> None:
    before = repr(nodes)
    place(nodes, session, random.Random(seed).random)
    assert repr(nodes) == before


@given(clusters(), wanted, st.integers())
def test_a_node_that_is_not_prepared_is_taken_only_if_it_is_much_roomier(
    nodes: list[Node], session: Wanted, seed: int
) -> None:
    chosen = place(nodes, session, random.Random(seed).random)
    prepared = [node for node in takers(nodes, session) if session.is_prepared(node)]
    if isinstance(chosen, Node) and prepared and not session.is_prepared(chosen):
        assert chosen.free > 2 * min(node.free for node in prepared)


@given(clusters(), wanted, st.integers())
def test_the_fullest_of_several_nodes_is_never_taken(nodes: list[Node], session: Wanted, seed: int) -> None:
    """Which is all that two choices promise of one placement."""
    session = Wanted(session.memory)
    chosen, possible = place(nodes, session, random.Random(seed).random), takers(nodes, session)
    least = min((node.free for node in possible), default=0)
    if isinstance(chosen, Node) and len([node for node in possible if node.free == least]) == 1 < len(possible):
        assert chosen.free > least


def test_prepared_nodes_come_first() -> None:
    nodes = [Node(f"node-{number}", 1000 * MB, 900 * MB) for number in range(50)]
    nodes[7].warm, nodes[7].free = {PANDAS}, 500 * MB
    chosen = {getattr(place(nodes, Wanted(MB, PANDAS), random.random), "name", "") for _ in range(200)}
    assert chosen == {"node-7"}
    nodes[7].free = 400 * MB
    assert Counter(getattr(place(nodes, Wanted(MB, PANDAS), random.random), "name", "") for _ in range(2000))["node-7"] == 0


def test_every_node_is_reached_at_last() -> None:
    nodes = [Node(f"node-{number}", 1000, 1000) for number in range(30)]
    source = random.Random(5)
    chosen = Counter(getattr(place(nodes, Wanted(1), source.random), "name", "") for _ in range(1000))
    assert len(chosen) == 30


def test_the_reason_as_text() -> None:
    cases: list[tuple[list[Node], str]] = [
        ([], "the cluster has no nodes"),
        ([Node("a", 10 * MB, 10 * MB, draining=True)], "the only node is draining"),
        ([Node("a", 9 * MB, 9 * MB, draining=True)] * 2, "all 2 nodes are draining"),
        ([Node("a", 9 * MB, 3 * MB)], "the session needs 5 MB, and no node has more than 3 MB free"),
        ([Node("a", 4 * MB, 4 * MB)], "the session needs 5 MB, and no node has more than 4 MB for sessions"),
        (
            [Node("a", 9 * MB, 3 * MB), Node("b", 99 * MB, 99 * MB, draining=True)],
            "the session needs 5 MB, and no node has more than 3 MB free (1 of 2 nodes are draining)",
        ),
    ]
    for nodes, text in cases:
        assert str(place(nodes, Wanted(5 * MB), random.random)) == text
