"""The life of a daemon: how it starts and ends, and what it meets on its way."""

from __future__ import annotations

import asyncio
import configparser
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import pytest

import cellblock
from cellblock import (
    BusyError,
    CellblockError,
    DaemonError,
    ExecutionTimeoutError,
    NotFoundError,
    NotRunError,
    OutcomeUnknownError,
    StoreError,
)
from cellblock.fronts.functions.connection import call, connection
from cellblock.operations.executions import Executions, Follow, Lookup, Submit
from cellblock.operations.sessions import Create, History
from cellblock.service.daemon import control
from cellblock.service.daemon.place import Place
from clocks import WallClock
from daemons import about, close_connections, crash, ended, kill
from full_disk import own_disk
from processes import alive, below, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of its own; its daemon ends with the test.

    Its path is short: these tests make sockets themselves, whose addresses may have 107 bytes only.
    """
    workspace, temporary = tmp_path / "workspace", tmp_path / "tmp"
    state = Path(tempfile.mkdtemp()) / "state"
    workspace.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("CELLBLOCK_HOME", str(state))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(workspace)
    yield state
    control.stop()
    close_connections()
    shutil.rmtree(state.parent)


def _text_of(path: Path) -> str:
    """Return what a file of /proc says; nothing if its process has ended."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def in_thread(kernel: object, code: str) -> Future[cellblock.CodeExecutionResult]:
    """Run code from another thread, which has a connection of its own."""
    future: Future[cellblock.CodeExecutionResult] = Future()

    def run() -> None:
        try:
            future.set_result(cellblock.execute(kernel, code))  # type: ignore[arg-type]
        except BaseException as error:
            future.set_exception(error)
        close_connections()

    threading.Thread(target=run).start()
    return future


async def test_start_status_and_stop(home: Path) -> None:
    assert control.status() is None
    assert control.stop() is False
    found = control.start()
    assert control.start()["pid"] == found["pid"]
    cellblock.get_or_create("one")
    now = control.status()
    assert now is not None
    assert {name: now[name] for name in ("pid", "version", "sessions", "running", "waiting", "problems")} == {
        "pid": found["pid"],
        "version": cellblock.__version__,
        "sessions": 1,
        "running": 0,
        "waiting": 0,
        "problems": [],
    }
    assert 0 <= now["uptime"] < 1000
    assert control.stop(keep=True) is True
    await eventually(lambda: not alive(found["pid"]))
    # What it had is there when it is started again, by this connection, which was open before.
    assert [(record.name, record.status) for record in cellblock.list_kernels()] == [("one", "dead")]
    assert control.stop() is True
    assert cellblock.list_kernels() == []


async def test_after_a_kill_the_three_outcomes_are_told_apart(home: Path) -> None:
    kernel = cellblock.get_or_create("one")
    code = "open('ran', 'a').write('x'); import time; time.sleep(60)"
    running = in_thread(kernel, code)
    await eventually(Path("ran").exists)
    waiting = in_thread(kernel, "open('waited', 'a').write('x')")
    await eventually(lambda: (control.status() or {}).get("waiting") == 1)
    two = cellblock.get_or_create("two")
    assert cellblock.execute(two, "1 + 1").return_value == "2"
    cellblock.execute(two, "")  # it is written with this one at the latest: a result may wait for 5 ms
    found = about()
    os.kill(found["pid"], signal.SIGSTOP)
    os.kill(found["custodian"], signal.SIGKILL)  # and with it all kernels
    os.kill(found["pid"], signal.SIGKILL)
    with pytest.raises(OutcomeUnknownError, match="may have run in part") as caught:
        await asyncio.wrap_future(running)
    assert (await asyncio.wrap_future(waiting)).recovery == "restarted"  # it was submitted again by itself, as it had not run
    record = call(Lookup(caught.value.execution))
    assert record["state"] == "unknown"
    events = list(connection().follow(Follow(caught.value.execution)))
    assert [event["kind"] for event in events][-1] == "failed"
    first = min(connection().call(Executions("two")), key=itemgetter("submitted"))
    (begun, result) = connection().follow(Follow(first["id"]))
    assert (begun["kind"], result["data"]["return_value"]) == ("begun", "2")
    again = cellblock.execute(kernel, "2")
    assert (again.return_value, again.recovery) == ("2", None)
    assert Path("ran").read_text() == "x"
    assert Path("waited").read_text() == "x"


