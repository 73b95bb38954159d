"""The tree of errors is the one that is documented, and each can be caught as what people expect."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

from cellblock import errors
from cellblock.errors import (
    BusyError,
    CellblockError,
    CodeExecutionError,
    DaemonError,
    ExecutionTimeoutError,
    NotRunError,
    OutcomeUnknownError,
    did_you_mean,
    failure,
    named,
)
from cellblock.model import CodeExecutionResult

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, BaseException)}
LINE = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>\w+)(?: .*\(also an? (?P<also>\w+)\))?")


def documented() -> dict[str, set[str]]:
    """Return the parents of every class, as the docstring draws them."""
    tree = (errors.__doc__ or "").partition("::\n\n")[2]
    found: dict[str, set[str]] = {}
    above: list[tuple[int, str]] = []
    for line in tree.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["branch"])
        above = [entry for entry in above if entry[0] < depth]
        found[match["name"]] = {above[-1][1]} if above else {"Exception"}
        if match["also"]:
            found[match["name"]].add(match["also"])
        above.append((depth, match["name"]))
    return found


def test_the_tree_of_the_documentation_is_the_tree_of_the_classes() -> None:
    assert documented() == {name: {base.__name__ for base in kind.__bases__} for name, kind in CLASSES.items()}


def test_every_error_has_a_docstring_of_its_own() -> None:
    assert [name for name, kind in CLASSES.items() if not vars(kind).get("__doc__")] == []


def test_errors_of_the_executor_carry_the_result() -> None:
    cases: list[type[CodeExecutionError | ExecutionTimeoutError]] = [CodeExecutionError, ExecutionTimeoutError]
    for kind in cases:
        result = CodeExecutionResult(status="error", text="x")
        error = kind("message", result)
        assert str(error) == "message"
        assert error.result is result
        assert kind("message").result is None


def test_errors_pass_between_processes() -> None:
    for kind in CLASSES.values():
        copy = pickle.loads(pickle.dumps(kind("message")))
        assert (type(copy), str(copy)) == (kind, "message")


def test_an_error_is_remade_from_its_details() -> None:
    for name, kind in CLASSES.items():
        details = named(name)("message").details()
        back = named(name).remade("message", details)
        assert (type(back), str(back), back.details()) == (kind, "message", details)


def test_details_that_make_no_sense_are_ignored() -> None:
    cases: list[tuple[dict[str, Any], float]] = [
        ({"retry_after": 2.5, "new": 1}, 2.5),
        ({"retry_after": 3}, 3),
        ({"retry_after": "soon"}, 1.0),
        ({}, 1.0),
    ]
    for details, after in cases:
        assert BusyError.remade("full", details).details() == {"retry_after": after}


def test_a_class_of_a_newer_version_is_an_error_of_the_daemon() -> None:
    assert named("OfTomorrowError") is named("re") is DaemonError


def test_the_error_of_an_execution_says_which_one_it_was() -> None:
    cases: list[tuple[dict[str, str], type[CellblockError]]] = [
        ({"error": "NotRunError", "message": "why", "ran": "no"}, NotRunError),
        ({"error": "OfTomorrowError", "message": "why", "ran": "yes"}, DaemonError),
        ({"error": "DaemonError", "message": "why", "ran": "unknown"}, OutcomeUnknownError),
        ({"error": "OutcomeUnknownError", "message": "why", "ran": "yes"}, OutcomeUnknownError),
    ]
    for data, kind in cases:
        error = failure(data, "abc")
        assert (type(error), str(error)) == (kind, "why")
        assert kind is not OutcomeUnknownError or error.details() == {"execution": "abc"}


def test_a_name_that_is_near_is_proposed() -> None:
    assert did_you_mean("sesion", ["session", "other"]) == "; did you mean 'session'?"
    assert did_you_mean("zzz", ["session"]) == ""
    assert did_you_mean("x" * 100, ["x" * 100]) == ""  # it would take long
