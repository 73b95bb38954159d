"""Completing among many variables finds what IPython finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.core.completer import MATCHES_LIMIT, Completer, completions_sorting_key

from cellblock import Session
from cellblock.worker import completer as module
from cellblock.worker.completer import candidates, look_at_few
from cells import ok, value
from processes import eventually

NAMES = st.text("ab_", min_size=1, max_size=6)


def _completer(names: list[str]) -> Any:
    make: Any = Completer  # without annotations
    return make(namespace=dict.fromkeys(names), global_namespace={})


@given(st.lists(NAMES, max_size=40), st.text("ab_", max_size=3))
@example(["bb_b", "ba_b"], "b_")
def test_names_are_those_that_ipython_finds(names: list[str], text: str) -> None:
    plain, ours = (_completer(names) for _ in range(2))
    look_at_few(ours)
    assert {*ours.global_matches(text)} >= {*plain.global_matches(text)} - {"__builtins__"}


@given(st.lists(NAMES, max_size=40))
def test_the_first_in_ipythons_order_are_kept(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MATCHES_LIMIT", 5)
        assert candidates(dict.fromkeys(names), "") == sorted({*names}, key=completions_sorting_key)[:5]


async def test_few_of_many_names_are_looked_at(session: Session) -> None:
    await ok(session, "globals().update({f'variable_{number}': number for number in range(3000)})")
    assert int(await value(session, "len(get_ipython().Completer.global_matches('var'))")) <= MATCHES_LIMIT + 10
    assert len((await session.complete("var", 3)).matches) == MATCHES_LIMIT
    cell = "first_one = 1\nother = 2\nfirst_"
    assert (await session.complete(cell, len(cell))).matches == ["first_one"]


async def test_a_line_that_would_take_long_is_not_completed(session: Session) -> None:
    attributes = "a." * 100_000
    assert (await session.complete(attributes, len(attributes))).matches == []
    assert (await session.complete(f"'{attributes}'\nprin", len(attributes) + 7)).matches == ["print"]
    await ok(session, "pass")


async def test_a_completion_that_is_called_off_leaves_nothing_in_the_next_cells_output(
    session: Session, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    code = f"class Slow:\n    def __dir__(self):\n        open({str(begun)!r}, 'a').close()\n        while True: pass\n"
    code += "slow = Slow()"
    assert (await session.execute(code)).ok
    for _ in range(2):
        asking = asyncio.create_task(session.complete("slow."))
        await eventually(begun.exists)
        asking.cancel()
        await asyncio.wait([asking])
        begun.unlink()
        result = await session.execute("'alive'")
        assert (result.text, result.stderr, result.recovery) == ("'alive'", "", None)
    assert await value(session, "__import__('sys').excepthook.__module__ != 'cellblock.worker.editor_answers'") is True
