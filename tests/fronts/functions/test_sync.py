"""`get_or_create`, `execute` and their like, through a real daemon."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellblock
from cellblock import CodeExecutionResult, InvalidInputError, NotFoundError, OutcomeUnknownError, StateError
from cellblock.fronts.functions.connection import call, connection
from cellblock.operations.executions import Lookup, Submit
from cellblock.operations.sessions import About, Interrupt
from cellblock.service.daemon.daemon_connection import Connection
from processes import eventually

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
"""A picture of one pixel."""


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


def test_bash() -> None:
    cellblock.get_or_create("shell")
    assert cellblock.execute("shell", "echo one; echo two", language="bash").output == "one\ntwo\n"


@pytest.mark.slow
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
    assert cellblock.status(kernel).attempt_count == 4


def test_another_process_finds_the_session() -> None:
    cellblock.execute(cellblock.get_or_create("shared"), "shared = 'here'")
    heavy = {"asyncio", "pydantic", "pydantic_settings", "mcp", "IPython", "sqlite3", "tomllib"}
    program = (
        "import sys, cellblock\nprint(cellblock.execute('shared', 'shared').return_value)\n"
        f"print({heavy} & sys.modules.keys() or 'light')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert found.stdout == "'here'\nlight\n"


async def test_inside_a_running_event_loop() -> None:
    assert asyncio.get_running_loop().is_running()
    assert cellblock.execute(cellblock.get_or_create("looped"), "1 + 1").return_value == "2"


def test_an_error_of_a_session_has_its_name() -> None:
    cellblock.get_or_create("plain")
    with pytest.raises(StateError, match="session 'plain' does not work in a clone"):
        cellblock.clone_diff("plain")


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(NotFoundError, match="'nobody'"):
        cellblock.execute("nobody", "1")
    with pytest.raises(InvalidInputError, match="did you mean 'working_dir'"):
        cellblock.get_or_create("wrong", working_dirr="x")
    with pytest.raises(InvalidInputError, match="'perl'"):
        cellblock.execute("nobody", "1", language="perl")  # type: ignore[arg-type]
    for timeout in (0, -1, True, "5", float("nan")):
        with pytest.raises(InvalidInputError, match="timeout must be"):
            cellblock.execute("nobody", "1", timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="code must be a string"):
        cellblock.execute("nobody", b"1")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="name of a session"):
        cellblock.get_or_create(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="tags must be"):
        cellblock.get_or_create("wrong", tags={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="tags must be"):
        cellblock.get_or_create("wrong", tags=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="which is JSON data: function is not"):
        cellblock.get_or_create("wrong", kernel_env={"A": lambda: 1})
    with pytest.raises(InvalidInputError, match="on_error_fn must be a function"):
        cellblock.execute_with_retry("nobody", "1", "fix")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a session is"):
        cellblock.status(5)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_list_can_look_at_the_kernels_first() -> None:
    cellblock.execute(cellblock.get_or_create("ending"), "import os, threading; threading.Timer(0.05, os._exit, (7,)).start()")
    deadline = time.monotonic() + 30
    while [one.status for one in cellblock.list_kernels(refresh=True) if one.name == "ending"] != ["dead"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cellblock.destroy("ending")


def test_sessions_are_listed_restarted_and_wiped() -> None:
    kernel = cellblock.get_or_create("listed", tags={"task": "eda"})
    assert [record.tags for record in cellblock.list_kernels() if record.name == "listed"] == [{"task": "eda"}]
    cellblock.execute(kernel, "z = 1")
    cellblock.restart(kernel)
    assert not cellblock.execute(kernel, "z").ok
    assert cellblock.status(kernel).status == "idle"
    assert kernel.kernel_id in cellblock.wipe()
    assert cellblock.list_kernels() == []


def test_ctrl_c_stops_the_code_and_leaves_the_session_usable() -> None:
    program = (
        "import cellblock, os, signal, threading\n"
        "cellblock.execute(cellblock.get_or_create('stopped'), 'kept = 1')\n"
        "def press():\n"
        "    while cellblock.status('stopped').status != 'running': pass\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=press).start()\n"
        "try:\n"
        "    cellblock.execute('stopped', 'import time; time.sleep(60)')\n"
        "except KeyboardInterrupt:\n"
        "    print(cellblock.status('stopped').status, cellblock.execute('stopped', 'kept').return_value)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "idle 1\n", done.stderr


async def _ask_and_lose_the_connection(function: Callable[[], object]) -> object:
    """Call a function whose connection is lost after its request was sent, and before the daemon has read it."""
    daemon = call(About())["pid"]
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(connection).result()
        assert isinstance(found, Connection)
        sock = found._socket
        os.kill(daemon, signal.SIGSTOP)
        try:
            asked = thread.submit(function)
            await eventually(lambda: struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
            sock.shutdown(socket.SHUT_RDWR)
        finally:
            os.kill(daemon, signal.SIGCONT)
        return await asyncio.wrap_future(asked)


async def test_what_would_be_done_twice_is_not_asked_twice() -> None:
    kernel = cellblock.get_or_create("once")
    cellblock.execute(kernel, "x = 1")
    with pytest.raises(OutcomeUnknownError, match="not known whether the request 'undo' was carried out"):
        await _ask_and_lose_the_connection(lambda: cellblock.undo(kernel))
    assert await _ask_and_lose_the_connection(lambda: cellblock.status(kernel).name) == "once"


@pytest.mark.slow
def test_a_key_stops_its_own_execution_only() -> None:
    cellblock.get_or_create("keys")
    running = call(Submit("keys", key="one"), b"import time; time.sleep(60)")
    call(Submit("keys", key="two"), b"waited = 1")
    assert call(Interrupt("keys", "three")) is False
    assert call(Interrupt("keys", "two")) is True
    assert call(Lookup(running["id"]))["state"] == "running"
    assert call(Interrupt("keys", "one")) is True
    assert cellblock.execute("keys", "'waited' in globals()").return_value == "False"


@pytest.mark.slow
def test_a_child_process_has_a_connection_of_its_own() -> None:
    cellblock.execute(cellblock.get_or_create("forked"), "x = 1")
    if (child := os.fork()) == 0:
        os._exit(0 if cellblock.execute("forked", "x").return_value == "1" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cellblock.execute("forked", "x").return_value == "1"


@pytest.mark.slow
def test_settings_of_a_client_count_although_the_daemon_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBOX_EXECUTION_TIMEOUT", "0.2")
    monkeypatch.setenv("KERNELBOX_OUTPUT_CHAR_LIMIT", "100")
    monkeypatch.setenv("KERNELBOX_STARTUP_CODE", "begun = 'at once'")
    monkeypatch.setenv("KERNELBOX_MAX_RETRIES", "3")
    kernel = cellblock.get_or_create("set")
    assert cellblock.execute(kernel, "begun").return_value == "'at once'"
    assert cellblock.execute(kernel, "import time; time.sleep(60)").status == "timeout"
    long = cellblock.execute(kernel, "print('x' * 1000)")
    assert long.truncated
    assert len(long.output) < 200
    assert len(cellblock.execute_with_retry(kernel, "1 / 0", lambda _result, _attempt: None).attempts) == 3


@pytest.mark.slow
def test_paths_are_those_of_the_client(daemon: Path) -> None:
    Path("below").mkdir()
    kernel = cellblock.get_or_create("placed", working_dir="below")
    assert kernel.workspace == str(Path("below").absolute())
    result = cellblock.execute(
        kernel, f"from base64 import b64decode; from IPython.display import Image\nImage(b64decode({PNG!r}))"
    )
    assert [path.parent for path in result.images] == [Path("below").absolute() / "images"]


def test_values_that_are_no_data_are_shown_in_short() -> None:
    for options in ({"policy": cellblock.Policy()}, {"kernel_env": {"A": cellblock.Policy()}}):
        with pytest.raises(InvalidInputError, match="cannot be an option of a named session") as caught:
            cellblock.get_or_create("wrong", **options)
        assert len(str(caught.value)) < 500
