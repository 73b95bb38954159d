"""The tree of errors is the one that is documented, and each can be caught as what people expect."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from cellblock import errors
from cellblock.errors import CellblockError, CodeExecutionError, ExecutionTimeoutError, did_you_mean
from cellblock.model import CodeExecutionResult

CLASSES = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, BaseException)}
LINE = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>\w+)(?: .*\(also an? (?P<also>\w+)\))?")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


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


def test_everything_is_a_cellblock_error() -> None:
    assert all(issubclass(kind, CellblockError) for kind in CLASSES.values())


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_says_what_it_means(name: str) -> None:
    assert "__doc__" in vars(CLASSES[name])  # its own: a class without one says None
    assert CLASSES[name].__doc__


@pytest.mark.parametrize("kind", [CodeExecutionError, ExecutionTimeoutError])
def test_errors_of_the_executor_carry_the_result(kind: type[CodeExecutionError | ExecutionTimeoutError]) -> None:
    result = CodeExecutionResult(status="error", text="x")
    error = kind("message", result)
    assert str(error) == "message"
    assert error.result is result
    assert kind("message").result is None


@pytest.mark.parametrize("name", CLASSES)
def test_errors_pass_between_processes(name: str) -> None:
    copy = pickle.loads(pickle.dumps(CLASSES[name]("message")))
    assert type(copy) is CLASSES[name]
    assert str(copy) == "message"


@pytest.mark.parametrize("kind", [CodeExecutionError, ExecutionTimeoutError])
def test_results_pass_between_processes_with_their_error(kind: type[CodeExecutionError | ExecutionTimeoutError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("message", CodeExecutionResult(text="x"))))
    assert copy.result == CodeExecutionResult(text="x")


def test_a_name_that_is_near_is_proposed() -> None:
    assert did_you_mean("sesion", ["session", "other"]) == "; did you mean 'session'?"
    assert did_you_mean("zzz", ["session"]) == ""
    assert did_you_mean("x" * 100, ["x" * 100]) == ""  # it would take long
