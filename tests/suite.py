"""What conftest.py files share. Each of these is imported under two names, and so they cannot share what changes."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from cellblock import Host

shared: list[Host] = []
"""Warm hosts that all tests use"""

selection = {"slow": True}
"""Which tests are run"""

SUMMARY = "summary"
"""A property of a test's report: what is shown at the end of the run"""

SEED = "SAMPLE_SEED"
"""The variable with the seed of samples: the date by default, so that a run that is repeated has the same sample"""

SHARE = "SAMPLE_SHARE"
"""The variable with the share of quick tests that run, 1 by default: 2 means half of them, others each day"""

_SHARES = {"slow": 12, "attack": 2, "clients": 2}
"""Of how many tests with a mark, or attacks, one runs each day"""

LEFT_OUT = pytest.StashKey[int]()
"""How many tests are not in the sample"""


def is_whole(config: pytest.Config) -> bool:
    """Return whether a run has no samples: `--whole` is given, tests are named, or what has failed runs again."""
    wanted = config.option.whole or config.option.keyword or getattr(config.option, "lf", False)
    return bool(wanted or any("::" in argument for argument in config.args))


def not_sampled(items: Sequence[pytest.Item], seed: str) -> set[pytest.Item]:
    """Choose which tests do not run.

    With a mark `sampled(share)`, one in `share` of a test's variants runs, of those with the mark slow or clients. A test
    without variants runs on one day in `share`, except an attack (tests/escape), of which a variant runs on each day. Without
    the mark, `_SHARES` has the share. Others all run, unless the variable `SHARE` has another share.
    """
    variants: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        kind = next((kind for kind in ("slow", "clients") if item.get_closest_marker(kind)), "")
        variants.setdefault((item.nodeid.partition("[")[0], kind), []).append(item)
    left_out: set[pytest.Item] = set()
    for (test, kind), found in variants.items():
        mark = found[0].get_closest_marker("sampled") if kind else None
        attack = kind == "slow" and test.startswith("tests/escape/")
        usual = _SHARES["attack" if attack else kind] if kind else int(os.environ.get(SHARE, "1"))
        share = mark.args[0] if mark else usual
        chance = random.Random(f"{seed}{test}{kind}")
        count = len(found) // share + (chance.random() * share < len(found) % share)
        count = max(count, attack)
        left_out.update(chance.sample(sorted(found, key=lambda item: item.nodeid), len(found) - count))
    return left_out


@asynccontextmanager
async def sharing(host: Host) -> AsyncIterator[Host]:
    """Have a host run for all tests that ask for it."""
    async with host:
        host.store()  # which it makes when it is first needed, and then has a descriptor of
        shared.append(host)
        yield host
        shared.remove(host)


def without_slow(params: Sequence[Any]) -> list[Any]:
    """Return the parameters of a fixture without those that are marked slow, if slow tests are not run.

    Pytest would make thousands of tests of them in every process, and leave them out then. That takes seconds.
    """
    return [param for param in params if selection["slow"] or not any(mark.name == "slow" for mark in param.marks)]


def first_quick(values: Iterable[Any], count: int = 1) -> list[ParameterSet]:
    """Return the variants of a test with all but the first ones marked slow, as one of them shows what most changes break."""
    found = [
        one if isinstance(one, ParameterSet) else pytest.param(*(one if isinstance(one, tuple) else [one])) for one in values
    ]
    return [
        pytest.param(*one.values, id=one.id, marks=[*one.marks, *([pytest.mark.slow] if number >= count else [])])
        for number, one in enumerate(found)
    ]


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests with the long ones spread among the others, and none of them near the end.

    Each process begins with tests that follow each other, and gets fewer and fewer from then on. Long ones that follow each
    other would keep one process busy for many minutes after the others have ended.
    """
    long = [item for item in items if item.get_closest_marker("long")]
    found = [item for item in items if not item.get_closest_marker("long")]
    step = len(found) * 2 // 3 // max(len(long), 1) + 1
    for number, item in enumerate(long):
        found.insert(number * step, item)
    return found


def in_turns(values: Mapping[str, Any] | Sequence[Any], *quick: str) -> list[ParameterSet]:
    """Return a kind of isolation for each value: each value is tried in one kind, and each kind with one value or more.

    For what may differ from kind to kind, and from value to value, but for different reasons: all pairs would find no more.
    One value in the sandbox that sessions have by default is quick, and those in the kinds that are named.
    """
    named = [*values.items()] if isinstance(values, Mapping) else [(None, value) for value in values]
    kinds = ["none", "native", "landlock"]
    pairs = [(kinds[turn % 3], *named[turn % len(named)]) for turn in range(max(3, len(named)))]
    return [
        pytest.param(
            kind, value, id=name and f"{kind}-{name}", marks=[] if kind in ("srt", *quick) or turn == 1 else [pytest.mark.slow]
        )
        for turn, (kind, name, value) in enumerate([*pairs, ("srt", *named[0])])
    ]
