"""Errors become problems, and problems the same errors."""

from __future__ import annotations

import errno

from cellblock import errors
from cellblock.errors import BusyError, CellblockError, FilesError, OutcomeUnknownError, ProcessError
from cellblock.fronts.problems import code_of, error_of, problem_of

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CellblockError)]


def test_each_error_comes_back_as_itself() -> None:
    for kind in KINDS:
        problem = problem_of(kind("what happened"))
        assert 400 <= problem.status < 600
        back = error_of(problem.status, problem.to_dict())
        assert (type(back), str(back)) == (kind, "what happened")


def test_what_a_client_can_put_right_is_no_failure_of_the_server() -> None:
    cases: list[tuple[type[CellblockError], int]] = [
        (errors.NotFoundError, 404),
        (errors.CheckpointError, 409),
        (errors.UnknownCheckpointError, 404),
        (BusyError, 503),
    ]
    for kind, status in cases:
        assert problem_of(kind("what happened")).status == status


def test_codes_are_words() -> None:
    assert {code_of(kind) for kind in KINDS} >= {"not_found", "outcome_unknown", "mcp_server", "invalid_input", "busy"}
    assert len({code_of(kind) for kind in KINDS}) == len(KINDS)


def test_details_come_back() -> None:
    busy = error_of(503, problem_of(BusyError("full", 2.5)).to_dict())
    assert isinstance(busy, BusyError)
    assert busy.retry_after == 2.5
    unknown = error_of(502, problem_of(OutcomeUnknownError("gone", "abc")).to_dict())
    assert isinstance(unknown, OutcomeUnknownError)
    assert unknown.execution == "abc"
    unstarted = error_of(422, problem_of(ProcessError("no such program", errno.ENOENT)).to_dict())
    assert isinstance(unstarted, ProcessError)
    assert unstarted.errno == errno.ENOENT
    problem = problem_of(FilesError("no such file", path="a", errno=errno.ENOENT))
    missing = error_of(problem.status, problem.to_dict())
    assert isinstance(missing, FilesError)
    assert (problem.status, missing.path, missing.errno) == (404, "a", errno.ENOENT)


def test_what_has_no_class_of_its_own_has_the_nearest() -> None:
    cases: list[tuple[int, object, type[CellblockError]]] = [
        (401, {"code": "unauthorized", "detail": "x"}, errors.AccessError),
        (429, {"code": "too_many_requests", "detail": "x", "retry_after": 3}, errors.BusyError),
        (413, {"code": "too_large", "detail": "x"}, errors.InvalidInputError),
        (502, "<html>", errors.DaemonError),
        (404, None, errors.InvalidInputError),
    ]
    for status, body, kind in cases:
        assert type(error_of(status, body)) is kind
