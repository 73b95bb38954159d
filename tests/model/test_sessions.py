"""Records of named sessions: what a session that was there already may differ in."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError, NotRunError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.sessions import ExecutionEvent, SessionRecord, outcome_of


def record(isolate: str) -> SessionRecord:
    return SessionRecord("1", "s", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", isolate=isolate)


@pytest.mark.parametrize("options", [{}, {"sandbox": True}, {"isolate": "native"}, {"working_dir": "/elsewhere"}])
def test_a_session_is_as_isolated_as_was_asked(options: dict[str, Any]) -> None:
    record("native").check_isolation(options)


@pytest.mark.parametrize(
    ("isolate", "options", "asked"),
    [
        ("none", {"sandbox": True}, "a sandbox"),
        ("none", {"isolate": "native"}, "native"),
        ("landlock", {"isolate": "native"}, "native"),
        ("native", {"sandbox": False}, "none"),
        ("native", {"sandbox": False, "isolate": "native"}, "none"),
    ],
)
def test_another_isolation_is_an_error(isolate: str, options: dict[str, Any], asked: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^session 's' has isolate='{isolate}', not {asked}, "):
        record(isolate).check_isolation(options)


def test_the_last_event_of_an_execution_is_its_result() -> None:
    result = CodeExecutionResult(text="x")
    assert outcome_of(ExecutionEvent(2, "result", result.to_dict(raw=True)), "abc") == result


def test_what_could_not_be_run_says_why() -> None:
    data = {"error": "NotRunError", "message": "the daemon ended", "ran": "no"}
    with pytest.raises(NotRunError, match="the daemon ended"):
        outcome_of(ExecutionEvent(1, "failed", data), "abc")


@pytest.mark.parametrize(
    "last",
    [
        None,
        ExecutionEvent(1, "stream", {"name": "stdout", "text": "x"}),
        ExecutionEvent(1, "failed", {"error": "OutcomeUnknownError", "message": "who knows", "ran": "unknown"}),
    ],
)
def test_an_outcome_that_nobody_knows_names_the_execution(last: ExecutionEvent | None) -> None:
    with pytest.raises(OutcomeUnknownError) as caught:
        outcome_of(last, "abc")
    assert caught.value.execution == "abc"
