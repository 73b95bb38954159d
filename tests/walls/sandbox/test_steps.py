"""The steps of making a session, and how a failure is told with its step."""

from __future__ import annotations

import errno

import pytest

from cellblock.walls.sandbox.steps import STEPS, Failure, StepError, failure_of, step, told_failure


def test_a_system_error_is_told_with_its_step() -> None:
    with pytest.raises(StepError) as caught, step("proc"):
        raise PermissionError(errno.EPERM, "fsmount: Operation not permitted")
    assert failure_of(caught.value, "files") == Failure("proc", errno.EPERM, "fsmount: Operation not permitted")


def test_the_innermost_step_is_the_one_that_failed() -> None:
    with pytest.raises(StepError) as caught, step("shared mounts"), step("proc"):
        raise OSError(errno.EPERM, "no")
    assert caught.value.step == "proc"


def test_an_error_without_a_step_belongs_to_the_default_one() -> None:
    assert failure_of(OSError(errno.EAGAIN, "no more"), "worker") == Failure("worker", errno.EAGAIN, "no more")
    assert failure_of(OSError("odd"), "worker") == Failure("worker", 0, "odd")


def test_what_a_process_tells_is_bounded_and_names_a_step_or_none() -> None:
    told = told_failure("files", 1, "x" * 1_000_000)
    assert told is not None
    assert len(told.said) == 1000
    assert told_failure("", 1, "no") is None
    assert told_failure("nosuch", 1, "no") is None


def test_every_step_has_words() -> None:
    assert [name for name, words in STEPS.items() if not words] == []
