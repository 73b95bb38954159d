"""Names, placements and leases, with clocks of the test's own."""

from __future__ import annotations

from cellblock.cluster.names import InDoubt, Names, Site
from cellblock.cluster.placement import Node, NoRoom, Wanted
from cellblock.service.daemon.lease import GRANT

WANTED = Wanted(memory=10)
LEASE = 10.0


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def joined(names: Names, mark: str, memory: int = 100, node: str = "") -> Site:
    """Take up a host that has told that it has no sessions."""
    site = Site(Node(f"node-{mark}", memory, memory), f"ray-{node or mark}", mark, "127.0.0.1", 1)
    names.join(site)
    assert names.census(mark, 1, [], {})
    return site


def made(lease: float = LEASE) -> tuple[Names, Clock]:
    clock = Clock()
    return Names(lease, 1, clock), clock


def test_a_name_stays_where_it_was_placed() -> None:
    names, _ = made()
    for mark in ("a", "b"):
        joined(names, mark)
    placed = [names.place("x", WANTED) for _ in range(20)]
    assert all(site is placed[0] for site in placed)
    assert isinstance(placed[0], Site)
    assert names.find("x") is placed[0]
    assert placed[0].node.free == 90


def test_a_name_is_free_again_when_a_later_census_does_not_have_it() -> None:
    names, _ = made()
    site = joined(names, "a")
    names.place("x", WANTED)
    names.census("a", GRANT, [], {})
    assert names.find("x") is site, "it may still be made: its placement is valid"
    names.census("a", GRANT + 2, ["x"], {})
    assert names.find("x") is site
    names.census("a", GRANT + 3, [], {})
    assert names.find("x") is None
    assert site.node.free == 100


def test_a_placement_that_is_given_again_is_valid_for_longer() -> None:
    names, _ = made()
    site = joined(names, "a")
    names.place("x", WANTED)
    names.census("a", GRANT - 1, [], {})
    names.place("x", WANTED)
    names.census("a", GRANT + 5, [], {})
    assert names.find("x") is site
    assert names.grant(site) == f"{names.epoch}:{GRANT + 5 + GRANT}"


def test_an_unchanged_census_keeps_its_names() -> None:
    names, _ = made()
    site = joined(names, "a")
    names.census("a", 2, ["x"], {})
    names.census("a", 3 * GRANT, None, {})
    assert names.find("x") is site


def test_names_of_a_lost_node_are_in_doubt_until_its_lease_has_ended() -> None:
    names, clock = made()
    joined(names, "a")
    names.place("x", WANTED)
    other = joined(names, "b")
    names.lose("b" if names.find("x") is other else "a", "Ray says so")
    lost = names.find("x")
    assert lost is not None
    found = names.place("x", WANTED)
    assert isinstance(found, InDoubt)
    assert "Ray says so" in str(found)
    clock.now += LEASE
    assert isinstance(names.place("x", WANTED), InDoubt), "clocks do not run alike: the node's lease may not have ended"
    clock.now += 1
    names.expire()
    assert "x" in names.lost
    survivor = next(mark for mark in ("a", "b") if mark != lost.mark)
    assert survivor not in names.sites, "it has not renewed its lease either"


def test_a_lease_that_has_ended_is_not_renewed() -> None:
    names, clock = made()
    joined(names, "a")
    clock.now += names.longest
    assert not names.census("a", 5, [], {})
    names.expire()
    assert not names.census("a", 6, [], {})
    assert "lease" in names.lost["a"]


def test_a_host_that_began_anew_frees_the_names_of_the_one_before() -> None:
    names, _ = made()
    joined(names, "a")
    names.place("x", WANTED)
    names.lose("a", "its host ended")
    again = joined(names, "b", node="a")
    assert names.place("x", WANTED) is again
    assert "a" in names.lost
    assert "x" not in names.lost, "there is a session of that name again"


def test_after_a_restart_names_are_in_doubt_until_every_node_has_told_its_own() -> None:
    names, clock = made()
    names.await_reports(["ray-a", "ray-gone"])
    joined(names, "a")
    names.census("a", 2, ["known"], {})
    assert isinstance(names.place("known", WANTED), Site)
    found = names.place("new", WANTED)
    assert isinstance(found, InDoubt)
    clock.now += names.longest / 2
    assert names.census("a", 3, None, {})
    clock.now += names.longest / 2 + 0.1
    assert isinstance(names.place("new", WANTED), Site), "the other one cannot have a lease any more"


