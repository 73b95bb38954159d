"""Exit statuses, and errors in one line that a terminal does not obey."""

from __future__ import annotations

import pytest

from cellblock import errors
from cellblock.fronts.cli import problems


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (errors.InvalidInputError("no"), 2, "cellblock: no\n"),
        (errors.NotFoundError("gone"), 1, "cellblock: gone\n"),
        (errors.ConflictError("there"), 1, "cellblock: there\n"),
        (errors.CheckpointError("nothing to undo"), 1, "cellblock: nothing to undo\n"),
        (errors.UnknownCheckpointError("gone"), 1, "cellblock: gone\n"),
        (errors.BusyError("full", 2.5), 3, "cellblock: full; try again in 2.5 s\n"),
        (errors.SandboxError("none"), 4, "cellblock: none\n"),
    ],
)
def test_errors_have_a_status_and_a_line(
    error: errors.CellblockError, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems.report(error) == status
    assert capsys.readouterr() == ("", line)


def test_who_does_not_know_whether_code_ran_is_told_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.OutcomeUnknownError("nobody knows")
    error.execution = "abc"
    assert problems.report(error) == 5
    assert "cellblock logs --execution abc" in capsys.readouterr().err


def test_an_error_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    problems.say("\x1b]0;owned\x07")
    assert "\x1b" not in capsys.readouterr().err


def test_what_a_server_has_written_takes_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.McpServerError("it ended\nThe last lines it wrote to stderr:\nTraceback:\n  x\nKeyError: 'A'\n")
    problems.report(error)
    assert capsys.readouterr().err == (
        "cellblock: it ended; the last line it wrote to stderr: KeyError: 'A' (run its command yourself to see all lines)\n"
    )
    problems.report(errors.McpServerError("it ended; it wrote to stderr: no"))
    assert capsys.readouterr().err == "cellblock: it ended; it wrote to stderr: no\n"
