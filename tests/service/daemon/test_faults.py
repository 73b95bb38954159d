"""Everything is killed, again and again, at any moment: what must live on does, and nothing happens twice.

``KILL_ROUNDS=200`` runs more rounds, and ``KILL_SEED`` repeats those of a run that has printed its seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.errors import DaemonError, NotFoundError
from cellblock.fronts.functions.connection import connection
from cellblock.operations.executions import Follow, Lookup, Submit
from cellblock.service.daemon import control
from daemons import about, close_connections
from processes import alive, below, command_line, eventually

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))
LINES = 30

CODE = """
import os, time
with open({name!r}, 'a') as file:
    file.write('x')
for i in range({lines}):
    print(i, flush=True)
    time.sleep(0.003)
before = globals().get('count', 0)
count = before + 1
count
"""

CLIENT = """
import sys, cellblock
from cellblock.fronts.functions.connection import call
from cellblock.operations.executions import Submit
call(Submit('one', live=True, key=sys.argv[1]), sys.argv[2].encode())
print('submitted', flush=True)
input()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of its own; its daemon ends with the test."""
    state, workspace, temporary = (tmp_path / name for name in ("state", "workspace", "tmp"))
    workspace.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("CELLBLOCK_HOME", str(state))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(workspace)
    yield state
    control.start()
    control.stop()
    close_connections()


def patiently(request: Any, body: bytes = b"") -> Any:
    """Ask until there is a daemon that answers: the same request, which its key makes one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return connection().call(request, body)
        except DaemonError:
            assert time.monotonic() < deadline


def read(execution: str, events: list[dict[str, Any]]) -> None:
    """Read events until the last, from where the reader was, however often the daemon ends meanwhile."""
    deadline = time.monotonic() + 60
    while not events or events[-1]["kind"] not in ("result", "failed"):
        assert time.monotonic() < deadline, events[-3:]
        try:
            for event in connection().follow(Follow(execution, after=events[-1]["seq"] if events else 0)):
                events.append(event)
        except DaemonError:
            continue


def zygote_of(custodian: int) -> int | None:
    return next((pid for pid in sorted(below(custodian)) if "zygote" in command_line(pid)), None)


def directory_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def kill(which: str, delay: float, client: int) -> set[int]:
    """Kill one of the processes, or none if there is none now. Returns what ends with it."""
    time.sleep(delay)
    about = None
    try:
        about = control.status()
    except DaemonError:
        return set()
    if about is None:
        return set()
    victims = {"daemon": about["pid"], "custodian": about["custodian"], "client": client}
    victims["zygote"] = zygote_of(about["custodian"])
    # The worker and its checkpoints work in the session's directory; the kernel that was forked ahead does not.
    victims["kernel"] = min((pid for pid in below(about["custodian"]) if directory_of(pid) == os.getcwd()), default=None)
    if (pid := victims[which]) is None:
        return set()
    with_it = {pid} | (below(pid) if which == "custodian" else set())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return with_it if which != "daemon" else set()


def one_round(number: int, which: str, delay: float) -> tuple[str, int, set[int]]:
    """Submit code by a client of its own, kill something, and read all of it.

    Returns the state, the value that it had, and the processes that are about to end.
    """
    name, key = f"ran-{number}", f"key-{number}"
    code = CODE.format(name=name, lines=LINES)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, key, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert client.stdout is not None
    if number % 3:
        client.stdout.readline()
    with ThreadPoolExecutor(1) as other:
        killing = other.submit(kill, which, delay, client.pid)
        record = patiently(Submit("one", live=True, key=key), code.encode())
        events: list[dict[str, Any]] = []
        read(record["id"], events)
        doomed = killing.result()
    client.kill()
    client.communicate()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    again: list[dict[str, Any]] = []
    read(record["id"], again)
    assert again == events
    ran = Path(name).read_text() if Path(name).exists() else ""
    last = events[-1]
    if last["kind"] == "failed":
        assert ran in ("", "x")
        if last["data"]["ran"] == "no":  # then it can be run again; with the same key, as the client may have done that, too
            result = patiently(Submit("one", wait=True, key=key), code.encode())
            assert result["status"] != "success" or Path(name).read_text() == "x"
            return "again", int(result["return_value"] or 0), doomed
        assert last["data"]["ran"] == "yes", last["data"]
        return "stopped", 0, doomed
    assert ran == "x" if last["data"]["status"] == "success" else ran in ("", "x")
    text = "".join(event["data"]["text"] for event in events if event["kind"] == "stream")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[cellblock]"))
    assert text == last["data"]["output"]
    if last["data"]["status"] == "success":
        assert text == "".join(f"{i}\n" for i in range(LINES))
        return "success", int(last["data"]["return_value"]), doomed
    return str(last["data"]["status"]), 0, doomed


