"""Names of two policies, compared: what covers what, and what that costs."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cellblock import InvalidInputError, Policy
from cellblock.walls.sandbox.narrowing import Denials, Hosts, Paths
from cellblock.walls.sandbox.policy import Filesystem, Network


def test_a_path_covers_what_is_inside() -> None:
    cases: list[tuple[tuple[str, ...], str, bool]] = [
        (("/a",), "/a", True),
        (("/a",), "/a/b", True),
        (("/a/",), "/a/b", True),
        (("/a/",), "/a", False),
        (("/a",), "/ab", False),
        (("/a",), "/a/../b", False),
        (("/a/../b",), "/a/../b", True),
        (("/",), "/x", True),
        (("/",), "x", True),
        (("/",), "~/x", False),
        ((".",), "x/y", True),
        ((".",), "/x", False),
        (("~",), "~/x", True),
        ((), "x", False),
    ]
    for allowed, path, covered in cases:
        assert Paths(allowed).cover(path) is covered


def test_a_pattern_covers_the_hosts_below() -> None:
    cases: list[tuple[tuple[str, ...], str, bool]] = [
        (("a.org",), "a.org", True),
        (("a.org",), "b.a.org", False),
        (("*.a.org",), "b.a.org", True),
        (("*.a.org",), "c.b.a.org", True),
        (("*.a.org",), "a.org", False),
        (("*.a.org",), "ba.org", False),
        (("*.a.org",), "*.b.a.org", False),
        (("*.a.org",), "*.a.org", True),
        (("*.a.org:443",), "b.a.org:443", True),
        (("*.a.org:443",), "b.a.org", False),
    ]
    for allowed, host, covered in cases:
        assert Hosts(allowed).cover(host) is covered


def test_a_denial_holds_what_is_inside_or_cannot_be_compared() -> None:
    cases: list[tuple[tuple[str, ...], str, bool]] = [
        (("/a",), "/a", True),
        (("/a",), "/a/b", True),
        (("/a",), "//a/./b", True),
        (("/a",), "/ab", False),
        (("/a",), "a", True),
        (("a", "/b"), "/c", True),
        (("/a",), "/b/../a", True),
        (("/a/..",), "/x", True),
        ((), "..", False),
    ]
    for denied, path, may in cases:
        assert Denials(denied).may_hold(path) is may


def test_a_thousand_names_cost_a_thousand_times_one() -> None:
    """They come with requests, and are compared in the host's loop."""
    many = range(1000)
    policy = Policy(
        Filesystem(*(tuple(f"/{kind}/b/c/{number}" for number in many) for kind in "rwxy")),
        Network(tuple(f"{number}.org" for number in many), ()),
    )
    other = Policy(policy.filesystem, Network((*policy.network.allow[1:], "0.org"), ()))
    calls = 0

    def count(*event: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        policy.narrow(other)
    finally:
        sys.setprofile(None)
    assert 5_000 < calls < 200_000


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(Filesystem(read=("/a",) * 4001)), "read has 4001 items, and the limit is 4000"),
        (Policy(Filesystem(deny_write=("/" * 4097,))), "must be a text of 1 to 4096 characters"),
        (Policy(network=Network(deny=("",))), "must be a text of 1 to 4096 characters"),
        (Policy(network=Network(allow=(5,))), "allow: 5 must be a text"),  # type: ignore[arg-type]
    ],
    ids=["many", "long", "empty", "a number"],
)
def test_names_are_bounded(policy: Policy, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        policy.checked()
