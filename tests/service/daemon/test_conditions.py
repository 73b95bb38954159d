"""Conditions that pass, or that others cause, end no session: it refuses with the reason, and continues afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import BusyError, CellblockError, DaemonError
from cellblock.operations.executions import Submit
from cellblock.service.daemon import control, daemon_connection
from cellblock.service.daemon.place import Place
from daemons import about, crash, own_daemon
from processes import alive, eventually

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"idle_timeout": 0, "approve": "auto"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with own_daemon(tmp_path) as home:
        yield home


def move(path: Path) -> Callable[[], object]:
    away = path.rename(path.with_name("away"))
    return lambda: away.rename(path)


def make_file(path: Path) -> Callable[[], object]:
    back = move(path)
    path.write_text("a file")

    def undo() -> None:
        path.unlink()
        back()

    return undo


def remove(path: Path) -> Callable[[], object]:
    content = path.read_text()
    path.unlink()
    return lambda: path.write_text(content)


def damage(path: Path) -> Callable[[], object]:
    content = path.read_text()
    path.write_text("{")
    return lambda: path.write_text(content)


MISSING = {
    "workspace moved": (move, "workspace"),
    "workspace is a file": (make_file, "workspace"),
    "rules removed": (remove, "rules.json"),
    "rules damaged": (damage, "rules.json"),
    "settings removed": (remove, "settings.json"),
}


@pytest.mark.parametrize("what", MISSING)
async def test_a_session_waits_for_what_is_missing_after_a_crash(home: Path, tmp_path: Path, what: str) -> None:
    workspace = tmp_path / "of the session"
    workspace.mkdir()
    (tmp_path / "rules.json").write_text("{}")
    (tmp_path / "settings.json").write_text("{}")
    files: dict[str, Any] = {"rules": str(tmp_path / "rules.json"), "sandbox_config": str(tmp_path / "settings.json")}
    cellblock.get_or_create("one", working_dir=str(workspace), **files, **OPTIONS)
    cellblock.get_or_create("other", **OPTIONS)
    cellblock.execute("one", "x = 41")
    cellblock.execute("other", "x = 1")
    await crash()
    cause, name = MISSING[what]
    restore = cause(workspace if name == "workspace" else tmp_path / name)
    with pytest.raises(BusyError, match=r"'one' cannot continue now: .* Its kernel and variables are kept"):
        cellblock.execute("one", "x")
    assert cellblock.execute("other", "x").return_value == "1"
    assert any("'one' cannot continue now" in problem for problem in about()["problems"])
    assert {record.name for record in cellblock.list_kernels()} == {"one", "other"}
    restore()
    result = cellblock.execute("one", "x")
    assert (result.return_value, result.recovery) == ("41", None)
    assert about()["problems"] == []


async def test_a_running_cell_goes_on_while_its_session_waits(home: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("{}")
    cellblock.get_or_create("one", rules=str(tmp_path / "rules.json"), **OPTIONS)
    code = "open('begun', 'w'); import os, time\nwhile not os.path.exists('end'): time.sleep(0.01)\nprint('done'); 7"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cellblock.execute, "one", code)
        await eventually(Path("begun").exists)
        restore = remove(tmp_path / "rules.json")
        await crash()
        cellblock.list_kernels()
        await eventually(lambda: any("'one' cannot continue now" in problem for problem in about()["problems"]))
        Path("end").touch()
        restore()
        cellblock.execute("one", "0")
        result = await asyncio.wrap_future(running)
        assert (result.return_value, result.output) == ("7", "done\n")


async def test_a_session_that_waits_can_be_ended(home: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("{}")
    cellblock.get_or_create("one", rules=str(tmp_path / "rules.json"), **OPTIONS)
    worker = int(cellblock.execute("one", "open('alive', 'w').write(''); 1").return_value or 0)
    assert worker == 1
    remove(tmp_path / "rules.json")
    await crash()
    with pytest.raises(BusyError):
        cellblock.execute("one", "x")
    assert cellblock.destroy("one") is True
    assert about()["problems"] == []
    assert cellblock.list_kernels() == []


async def test_the_state_directory_may_be_gone_for_a_moment(home: Path) -> None:
    cellblock.get_or_create("one", **OPTIONS)
    cellblock.execute("one", "x = 41")
    pid = about()["pid"]
    away = home.rename(home.with_name("away"))
    time.sleep(3)
    away.rename(home)
    assert cellblock.execute("one", "x").return_value == "41"
    assert about()["pid"] == pid


@pytest.mark.skipif(os.geteuid() == 0, reason="root can enter every directory")
async def test_the_state_directory_cannot_be_entered_for_a_moment(home: Path) -> None:
    cellblock.get_or_create("one", **OPTIONS)
    cellblock.execute("one", "x = 41")
    pid = about()["pid"]
    home.chmod(0)
    time.sleep(3)
    home.chmod(0o700)
    assert cellblock.execute("one", "x").return_value == "41"
    assert about()["pid"] == pid


async def test_sockets_that_a_cleaner_has_removed_are_made_again(home: Path) -> None:
    cellblock.get_or_create("one", **OPTIONS)
    cellblock.execute("one", "x = 41")
    pid = about()["pid"]
    for name in ("daemon.sock", "custodian.sock"):
        (home / name).unlink()
    await eventually((home / "daemon.sock").exists)
    assert about()["pid"] == pid
    await crash()
    assert cellblock.execute("one", "x").return_value == "41"  # by the same custodian, which listens again


async def test_a_daemon_without_its_socket_can_be_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = about()["pid"]
    os.kill(pid, signal.SIGSTOP)  # before it makes the socket again
    (home / "daemon.sock").unlink()
    threading.Timer(1, os.kill, (pid, signal.SIGCONT)).start()
    assert control.stop() is True
    await eventually(lambda: not alive(pid))


async def test_a_custodian_that_stands_still_costs_nothing(home: Path) -> None:
    cellblock.get_or_create("one", **OPTIONS)
    cellblock.execute("one", "x = 41")
    custodian = about()["custodian"]
    os.kill(custodian, signal.SIGSTOP)
    try:
        with pytest.raises(CellblockError):  # its kernel is not held yet
            cellblock.get_or_create("two", sandbox=False, **OPTIONS)
        assert cellblock.execute("one", "x += 1; x").return_value == "42"
        await crash()
        threading.Timer(12, os.kill, (custodian, signal.SIGCONT)).start()
        assert cellblock.execute("one", "x").return_value == "42"
        cellblock.undo("one", 2)
        assert cellblock.execute("one", "x").return_value == "41"
        assert about()["custodian"] == custodian
    finally:
        os.kill(custodian, signal.SIGCONT)


async def test_a_daemon_that_is_stopped_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_connection, "ANSWER", 0.5)
    monkeypatch.setattr(control, "_PATIENCE", 0.5)
    pid = about()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        for ask in (control.status, control.stop):
            with pytest.raises(DaemonError, match=f"process {pid}, does not answer within .* 'kill -CONT {pid}'"):
                ask()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_answer_may_wait_for_a_cell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_connection, "ANSWER", 2.0)
    cellblock.get_or_create("one", **OPTIONS)
    opened = daemon_connection.open_if_running(Place(home))
    assert opened is not None
    with closing(opened):
        result = opened.call(Submit("one", wait=True), b"import time; time.sleep(3)")
    assert result["status"] == "success"


@pytest.mark.parametrize("isolate", ["native", "landlock"])
async def test_directories_that_a_cleaner_has_emptied_are_made_again(home: Path, tmp_path: Path, isolate: str) -> None:
    cellblock.get_or_create("one", isolate=isolate, **OPTIONS)
    cellblock.execute("one", "x = 1; open('a', 'w').write('1')")
    for path in (home / "snapshots").iterdir():
        shutil.rmtree(path)
    for path in (tmp_path / "tmp").glob("cellblock-*"):
        shutil.rmtree(path)
    for number in (2, 3):
        cellblock.execute("one", f"x = {number}; open('a', 'w').write('{number}')")
    cellblock.undo("one")
    assert (cellblock.execute("one", "x").return_value, Path("a").read_text()) == ("2", "2")
    await crash()
    cellblock.list_kernels()
    cellblock.undo("one")
    assert (cellblock.execute("one", "x").return_value, Path("a").read_text()) == ("2", "2")
    cellblock.restart("one")
    assert cellblock.execute("one", "1").return_value == "1"


async def test_a_restart_hands_all_sessions_over(home: Path) -> None:
    for name in ("one", "two"):
        cellblock.get_or_create(name, durable=name == "two", **OPTIONS)
        cellblock.execute(name, "x = 41")
    code = "open('begun', 'w'); import os, time\nwhile not os.path.exists('end'): time.sleep(0.01)\nx += 1; x"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cellblock.execute, "one", code)
        await eventually(Path("begun").exists)
        before = about()["pid"]
        assert (await asyncio.to_thread(control.restart))["pid"] != before
        Path("end").touch()
        assert (await asyncio.wrap_future(running)).return_value == "42"
    assert (cellblock.execute("two", "x").return_value, about()["problems"]) == ("41", [])
    assert "takes over 2 sessions: 'cellblock daemon restart' asked for it" in (home / "daemon.log").read_text()


async def test_stopping_saves_durable_sessions_and_the_next_daemon_resumes_them(home: Path) -> None:
    for name in ("plain", "durable"):
        cellblock.get_or_create(name, durable=1000.0 if name == "durable" else False, **OPTIONS)
        cellblock.execute(name, "x = 41")
        cellblock.execute(name, "x += 1")
    assert control.stop() is True
    assert [record.name for record in cellblock.list_kernels()] == ["durable"]
    result = cellblock.execute("durable", "x")
    assert (result.return_value, result.recovery) == ("42", "restored")


async def test_a_state_of_a_later_version_is_read(home: Path) -> None:
    cellblock.get_or_create("one", **OPTIONS)
    control.stop(keep=True)
    with closing(sqlite3.connect(home / "named.db")) as later, later:
        for table in ("executions", "events", "sessions", "requests", "permissions"):
            later.execute(f"ALTER TABLE {table} ADD COLUMN of_a_later_version TEXT NOT NULL DEFAULT 'x'")
        ((record,),) = later.execute("SELECT record FROM sessions")
        later.execute("UPDATE sessions SET record = ?", (json.dumps({**json.loads(record), "of_a_later_version": 1}),))
    assert cellblock.execute("one", "1 + 1").return_value == "2"
    assert cellblock.get_or_create("two", **OPTIONS).name == "two"
    assert about()["problems"] == []


def test_nothing_is_lost_without_a_word_whatever_machines_do(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "random_machines.py"
    command = [sys.executable, str(program), str(tmp_path), "5"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(program.parent)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