def fresh() -> bool:
    """Begin to count anew; return whether that could be done."""
    try:
        return bool(patiently(Submit("one", wait=True), b"count = 0")["status"] == "success")
    except cellblock.CellblockError:
        return False


@pytest.mark.timeout(320)
@pytest.mark.parametrize("last", [[], ["80"]], ids=["acts", "goes on"])
@pytest.mark.parametrize(("kind", "step"), [("code", 5), ("sessions", 13), ("saves", 21)])
@pytest.mark.sampled(2)
def test_a_daemon_that_is_killed_at_any_point_leaves_what_is_right(
    tmp_path: Path, kind: str, step: int, last: list[str]
) -> None:
    """Code runs once, and sessions are there or not. See `named_kills.py`."""
    state, workspace = tmp_path / "state", tmp_path / "workspace"
    state.mkdir(mode=0o700)
    workspace.mkdir()
    first = random.randint(1, step)
    places = [str(state), str(workspace)]
    command = [sys.executable, str(TESTS / "named_kills.py"), kind, *places, str(first), str(step if not last else 5), *last]
    environment = {**os.environ, "CELLBLOCK_HOME": str(tmp_path / "home")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"from {first} on: {ran.stderr}"
    assert int(ran.stdout) > (12 if kind != "saves" else 6)  # were killed


@pytest.mark.timeout(120 if ROUNDS <= 12 else 600)
async def test_kills_at_any_moment(home: Path) -> None:
    kernel = cellblock.get_or_create("one")
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    dice = random.Random(seed)
    print("seed", seed)
    count = 0
    for number in range(ROUNDS):
        which = dice.choice(["daemon", "daemon", "daemon", "client", "zygote", "kernel", "custodian"])
        state, value, doomed = one_round(number, which, dice.uniform(0, 0.25))
        print(number, which, state, value)
        if which in ("daemon", "client"):  # neither ends the session: its variables are there, and the code ran once
            assert state in ("success", "again")
            assert value == count + 1
            count = value
        else:
            await eventually(lambda doomed=doomed: not any(map(alive, doomed)))
            await eventually(fresh)
            count = 0
    assert [record.kernel_id for record in cellblock.list_kernels()] == [kernel.kernel_id]
    found = about()
    control.stop()
    await eventually(lambda: not alive(found["pid"]) and not alive(found["custodian"]))
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and str(home) in command_line(int(pid))]
    with pytest.raises(NotFoundError):
        patiently(Lookup("0" * 32))


@pytest.mark.timeout(120 if ROUNDS <= 12 else 600)  # 59 daemons take 30 s on a free machine, 150 s on a busy one
@pytest.mark.parametrize("mode", ["wait", "live", "dead"])
@pytest.mark.sampled(3)
def test_a_kill_between_any_two_steps_leaves_no_doubt(home: Path, mode: str) -> None:
    """The daemon is killed at each point at which bytes or records move; the next one knows whether the code ran."""
    home.mkdir(mode=0o700)
    step = "1" if ROUNDS > 12 else "6"
    arguments = [sys.executable, str(TESTS / "killed_daemons.py"), str(home), mode, "1", "60", step]
    done = subprocess.run(arguments, capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(range(1, 60, int(step))), done.stderr
    count = 0
    for one in said:
        text = ["one", "two"] if one["outcome"] == "success" else []
        ran = (one["outcome"], one["state"], one["same"], one["output"])
        assert ran in [(outcome, "done", True, text) for outcome in ("success", "died")], one
        assert one["outcome"] != "died" or mode == "dead", one
        assert one["numbers"] == [*range(1, len(one["numbers"]) + 1)], one
        assert one["ran"] == (one["outcome"] == "success"), one
        if mode != "dead" and one["outcome"] == "success":
            assert int(one["value"]) == count + 1, one
            count += 1
