"""Programs beside the kernel of named sessions, as clients ask the daemon for them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cellblock
from cellblock import BusyError, InvalidInputError, NotFoundError, OutcomeUnknownError, ProcessError
from cellblock.fronts.functions.connection import connection
from cellblock.model.programs import MAX_OUTPUT, ExecResult, ProcessInfo, ProcessOutput
from cellblock.operations.programs import (
    MOST_OUTPUT,
    ConnectPort,
    Exec,
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WritePort,
    WriteProcess,
)
from cellblock.service.daemon import program_handlers as daemon_programs
from cellblock.service.daemon.codec import MAX_REPLY, encode_reply, encode_request
from cellblock.service.daemon.daemon_connection import SessionConnection
from cellblock.service.daemon.place import Place
from cellblock.service.daemon.program_handlers import MAX_CONNECTIONS
from cellblock.service.daemon.starting import open_connection
from cellblock.wire.packed import pack
from daemons import about, asking, close_connections, kill
from processes import alive, eventually

NAP = ("sleep", f"{2000 + os.getpid()}")


@pytest.fixture(scope="module")
def home(common_daemon: Path) -> Iterator[Path]:
    with asking(common_daemon) as home:
        yield home


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The workspace of a session whose name is "s"."""
    cellblock.get_or_create("s", working_dir=str(tmp_path))
    yield tmp_path
    cellblock.wipe()


def ask(request: Any, body: bytes = b"") -> Any:
    """Ask over this thread's connection."""
    return connection().call(request, body)


def spawned(*command: str, **options: Any) -> str:
    """Start a program in the session; return its id."""
    return str(ask(Spawn("s", command, **options))["id"])


def running() -> list[tuple[str, ...]]:
    """Return the commands of the session's programs that run."""
    return [tuple(one["command"]) for one in ask(Processes("s")) if one["running"]]


def read_all(process: str) -> tuple[bytes, ProcessOutput]:
    """Return all output of a program, and the last answer."""
    found, position = b"", 0
    while True:
        output = ProcessOutput.from_dict(ask(ReadProcess("s", process, position, 10_000)))
        found += b"".join(piece.data for piece in output.pieces)
        position = output.position
        if output.finished:
            return found, output


def test_what_an_answer_keeps_at_most_fits_in_one(workspace: Path) -> None:
    assert MAX_OUTPUT <= MOST_OUTPUT
    worst = b"\x01" * (1 << 20) + b"\xff"
    result = ExecResult(status="exited", exit_code=0, stdout=worst, stderr=worst)
    head, body = encode_reply(1, pack(result.to_dict()))
    assert (len(head) + len(body)) * (MOST_OUTPUT >> 20) < MAX_REPLY
    with pytest.raises(InvalidInputError, match="max_output must be at most"):
        ask(Exec("s", ("true",), max_output=MOST_OUTPUT + 1))


def test_a_program_is_started_listed_read_written_to_and_stopped(workspace: Path) -> None:
    info = ProcessInfo(**{**ask(Spawn("s", ("cat",), stdin=True, label="a cat")), "command": ("cat",)})
    assert (info.id, info.running, info.label) == ("p1", True, "a cat")
    assert ask(WriteProcess("s", "p1"), b"one\n") is True
    first = ProcessOutput.from_dict(ask(ReadProcess("s", "p1", 0, 10_000)))
    assert ([piece.data for piece in first.pieces], first.position, first.finished) == ([b"one\n"], 4, False)
    assert ask(ReadProcess("s", "p1", 4, 10))["pieces"] == []
    assert ask(WriteProcess("s", "p1", end=True), b"\xfftwo") is True
    last = ProcessOutput.from_dict(ask(ReadProcess("s", "p1", 4, 10_000)))
    assert [piece.data for piece in last.pieces] == [b"\xfftwo"]
    data, end = read_all("p1")
    assert data == b"one\n\xfftwo"
    assert end.result is not None
    assert end.result.ok
    assert ask(WriteProcess("s", "p1"), b"more") is False
    assert spawned(*NAP) == "p2"
    stopped = ExecResult.from_dict(ask(StopProcess("s", "p2")))
    assert (stopped.status, stopped.signal) == ("cancelled", signal.SIGTERM)
    assert [(one["id"], one["running"]) for one in ask(Processes("s"))] == [("p1", False), ("p2", False)]
    assert ask(StopProcess("s", "p2")) == stopped.to_dict()