@pytest.mark.parametrize("loss", ["all", "wal", "empty", "damaged"])
async def test_sessions_go_on_although_what_was_stored_of_them_is_lost(home: Path, loss: str) -> None:
    kernel = cellblock.get_or_create("one", tags={"a": "b"}, approve="auto")
    cellblock.execute(kernel, "x = 41")
    cellblock.get_or_create("gone")
    await crash()
    store = home / "named.db"
    match loss:
        case "all":
            for path in home.glob("named.db*"):
                path.unlink()
        case "wal":
            for name in ("-wal", "-ahead"):
                store.with_name(f"named.db{name}").write_bytes(b"")
        case "empty":
            store.write_bytes(b"")
        case "damaged":
            store.write_bytes(b"x" * 100_000)
    found = {record.name: record for record in cellblock.list_kernels()}
    assert {name: (record.status, record.kernel_id == kernel.kernel_id) for name, record in found.items()} == {
        "one": ("idle", True),
        "gone": ("idle", False),
    }
    assert found["one"].tags == {"a": "b"}
    assert cellblock.execute(found["one"], "x + 1").return_value == "42"
    problems = about()["problems"]
    assert any("session 'one' was missing in the stored sessions and continues" in problem for problem in problems)


async def test_a_save_is_made_again_although_the_daemon_is_killed_in_the_middle_of_it(home: Path, tmp_path: Path) -> None:
    """Its values had nobody who read them any more, so the kernel waited for ever, and every later cell with it."""
    cellblock.get_or_create("one", sandbox=False)
    telling = "class Telling:\n    def __reduce__(self):\n        open('began', 'w').close()\n        return bytes, (1,)\n"
    assert cellblock.execute("one", f"{telling}x = Telling()\ny = [bytes(1_000_000) for _ in range(40)]").ok
    saved = tmp_path / "saved"
    with ThreadPoolExecutor(1) as other:
        saving = other.submit(cellblock.save, "one", saved)
        await eventually(lambda: Path("began").exists())
        await crash()
        assert cellblock.execute("one", "len(y)").return_value == "40"
        with suppress(CellblockError):  # nobody can say whether it was done
            saving.result(60)
    assert {"x", "y"} < {*cellblock.save("one", saved).saved}


async def test_a_session_is_as_before_if_a_load_into_it_fails_or_the_daemon_is_killed_meanwhile(
    home: Path, tmp_path: Path
) -> None:
    cellblock.get_or_create("one")
    waits = "import time; open('began', 'w').close(); time.sleep(600)"
    cell = f"class Slow:\n    def __reduce__(self): return exec, ({waits!r},)\nx = Slow(); y = 1"
    assert cellblock.execute("one", f"{cell}; open('data', 'w').write('saved')").ok
    saved = tmp_path / "saved"
    cellblock.save("one", saved, workspace=True)
    cellblock.execute("one", "y = 2; del x")
    cellblock.execute("one", "y += 1; open('data', 'w').write('mine')")
    with pytest.raises(ExecutionTimeoutError):
        cellblock.load("one", saved, workspace=True, timeout=1)
    with ThreadPoolExecutor(1) as other:
        Path("began").unlink(missing_ok=True)
        loading = other.submit(cellblock.load, "one", saved, workspace=True)
        await eventually(lambda: Path("began").exists())
        assert Path("data").read_text() == "saved"
        await crash()
        state = cellblock.execute("one", "y, open('data').read(), 'x' in globals()")
        with suppress(CellblockError):  # nobody can say whether it was done
            loading.result(60)
    assert (state.return_value, state.recovery, state.execution_count) == ("(3, 'mine', False)", None, 4)
    cellblock.undo("one", 2)
    assert cellblock.execute("one", "y").return_value == "2"
    assert Path("data").read_text() == "saved"
    assert not [*Path().glob(".cellblock*")]


