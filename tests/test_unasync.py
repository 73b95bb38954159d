"""What is for plain synchronous Python is what its twins for asyncio make."""

from __future__ import annotations

import pytest

from unasync import TWINS, Twins


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins.folder)
def test_it_is_what_is_made_and_has_no_words_of_asyncio(twins: Twins) -> None:
    for path, text in twins.made().items():
        assert path.read_text(encoding="utf-8") == text, "run python tests/unasync.py"
        assert not [word for word in ("await", "asyncio", "Async", "aclosing", "coroutine") if word in text]


def test_a_rewriting_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"there is nothing like nobody writes this in async_client\.py"):
        Twins("fronts/client", {"async_client.py": "client.py"}, [("nobody writes this", "")]).made()