@pytest.mark.slow
def test_signals_and_sizes(workspace: Path) -> None:
    trapped = spawned("sh", "-c", "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done", keep="all")
    assert ask(ReadProcess("s", trapped, 0, 10_000))["pieces"][0]["data"] == "ready\n"
    assert ask(SignalProcess("s", trapped, signal.SIGUSR1, "program")) is True
    data, end = read_all(trapped)
    assert (data, end.result and end.result.exit_code) == (b"ready\ngot\n", 5)
    script = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
    shown = spawned("sh", "-c", script, rows=10, columns=20)
    assert ask(ReadProcess("s", shown, 0, 10_000))["pieces"][0]["data"] == "10 20\r\n"
    assert ask(ResizeProcess("s", shown, 30, 40)) is True
    assert read_all(shown)[0] == b"10 20\r\n30 40\r\n"


def test_bad_requests_say_what_is_wrong(workspace: Path) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (Exec("s", ("true",), stop="all"), InvalidInputError, "scope must be"),
        (Exec("s", ()), InvalidInputError, "command must be"),
        (Exec("none", ("true",)), NotFoundError, "no session 'none'"),
        (Spawn("s", ("no-such-program",)), ProcessError, "no-such-program was not started"),
        (Spawn("s", ("true",), rows=5), InvalidInputError, "size of a terminal"),
        (Spawn("s", ("true",), keep="most"), InvalidInputError, "keep must be"),
        (ReadProcess("s", "p1", -1), InvalidInputError, "wait must be"),
        (ReadProcess("s", "p1", 0, 30_001), InvalidInputError, "wait must be"),
        (ReadProcess("s", "p9"), NotFoundError, "no process 'p9'"),
        (WriteProcess("s", "p1"), InvalidInputError, "no standard input"),
        (SignalProcess("s", "p1", 99), InvalidInputError, "a signal is a number"),
        (SignalProcess("s", "p1", 2, "world"), InvalidInputError, "scope must be"),
        (ResizeProcess("s", "p1", 5, 5), InvalidInputError, "no terminal"),
        (StopProcess("s", "p1", 0, "world"), InvalidInputError, "scope must be"),
    ]
    spawned(*NAP)
    for request_, error, message in cases:
        with pytest.raises(error, match=message):
            ask(request_)
        assert running() == [NAP]


@pytest.mark.slow
def test_much_output_comes_in_several_answers(workspace: Path) -> None:
    process = spawned("head", "-c", "900000", "/dev/zero", keep="all")
    cellblock.read_process("s", process, 0, 10)
    assert len(read_all(process)[0]) == 900_000
    first = ProcessOutput.from_dict(ask(ReadProcess("s", process)))
    assert not first.finished
    assert sum(len(piece.data) for piece in first.pieces) <= 512 * 1024


async def test_a_client_whose_connection_is_lost_stops_its_exec_and_what_is_bound_to_it(workspace: Path) -> None:
    spawned(*NAP)
    lost = open_connection(Place())
    lost.call(Spawn("s", ("sleep", "1001"), bound=True))
    lost._socket.sendall(encode_request(99, Exec("s", ("sh", "-c", "setsid sleep 1002 & sleep 1003"))))
    await eventually(lambda: len(running()) == 3)
    lost.close()
    await eventually(lambda: running() == [NAP])


async def test_what_a_bound_program_has_left_goes_on(workspace: Path) -> None:
    with closing(open_connection(Place())) as bound:
        bound.call(Spawn("s", ("sh", "-c", f"{' '.join(NAP)} & exit"), bound=True))
        await eventually(lambda: [len(one.left) for one in cellblock.processes("s")] == [1])
        before = about()
    await eventually(lambda: about()["clients"] < before["clients"])
    assert [len(one.left) for one in cellblock.processes("s")] == [1]