@pytest.mark.parametrize("how", ["destroyed", "adopted", "wiped"])
async def test_a_session_that_was_ended_stays_ended_although_the_daemon_is_killed_at_once(home: Path, how: str) -> None:
    cellblock.get_or_create("one")
    cellblock.fork("one", ["two"])
    match how:
        case "destroyed":
            assert cellblock.destroy("two")
        case "adopted":
            cellblock.adopt("one", "two")
        case "wiped":
            cellblock.wipe()
    await crash()
    assert [record.name for record in cellblock.list_kernels()] == ([] if how == "wiped" else ["one"])
    assert about()["problems"] == []


async def test_code_that_no_journal_knows_any_more_runs_to_its_end(home: Path) -> None:
    """What it writes has no reader. The kernel must not wait for one: later code would wait behind it."""
    cellblock.get_or_create("one", sandbox=False)
    os.mkfifo("go")
    call(Submit("one", live=True), b"open('go').read()\nfor _ in range(200_000): print('x' * 100)\ny = 1")
    with open("go", "w"):
        await crash()
        for path in home.glob("named.db*"):
            path.unlink()
        assert "runs code that is not in the journal" in str((control.start() or {})["problems"])
    assert cellblock.execute("one", "y").return_value == "1"


@pytest.mark.parametrize("code", ["x = 1", "import os; os._exit(3)"])
async def test_that_the_last_cell_had_ended_is_no_loss(home: Path, code: str) -> None:
    kernel = cellblock.get_or_create("one")
    cellblock.execute(kernel, code)
    await crash()
    assert cellblock.execute(kernel, "1").ok
    assert about()["problems"] == []


async def test_a_kill_of_the_daemon_alone_loses_nothing(home: Path) -> None:
    """Variables stay, a running cell delivers its whole result to a client that waits, and a reader resumes."""
    kernel = cellblock.get_or_create("one")
    cellblock.execute(kernel, "x = 41")
    code = "open('ran', 'a').write('x')\nfor i in range(200): print(i, flush=True)\nopen('go').read()\nprint('end')\nx + 1"
    os.mkfifo("go")
    record = call(Submit("one", live=True, key="k"), code.encode())
    waiting = in_thread(kernel, "x + 2")
    first: list[dict[str, object]] = []
    for event in connection().follow(Follow(record["id"])):
        first.append(event)
        if "199" in str(event["data"]):
            break
    kill()
    assert call(Lookup(record["id"]))["state"] == "running"
    assert [entry["code"] for entry in call(History("one"))] == ["x = 41"]
    rest = in_thread(kernel, "x + 3")
    Path("go").write_text("")
    events = first + list(connection().follow(Follow(record["id"], after=len(first))))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    result = cast("dict[str, Any]", events[-1]["data"])
    text = "".join(cast("Any", event["data"])["text"] for event in events if event["kind"] == "stream")
    assert text == result["output"] == "".join(f"{i}\n" for i in range(200)) + "end\n"
    assert (result["return_value"], result["recovery"], Path("ran").read_text()) == ("42", None, "x")
    assert (await asyncio.wrap_future(rest)).return_value == "44"
    assert (await asyncio.wrap_future(waiting)).return_value == "43"  # submitted again, by itself
    assert list(connection().follow(Follow(record["id"]))) == events
    assert call(Submit("one", key="k", wait=True), code.encode()) == result


async def test_a_client_gets_its_result_although_a_clock_was_set_back_since_its_session_was_made(home: Path) -> None:
    cellblock.get_or_create("one")
    os.mkfifo("go")
    with WallClock() as clock:
        clock.ahead = -7200.0
        waiting = in_thread("one", "open('go').read(); 5")
        with await asyncio.to_thread(open, "go", "w"):
            kill()
        assert (await asyncio.wrap_future(waiting)).return_value == "5"


async def test_a_session_that_is_bound_to_a_connection_ends_with_a_daemon_that_is_killed(home: Path) -> None:
    connection().call(Create("bound", {"sandbox": False}, fresh=True, bound=True))
    result = cellblock.execute("bound", "import os; os.getpid()")
    kill()
    assert cellblock.list_kernels() == []
    await ended(int(result.return_value or 0))


