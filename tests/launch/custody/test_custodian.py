"""The process that holds descriptors: what it holds outlives its clients, and nothing outlives it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import processes
from cellblock.errors import CustodianError
from cellblock.launch.custody.custodian import MAX_DATA, address, open_directory
from cellblock.launch.custody.custodian_client import Custodian, Process


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a custodian, which is ended with the test."""
    place = tmp_path / "state"
    place.mkdir(0o700)
    yield place
    try:
        Custodian.connect(place).end()
    except CustodianError:
        pass


@pytest.fixture
def custodian(directory: Path) -> Iterator[Custodian]:
    """A connection to the custodian of this directory."""
    connected = Custodian.connect(directory)
    yield connected
    connected.close()


@pytest.fixture
def pid(directory: Path) -> int:
    """The process id of the custodian of this directory, without a client."""
    connected = Custodian.connect(directory)
    connected.close()
    return connected.pid


def run_client(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a client in a process of its own, which ends by SIGKILL."""
    program = f"""
import asyncio, os, signal
from cellblock.launch.custody.custodian_client import Custodian
custodian = Custodian.connect({str(directory)!r})
async def main():
{textwrap.indent(textwrap.dedent(code), "    ")}
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)


async def test_what_was_put_last_before_a_kill_is_held(directory: Path, pid: int) -> None:
    ran = run_client(
        directory,
        """
        for number in range(40):
            reader, writer = os.pipe()
            os.write(writer, b"%d" % number)
            custodian.put(f"pipe/{number}", b"data %d" % number, [reader])
            os.close(reader)
        custodian.remove("pipe/7")
        """,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    second = Custodian.connect(directory)
    try:
        assert second.pid == pid
        assert list(second.entries) == [f"pipe/{number}" for number in range(40) if number != 7]
        for number in (0, 39):
            entry = second.entries[f"pipe/{number}"]
            assert entry.data == b"data %d" % number
            assert os.read(entry.fds[0], 10) == b"%d" % number
            assert not os.get_inheritable(entry.fds[0])
    finally:
        second.close()


async def test_an_entry_is_replaced_as_a_whole_and_what_it_held_is_closed(directory: Path) -> None:
    custodian = Custodian.connect(directory)
    reader, writer = os.pipe()
    await custodian.put("a", b"1", [writer])
    await custodian.put("a", b"2", [reader, reader])
    os.close(writer)
    assert os.read(reader, 1) == b""  # nobody has the other end any more
    custodian.close()
    again = Custodian.connect(directory)
    assert again.entries["a"].data == b"2"
    assert len(again.entries["a"].fds) == 2
    again.remove("a")
    again.close()
    last = Custodian.connect(directory)
    assert not last.entries
    last.close()
    os.close(reader)


async def test_a_process_outlives_the_client_that_had_it_started(directory: Path) -> None:
    ran = run_client(
        directory,
        """
        reader, writer = os.pipe()
        process = custodian.start(["/bin/sh", "-c", "read line; exit 7"], reader, writer)
        print(process.pid, flush=True)
        custodian.put("process", str(process.pid).encode(), [writer, *process.descriptors])
        """,
    )
    custodian = Custodian.connect(directory)
    entry = custodian.entries["process"]
    assert processes.parents()[int(entry.data)] == custodian.pid, ran.stderr
    os.write(entry.fds[0], b"\n")
    process = Process(int(entry.data), *entry.fds[1:])
    assert await process.ended(10)
    assert process.poll() == 7
    assert not processes.children(custodian.pid)  # it was waited for
    custodian.close()


async def test_a_started_process_has_an_exit_code_and_can_be_killed(custodian: Custodian) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    quick = custodian.start(["/bin/sh", "-c", "exit 3"], null, null)
    slow = custodian.start(["/bin/sleep", "1000"], null, null)
    assert await quick.ended(10)
    assert quick.poll() == 3
    assert slow.poll() is None
    assert not await slow.ended(0.01)
    slow.kill()
    assert slow.wait(10) == -signal.SIGKILL
    slow.kill()  # nobody, whoever has its number now
    with pytest.raises(FileNotFoundError):
        custodian.start(["/nowhere/at/all"], null, null)
    for process in (quick, slow):
        process.close()
    os.close(null)


async def test_only_one_client_at_a_time_is_served(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Custodian.connect(directory)
    monkeypatch.setattr("cellblock.launch.custody.custodian_client._START", 0.05)
    with pytest.raises(CustodianError, match="another process uses it"):
        Custodian.connect(directory)
    await first.put("still", b"served", [])
    first.close()


async def test_what_cannot_be_held_is_refused_and_the_rest_goes_on(custodian: Custodian) -> None:
    with pytest.raises(CustodianError, match="too large"):
        await custodian.put("large", bytes(MAX_DATA + 1), [])
    await custodian.put("small", b"", [])


def raw_client(directory: Path) -> socket.socket:
    """Connect as those do who write the bytes themselves."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = open_directory(str(directory))
    try:
        sock.connect(address(place))
    finally:
        os.close(place)
    sock.settimeout(20)
    return sock


HOSTILE = [
    (b"[" * 100_000, 0),
    (b'{"a":' * 30_000, 2),
    (b"[]\n", 1),
    (b"\xff\x00", 1),
    (b'{"fds": 2, "op": "list", "n": 1}\n', 2),
    (b'{"fds": 2, "op": "list", "n": 1}\n', 3),
    (b'{"fds": 1, "op": "put", "n": 1}\n', 1),
    (b'{"fds": 1, "op": "put", "key": [1], "n": 1}\n', 1),
    (b'{"fds": 1, "op": "remove", "key": "x", "n": 1}\n', 1),
    (b'{"fds": 3, "op": "start", "argv": [], "n": 1}\n', 3),
    (b'{"fds": 3, "op": "start", "argv": ["/\\ud800"], "n": 1}\n', 3),
    (b'{"fds": 3, "op": "start", "n": 1}\n', 3),
    (b'{"fds": 2, "op": "start", "argv": ["/bin/true"], "n": 1}\n', 2),
    (b'{"fds": 1, "op": "none", "n": 1}\n', 1),
]


async def test_no_message_ends_it_or_leaves_descriptors_behind(directory: Path, pid: int) -> None:
    """Every kernel ends with this process."""
    with raw_client(directory) as sock:
        _, greeting, _, _ = socket.recv_fds(sock, 1000, 1)
        os.close(greeting[0])
        held = len(os.listdir(f"/proc/{pid}/fd"))
        given = os.open(os.devnull, os.O_RDWR)
        for message, count in HOSTILE:
            socket.send_fds(sock, [message], [given] * count)
            assert b'"n"' in sock.recv(100_000), message
        os.close(given)
        await processes.eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= held)
    again = Custodian.connect(directory)
    assert again.pid == pid
    again.close()


def test_a_client_that_takes_no_answers_makes_it_hold_only_so_much(directory: Path, pid: int) -> None:
    with raw_client(directory) as sock:
        given = os.open(os.devnull, os.O_RDWR)
        socket.send_fds(sock, [b'{"fds": 5, "op": "put", "key": "k", "n": 1}\n'], [given] * 5)
        os.close(given)
        for _ in range(2000):
            if not select.select([], [sock], [], 0.1)[1]:
                break  # it is not read from any more
            sock.send(b'{"fds": 0, "op": "list", "n": 2}\n')
        assert len(os.listdir(f"/proc/{pid}/fd")) < 64 * 5 + 200
    again = Custodian.connect(directory)
    assert len(again.entries) == 1
    again.close()


@pytest.mark.slow
async def test_a_custodian_that_nobody_needs_ends(directory: Path) -> None:
    custodian = Custodian.connect(directory, patience=0.01)
    pid = custodian.pid
    custodian.close()
    await processes.eventually(lambda: not processes.alive(pid))


async def test_the_end_is_at_once_and_the_next_custodian_knows_nothing(directory: Path) -> None:
    custodian = Custodian.connect(directory)
    await custodian.put("a", b"", [])
    pid = custodian.pid
    custodian.end()
    await processes.eventually(lambda: not processes.alive(pid))
    following = Custodian.connect(directory)
    assert following.pid != pid
    assert not following.entries
    following.close()


async def test_a_killed_custodian_is_noticed(custodian: Custodian) -> None:
    await custodian.put("a", b"", [])
    os.kill(custodian.pid, signal.SIGKILL)
    await processes.eventually(lambda: custodian.gone)
    with pytest.raises(CustodianError, match="every kernel with it: restart the daemon"):
        await custodian.put("b", b"", [])
    custodian.remove("a")


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CustodianError, match="mode 0700"):
        Custodian.connect(tmp_path)


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    deep.chmod(0o700)
    place = open_directory(str(deep))
    assert len(address(place)) < 100
    os.close(place)
    Custodian.connect(deep).end()