@pytest.mark.slow
async def test_a_bound_program_of_an_earlier_session_is_no_other_one(workspace: Path) -> None:
    with closing(open_connection(Place())) as bound:
        bound.call(Spawn("s", NAP, bound=True))
        cellblock.destroy("s")
        cellblock.get_or_create("s", working_dir=str(workspace))
        assert spawned(*NAP) == "p1"
        before = about()
    await eventually(lambda: about()["clients"] < before["clients"])
    assert running() == [NAP]


@pytest.mark.slow
async def test_programs_end_with_a_daemon_that_is_killed_and_never_run_twice(workspace: Path) -> None:
    runs = workspace / "runs"
    script = f"echo $$ >> {runs}; exec sleep {NAP[1]}"
    spawned("sh", "-c", script)
    errors: list[Exception] = []

    def exec_in_vain() -> None:
        try:
            cellblock.exec_process("s", ["sh", "-c", script])
        except Exception as error:
            errors.append(error)
        close_connections()

    thread = threading.Thread(target=exec_in_vain)
    thread.start()
    await eventually(lambda: runs.exists() and len(runs.read_text().split()) == 2)
    found = host_pids()
    assert len(found) == 2
    kill()
    await asyncio.to_thread(thread.join)
    assert [type(error) for error in errors] == [OutcomeUnknownError]
    await eventually(lambda: not any(map(alive, found)))
    assert ask_again(Processes("s")) == []
    assert cellblock.exec_process("s", ["echo", "back"]).out == "back\n"
    assert len(runs.read_text().split()) == 2


@pytest.mark.slow
def test_a_spawn_whose_daemon_is_killed_is_not_made_twice(workspace: Path) -> None:
    pid = about()["pid"]
    lost: SessionConnection = connection()
    os.kill(pid, signal.SIGSTOP)  # it has not answered when it ends
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(OutcomeUnknownError):
        cellblock.spawn_process("s", [*NAP])
    assert not lost.usable
    assert cellblock.processes("s") == []


async def test_programs_end_with_their_session(workspace: Path) -> None:
    spawned(*NAP)
    (pid,) = await eventually(host_pids)  # a process that has just executed a program has no command line for a moment
    cellblock.destroy("s")
    assert not alive(pid)
    with pytest.raises(NotFoundError):
        ask(Processes("s"))
    cellblock.get_or_create("s", working_dir=str(workspace))
    spawned(*NAP)
    cellblock.restart("s")
    assert running() == []


def ask_again(request: Any) -> Any:
    """Ask the daemon that is there now."""
    cellblock.list_kernels()
    return ask(request)


def host_pids() -> list[int]:
    """Return the process ids, on the host, of programs that sleep for the time of these tests."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[:2] == [part.encode() for part in NAP]:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_a_session_has_a_limit_of_connections_to_its_ports() -> None:
    """Otherwise a page that opens connections without end takes up the daemon's descriptors."""
    server: Any = SimpleNamespace(connections={("s", str(number)): None for number in range(MAX_CONNECTIONS)})
    with pytest.raises(BusyError, match="256 connections to session 's' are open already"):
        await anext(await daemon_programs.connect(server, ConnectPort("s", 80)))
    assert len(server.connections) == MAX_CONNECTIONS


@pytest.mark.slow
def test_a_session_with_an_open_page_is_not_idle(home: Path, tmp_path: Path) -> None:
    cellblock.get_or_create("page", working_dir=str(tmp_path), recovery="none", idle_timeout=3)
    code = """
import asyncio
async def answer(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
server = await asyncio.start_server(answer, "127.0.0.1", 8501)
"""
    assert cellblock.execute("page", code).ok
    parts: Any = connection().follow(ConnectPort("page", 8501))
    number = bytes(next(parts)).decode()
    with closing(open_connection(Place(home))) as other:
        for _ in range(12):
            time.sleep(0.5)
            assert other.call(WritePort("page", number), b"x")
            assert bytes(next(parts)) == b"x"
    parts.close()
    assert any(record.name == "page" for record in cellblock.list_kernels())
    cellblock.destroy("page")


async def test_what_is_written_to_an_unknown_connection_is_refused() -> None:
    server: Any = SimpleNamespace(connections={("other", "1"): None})
    assert not await daemon_programs.write_port(server, WritePort("s", "1"), b"x")