async def test_the_end_of_the_custodian_is_noticed(home: Path) -> None:
    kernel = cellblock.get_or_create("one")
    code = b"open('ran', 'w'); import time; time.sleep(60)"
    running = call(Submit("one", key="k"), code)
    await eventually(Path("ran").exists)
    waiting = call(Submit("one"), b"open('never', 'w')")
    found = about()
    os.kill(found["custodian"], signal.SIGKILL)
    await ended(found["pid"])
    assert "the custodian has ended" in (home / "daemon.log").read_text()
    assert call(Lookup(running["id"]))["state"] == "done"
    (_, result) = connection().follow(Follow(running["id"]))
    assert (result["data"]["status"], result["data"]["recovery"]) == ("died", "restarted")  # nobody has interrupted it
    (failed,) = connection().follow(Follow(waiting["id"]))
    assert (failed["kind"], failed["data"]["ran"]) == ("failed", "no")
    again = cellblock.execute(kernel, "1")
    assert (again.return_value, again.recovery) == ("1", "restarted")
    assert not Path("never").exists()


async def test_the_daemon_ends_in_good_order_while_cells_run(home: Path) -> None:
    kernel = cellblock.get_or_create("one")
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('ran', 'w')\nwhile True: time.sleep(1)"
    running = in_thread(kernel, code)
    await eventually(Path("ran").exists)
    daemon = about()["pid"]
    processes = below(daemon)
    os.kill(daemon, signal.SIGTERM)
    # It ends when its kernel does, and says so; its client learns it from the next daemon, if need be.
    result = await asyncio.wrap_future(running)
    assert not result.ok
    await ended(daemon)
    await eventually(lambda: not any(map(alive, processes)))
    assert "the daemon has ended" in (home / "daemon.log").read_text()
    assert [record.status for record in cellblock.list_kernels()] == ["dead"]


@pytest.mark.slow
async def test_a_daemon_that_nobody_needs_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_DAEMON_IDLE_TIMEOUT", "0.1")
    daemon = control.start()["pid"]
    await ended(daemon)
    assert "it was not used" in (home / "daemon.log").read_text()
    assert control.start()["pid"] != daemon


@pytest.mark.slow
async def test_a_daemon_whose_directory_is_gone_ends(home: Path) -> None:
    cellblock.get_or_create("one")
    first = about()["pid"]
    home.rename(home.with_name("elsewhere"))
    second = control.start()["pid"]
    assert second != first
    await ended(first)
    assert about()["pid"] == second
    assert "the daemon ends" in (home.with_name("elsewhere") / "daemon.log").read_text()


def test_a_daemon_that_cannot_write_its_log_says_why_it_does_not_start(home: Path) -> None:
    """On a full disk, the log is empty, and nobody could read there what is wrong."""
    home.mkdir(mode=0o700)
    (home / "daemon.log").mkdir()
    with pytest.raises(DaemonError, match=r"did not start: \S+ cannot be used for the daemon: Is a directory"):
        control.start()
    (home / "daemon.log").rmdir()
    (home / "named.db").mkdir()
    with pytest.raises(DaemonError, match=r"did not start: \S+named\.db cannot be used"):
        control.start()


