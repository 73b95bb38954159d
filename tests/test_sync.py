"""`get_or_create`, `execute` and their like, through a real daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellblock
from cellblock import CodeExecutionResult, InvalidInputError, NotFoundError
from daemons import own_daemon


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A daemon of these tests' own, which ends with them."""
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


def test_variables_stay_between_calls() -> None:
    kernel = cellblock.get_or_create("agent-sandbox")
    assert cellblock.execute(kernel, "x = [1, 2, 3]\nsum(x)").return_value == "6"
    assert cellblock.execute("agent-sandbox", "x.append(4)\nsum(x)").return_value == "10"
    assert cellblock.execute(kernel.kernel_id, "len(x)").return_value == "4"


def test_a_name_means_one_session_until_it_is_destroyed() -> None:
    first = cellblock.get_or_create("one")
    assert cellblock.get_or_create("one").kernel_id == first.kernel_id
    assert cellblock.destroy("one") is True
    assert cellblock.destroy("one") is False
    assert cellblock.get_or_create("one").kernel_id != first.kernel_id


def test_fields_of_a_result() -> None:
    result = cellblock.execute(cellblock.get_or_create("fields"), "print('hello')\n2 + 2")
    assert (result.status, result.ok, result.output, result.return_value) == ("success", True, "hello\n", "4")
    failed = cellblock.execute("fields", "1 / 0")
    assert failed.error is not None
    assert (failed.ok, failed.error.ename, failed.error.evalue) == (False, "ZeroDivisionError", "division by zero")


def test_bash() -> None:
    cellblock.get_or_create("shell")
    assert cellblock.execute("shell", "echo one; echo two", language="bash").output == "one\ntwo\n"


def test_code_is_repaired_and_run_again() -> None:
    kernel = cellblock.get_or_create("retry")

    def fix(result: CodeExecutionResult, attempt: int) -> str:
        assert attempt == 1
        assert result.error is not None
        return "y = 41\ny + 1"

    result = cellblock.execute_with_retry(kernel, "y + 1", on_error_fn=fix)
    assert (result.status, result.return_value, len(result.attempts)) == ("success", "42", 2)
    never = cellblock.execute_with_retry(kernel, "1 / 0", lambda _result, _attempt: None, max_attempts=2)
    assert (never.status, len(never.attempts)) == ("max_attempts_exceeded", 2)


def test_another_process_finds_the_session() -> None:
    cellblock.execute(cellblock.get_or_create("shared"), "shared = 'here'")
    found = subprocess.run(
        [sys.executable, "-c", "import cellblock; print(cellblock.execute('shared', 'shared').return_value)"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert found.stdout == "'here'\n"


def test_many_who_ask_for_one_name_at_once_get_one_session() -> None:
    with ThreadPoolExecutor(8) as threads:
        ids = {record.kernel_id for record in threads.map(lambda _: cellblock.get_or_create("race"), range(16))}
    assert len(ids) == 1


async def test_inside_a_running_event_loop() -> None:
    assert asyncio.get_running_loop().is_running()
    assert cellblock.execute(cellblock.get_or_create("looped"), "1 + 1").return_value == "2"


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(NotFoundError, match="'nobody'"):
        cellblock.execute("nobody", "1")
    with pytest.raises(InvalidInputError, match="did you mean 'working_dir'"):
        cellblock.get_or_create("wrong", working_dirr="x")
    with pytest.raises(InvalidInputError, match="'perl'"):
        cellblock.execute("nobody", "1", language="perl")  # type: ignore[arg-type]


def test_sessions_are_listed_restarted_and_wiped() -> None:
    kernel = cellblock.get_or_create("listed", tags={"task": "eda"})
    assert [record.tags for record in cellblock.list_kernels() if record.name == "listed"] == [{"task": "eda"}]
    cellblock.execute(kernel, "z = 1")
    cellblock.restart(kernel)
    assert not cellblock.execute(kernel, "z").ok
    assert cellblock.status(kernel).status == "idle"
    assert kernel.kernel_id in cellblock.wipe()
    assert cellblock.list_kernels() == []
