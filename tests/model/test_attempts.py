"""The attempts of code that is run again until it succeeds."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.model import CodeExecutionResult
from cellblock.model.attempts import Attempts

FAILED, DONE = CodeExecutionResult(status="error", output="no"), CodeExecutionResult(output="yes")


def test_the_first_that_succeeds_is_the_last() -> None:
    attempts = Attempts("a", 5)
    assert attempts.add(FAILED) is None
    attempts.repair("b")
    assert attempts.add(FAILED) is None
    attempts.repair(None)
    assert (attempts.code, attempts.number) == ("b", 2)
    ended = attempts.add(DONE)
    assert ended is not None
    assert (ended.status, ended.output) == ("success", "yes")
    assert [(one.attempt, one.code, one.status) for one in ended.attempts] == [
        (1, "a", "error"),
        (2, "b", "error"),
        (3, "b", "success"),
    ]


def test_after_the_last_it_is_given_up() -> None:
    ended = Attempts("a", 1).add(FAILED)
    assert ended is not None
    assert (ended.status, len(ended.attempts)) == ("max_attempts_exceeded", 1)


def test_there_is_at_least_one() -> None:
    cases: list[Any] = [0, -1, True, 1.5, "2", None]
    for most in cases:
        with pytest.raises(InvalidInputError, match="max_attempts must be at least 1"):
            Attempts("a", most)