@pytest.mark.slow
def test_what_is_in_the_place_of_the_socket_is_replaced_or_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    place = Place()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place.socket))
    control.start()
    control.stop()
    place.socket.symlink_to(home / "nowhere")
    control.start()
    control.stop()
    place.socket.write_text("a file")
    control.start()
    control.stop()
    place.socket.mkdir()
    with pytest.raises(DaemonError, match=r"did not start: \S+ is a directory.* remove it \(\S+daemon\.log\)$"):
        control.start()
    deadline = time.monotonic() + 10
    while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(home) in _text_of(path)]:
        assert time.monotonic() < deadline, f"what it started is left: {left}"
        time.sleep(0.01)
    place.socket.rmdir()
    place.lock.unlink()
    place.lock.symlink_to(home / "target")
    with pytest.raises(DaemonError, match="did not start"):
        control.start()
    assert not (home / "target").exists()
    place.lock.unlink()
    home.chmod(0o770)
    with pytest.raises(DaemonError, match="chmod 700"):
        control.start()
    home.chmod(0o700)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_another_user_cannot_connect_or_pretend(home: Path) -> None:
    control.start()
    home.chmod(0o711)
    os.chmod(home / "daemon.sock", 0o777)  # the file would let them
    for parent in home.parents:
        if parent != Path("/tmp") and parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    program = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(10)\n"
        "try: print(s.recv(100))\n"
        "except ConnectionResetError: print(b'')\n"
    )
    # By its name in the directory: the whole path can be longer than an address may be.
    done = subprocess.run([sys.executable, "-I", "-c", program, "daemon.sock"], cwd=home, capture_output=True, text=True)
    assert done.stdout == "b''\n", done.stderr
    assert "another user" in (home / "daemon.log").read_text()
    home.chmod(0o700)
    control.stop()
    home.chmod(0o777)
    planted = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            "import os, socket, sys\n"
            "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); input()\n",
            "daemon.sock",
        ],
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert planted.stdout is not None
    planted.stdout.readline()
    home.chmod(0o700)
    with pytest.raises(DaemonError, match="belongs to a process of another user"):
        control.status()
    planted.communicate(b"\n")
    (home / "daemon.sock").unlink()


@pytest.mark.slow
def test_fifty_processes_at_once_get_one_daemon_and_one_session(home: Path) -> None:
    program = "import cellblock; print(cellblock.get_or_create('one').kernel_id)"
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(50)]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert {process.returncode for process in processes} == {0}
    assert (home / "daemon.log").read_text().count("the daemon listens") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ours", [0, 99])
def test_another_version_is_told_in_one_line_and_can_be_stopped(
    home: Path, monkeypatch: pytest.MonkeyPatch, ours: int
) -> None:
    daemon = control.start()["pid"]
    with monkeypatch.context() as patch:
        patch.setattr("cellblock.service.daemon.daemon_connection.PROTOCOL", ours)
        with pytest.raises(DaemonError, match=r"the daemon is cellblock .*'cellblock daemon restart' replaces it") as caught:
            control.status()
        assert "\n" not in str(caught.value)
        assert control.stop()
    assert not alive(daemon)


async def test_code_that_is_submitted_while_the_daemon_ends_runs_in_the_next_one(home: Path) -> None:
    """Only what waits in the daemon, or runs there, is told that it ends."""
    cellblock.get_or_create("one")
    for _ in range(3):
        daemon = about()["pid"]
        os.kill(daemon, signal.SIGTERM)
        while alive(daemon):
            with suppress(NotRunError):  # the first may have come before the signal
                result = cellblock.execute("one", "1 + 1")
                assert result.return_value == "2" or (
                    result.status == "interrupted" and "its kernel was killed" in str(result.text)
                )
        assert cellblock.execute("one", "1 + 1").return_value == "2"  # it may have ended before it was asked anything


async def test_a_full_disk_refuses_new_code_and_loses_nothing(home: Path) -> None:
    kernel = cellblock.get_or_create("one", recovery="none")  # a checkpoint would write to files in memory, which count here
    cellblock.execute(kernel, "x = 1")
    daemon = about()["pid"]
    before = resource.prlimit(daemon, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (100, before[1]))
    with pytest.raises(StoreError, match="nothing was done"):
        cellblock.execute(kernel, "open('ran', 'w')")
    assert "nothing can be stored" in about()["problems"][0]
    assert not Path("ran").exists()
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, before)
    assert cellblock.execute(kernel, "x").return_value == "1"
    assert about()["pid"] == daemon


