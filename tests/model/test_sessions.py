"""The outcomes of executions of named sessions."""

from __future__ import annotations

import pytest

from cellblock import NotRunError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.sessions import ExecutionEvent, outcome_of


def test_the_last_event_of_an_execution_is_its_result() -> None:
    result = CodeExecutionResult(text="x")
    assert outcome_of(ExecutionEvent(2, "result", result.to_dict(raw=True)), "abc") == result


def test_what_could_not_be_run_says_why() -> None:
    data = {"error": "NotRunError", "message": "the daemon ended", "ran": "no"}
    with pytest.raises(NotRunError, match="the daemon ended"):
        outcome_of(ExecutionEvent(1, "failed", data), "abc")


def test_an_outcome_that_nobody_knows_names_the_execution() -> None:
    cases: list[ExecutionEvent | None] = [
        None,
        ExecutionEvent(1, "stream", {"name": "stdout", "text": "x"}),
        ExecutionEvent(1, "failed", {"error": "OutcomeUnknownError", "message": "who knows", "ran": "unknown"}),
    ]
    for last in cases:
        with pytest.raises(OutcomeUnknownError) as caught:
            outcome_of(last, "abc")
        assert caught.value.execution == "abc"