def test_after_a_restart_nothing_is_in_doubt_if_all_have_told() -> None:
    names, _ = made()
    names.await_reports(["ray-a"])
    joined(names, "a")
    assert isinstance(names.place("new", WANTED), Site)


def test_branches_get_their_names_all_or_none() -> None:
    names, _ = made()
    joined(names, "b")
    names.place("x", WANTED)
    site = joined(names, "a")
    assert names.reserve(["y", "x"], "a", 10) == "x"
    assert names.find("y") is None
    free = site.node.free
    for _ in range(2):  # a host that has refused is asked again
        assert names.reserve(["y", "z"], "a", 10) == ""
        assert names.find("z") is site
        assert free - site.node.free == 20
    site.told = frozenset("y")
    assert names.reserve(["y", "z"], "a", 10) == "y"


def test_memory_of_a_session_that_has_ended_is_free_at_once() -> None:
    """Its name is not: a placement that was given may still be used."""
    names, _ = made()
    site = joined(names, "a")
    names.place("x", WANTED)
    assert names.census("a", 2, [], {}, made=["x"])
    assert site.node.free == 100
    assert names.find("x") is site
    names.place("x", WANTED)
    assert site.node.free == 90


def test_a_full_cluster_says_so() -> None:
    names, _ = made()
    joined(names, "a", memory=15)
    names.place("x", WANTED)
    full = names.place("y", WANTED)
    assert isinstance(full, NoRoom)
    assert full.fits_later


def told(names: Names, mark: str, at: int, *sessions: str) -> None:
    assert names.census(mark, at, sessions, {})


def two_with_x() -> tuple[Names, Site, Site]:
    """Two hosts, of which the first has told that it has the session x."""
    names, _ = made()
    first, second = joined(names, "a"), joined(names, "b")
    first.node.draining = second.node.draining = False
    told(names, "a", 2, "x")
    return names, first, second


def test_a_session_that_moves_is_where_it_was_until_it_has_moved() -> None:
    names, here, there = two_with_x()
    assert names.move("x", "a") is there
    assert names.find("x") is here
    assert isinstance(names.place("x", WANTED), InDoubt)
    assert isinstance(names.move("x", "a"), InDoubt)
    told(names, "b", 3, "x")
    assert names.find("x") is here
    names.moved("x", "b", "a")
    assert names.find("x") is there
    assert names.place("x", WANTED) is there
    assert names.heirs("a") == [there]
    told(names, "a", 4)
    told(names, "b", 5, "x")
    assert names.find("x") is there


def test_a_session_that_has_not_moved_stays() -> None:
    names, here, there = two_with_x()
    names.move("x", "a")
    told(names, "b", 3, "x")
    names.stayed("x", "b")
    assert names.place("x", WANTED) is here
    assert there.node.free == there.node.memory
    told(names, "b", 4, "x")  # it was looked at before
    assert names.find("x") is here
    told(names, "b", 5)
    assert names.place("x", WANTED) is here


def test_if_nobody_knows_whether_a_session_has_moved_hosts_tell() -> None:
    names, _, there = two_with_x()
    names.move("x", "a")
    told(names, "b", 3, "x")
    told(names, "a", 4)
    assert names.find("x") is there


def test_if_the_old_host_ends_while_a_session_moves_the_new_one_has_the_name() -> None:
    names, _, there = two_with_x()
    names.move("x", "a")
    names.end("a", "it was killed")
    assert names.find("x") is there
    told(names, "b", GRANT + 10)
    assert names.find("x") is None


def test_a_new_director_is_told_of_a_session_by_both_hosts() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        names, _ = made()
        sites = {mark: joined(names, mark) for mark in ("a", "b")}
        told(names, first, 2, "x")
        told(names, second, 2, "x")
        assert names.find("x") is sites[first]
        assert isinstance(names.place("x", WANTED), InDoubt)
        told(names, first, 3)
        assert names.find("x") is sites[second]