@pytest.mark.slow
async def test_a_disk_that_becomes_read_only_refuses_new_code_and_loses_nothing(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    os.mkfifo("go")
    with own_disk(home, tmp_path / "disk") as break_it:
        home.chmod(0o700)
        kernel = cellblock.get_or_create("one")
        cellblock.execute(kernel, "x = 1")
        daemon, running = about()["pid"], in_thread(kernel, "x = open('go').read(); x")
        with await asyncio.to_thread(open, "go", "w") as go:
            break_it()
            with pytest.raises(StoreError, match="its file system is read-only; nothing was done"):
                cellblock.execute(cellblock.get_or_create("two"), "open('ran', 'w')")
            go.write("text")
        assert (await asyncio.wrap_future(running)).return_value == "'text'"
        found = about()
        assert found["problems"] == ["nothing can be stored, so no new code runs: its file system is read-only"]
        assert (found["pid"], Path("ran").exists()) == (daemon, False)
        control.stop()
        await ended(daemon)
        await eventually(lambda: not alive(found["custodian"]))


@pytest.mark.slow
async def test_a_client_for_whom_no_descriptor_is_left_is_told_so_and_the_others_go_on(home: Path) -> None:
    kernel = cellblock.get_or_create("one", recovery="none")
    daemon = about()["pid"]
    before = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, (1 + max(map(int, os.listdir(f"/proc/{daemon}/fd"))), before[1]))
    clients = [Place(home).connect() for _ in range(20)]  # they say nothing, and have to be waited for
    result = in_thread(kernel, "1")
    with pytest.raises(BusyError, match="the daemon can take no more connections now"):
        await asyncio.wrap_future(result)
    assert cellblock.execute(kernel, "2").return_value == "2"
    # Once for each time that the shortage begins: not for each client, and not for each attempt.
    assert 1 <= _text_of(home / "daemon.log").count("no connection can be taken") <= 3
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, before)
    for client in clients:
        assert client is not None
        client.close()
    assert (await asyncio.wrap_future(in_thread(kernel, "3"))).return_value == "3"
    assert about()["pid"] == daemon


@pytest.mark.slow
async def test_a_damaged_file_is_moved_aside_and_told(home: Path) -> None:
    cellblock.get_or_create("one")
    control.stop(keep=True)
    (home / "named.db").write_bytes(b"nonsense" * 2000)
    with open(home / "daemon.log", "ab") as log:
        log.write(b"." * 5_000_000 + b"\n")
    found = control.start()
    assert (home / "daemon.log.1").stat().st_size > 5_000_000, "logs rotate"
    assert found["sessions"] == 0
    assert "moved to" in found["problems"][0]
    assert "is damaged" in (home / "daemon.log").read_text()
    with pytest.raises(NotFoundError):
        cellblock.execute("one", "1")


def test_the_systemd_unit(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd = Place(tmp_path / 'a "b" %n $HOME c')
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(control.systemd_unit(odd))
    command = shlex.split(parsed["Service"]["ExecStart"].replace("%%", "%").replace("$$", "$"))
    assert command == [sys.executable, "-m", "cellblock.daemon", str(odd.directory)]
    assert parsed["Service"]["KillMode"] == "process"  # else systemd ends the kernels of a daemon that crashed
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = control.install_unit()
    assert path == tmp_path / "config" / "systemd" / "user" / "cellblock.service"
    assert str(home) in path.read_text()


@pytest.mark.slow
async def test_in_the_foreground_as_systemd_runs_it(home: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "cellblock.daemon", str(home)])
    await eventually(lambda: (control.status() or {}).get("pid") == process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_kernels_of_another_version_are_ended_and_the_next_daemon_says_so(home: Path) -> None:
    older = (
        "import sys; from cellblock.host.survival import keeping; keeping.FORMAT -= 1; "
        "from cellblock.service.daemon.main import main; main(sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", older, str(home)])
    deadline = time.monotonic() + 30
    while (control.status() or {}).get("pid") != process.pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kernel = cellblock.get_or_create("a")
    worker = int(cellblock.execute(kernel, "import os; print(os.getpid())", timeout=60).text or 0)
    assert worker
    process.kill()
    process.wait()
    close_connections()
    assert "NameError" in str(cellblock.execute("a", "os.getpid()").error)
    (said,) = about()["problems"]
    assert "another version of cellblock" in said
