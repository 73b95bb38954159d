"""`Client` is what `AsyncClient` makes."""

from __future__ import annotations

import pytest

from fronts.client.unasync import MADE, SOURCE, made


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


def test_the_synchronous_client_is_made_from_the_asynchronous_one() -> None:
    assert MADE.read_text(encoding="utf-8") == made(SOURCE.read_text(encoding="utf-8")), (
        "run python tests/fronts/client/unasync.py"
    )


def test_nothing_of_asyncio_is_left_in_it() -> None:
    text = MADE.read_text(encoding="utf-8")
    assert not [word for word in ("await", "asyncio", "Async", "aclosing", "coroutine") if word in text]


def test_a_rewriting_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(LookupError, match="there is nothing like"):
        made('"""A module."""\n')
