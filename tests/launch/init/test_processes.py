"""Facts about and power over processes."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.launch.init import processes
from cellblock.walls.linux import syscall
from processes import alive, eventually
from scripts import printed

IMPORT = "from cellblock.launch.init import processes"


@pytest.fixture
def tree() -> list[int]:
    """A process with a child and a grandchild, parents first; all end with the test's process, or before."""
    script = "sh -c 'echo $$; sleep 60 & echo $!; wait' & echo $!; wait"
    process = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    named = {int(process.stdout.readline()) for _ in range(3)}
    process.stdout.close()
    _running.append(process)
    return [process.pid, *sorted(named)]


_running: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _end_trees() -> object:
    yield
    while _running:
        process = _running.pop()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def test_children_are_direct_ones(tree: list[int]) -> None:
    root, child, grandchild = tree
    assert processes.children(root) == [child]
    assert processes.children(child) == [grandchild]
    assert processes.children(grandchild) == []


def test_children_of_threads_are_children_of_the_process() -> None:
    script = """
import subprocess, threading
start = lambda: print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
thread = threading.Thread(target=lambda: (start(), input()))
thread.start()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert processes.children(process.pid) == [child]
        processes.kill([child, process.pid])


def test_descendants_come_after_their_parents(tree: list[int]) -> None:
    assert processes.descendants(tree[0]) == tree[1:]


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="there is no ps")
def test_ps_finds_the_same(tree: list[int]) -> None:
    assert processes._descendants_by_ps(tree[0]) == tree[1:]


def test_a_process_that_is_gone_has_nobody_below() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert processes.children(process.pid) == processes.descendants(process.pid) == []


async def test_killing_reaches_all_and_minds_none_that_is_gone(tree: list[int]) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    processes.kill([gone.pid, *tree[1:]])
    await eventually(lambda: not any(map(alive, tree[1:])))


def test_killing_minds_none_that_belongs_to_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that may use sudo can have children that nobody but root can kill."""
    hit: list[int] = []

    def kill(pid: int, _number: int) -> None:
        if pid == 1:
            raise PermissionError
        hit.append(pid)

    monkeypatch.setattr(os, "kill", kill)
    processes.kill([1, 2])
    assert hit == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
async def test_a_process_may_die_with_its_parent() -> None:
    script = """
import os, signal, time
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    processes.die_with_parent(signal.SIGKILL)
    os.write(writer, b"x")
    time.sleep(60)
os.read(reader, 1)
print(pid)
"""
    (pid,) = map(
        int, subprocess.run([sys.executable, "-c", IMPORT + script], stdout=subprocess.PIPE, check=True).stdout.split()
    )
    await eventually(lambda: not alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_orphans_come_to_a_subreaper() -> None:
    script = """
import os
processes.become_subreaper()
reader, writer = os.pipe()
if (middle := os.fork()) == 0:
    if os.fork() == 0:
        os.read(reader, 1)
        os._exit(7)
    os._exit(0)
os.waitpid(middle, 0)
os.write(writer, b"x")
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert printed(IMPORT + script) == ["7"]


async def test_a_process_is_stopped_when_none_of_its_threads_can_run() -> None:
    code = (
        "import threading\nfor _ in range(3): threading.Thread(target=lambda: exec('while True: pass'), daemon=True).start()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", f"{code}print('go', flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"go\n"
        assert not processes.stopped(program.pid)
        program.send_signal(signal.SIGSTOP)
        await eventually(lambda: processes.stopped(program.pid))
        program.send_signal(signal.SIGCONT)
        await eventually(lambda: not processes.stopped(program.pid))
    finally:
        program.kill()
        program.communicate()
    assert processes.stopped(program.pid)


async def test_a_child_is_stopped_when_this_says_so() -> None:
    code = "import threading; threading.Thread(target=input).start(); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        await eventually(lambda: processes.stop_child(child.pid))  # on a busy machine, it may take longer than one call waits
        assert processes.stopped(child.pid)
        assert processes.stop_child(child.pid)
    finally:
        child.kill()
        child.communicate()


def test_a_child_that_has_ended_is_not_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not processes.stop_child(child.pid)
    finally:
        child.wait()


def test_what_the_system_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="prctl"):
        syscall.prctl(-1, 0)


def test_what_is_resident_is_never_less_than_the_proportional_share(tree: list[int]) -> None:
    for pid in map(str, (os.getpid(), *tree)):
        assert 0 < processes._proportional_share(pid) <= processes.resident(pid)


def test_a_look_at_memory_walks_over_page_tables_only_if_it_may_be_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[str] = []

    def walk(pid: str) -> int:
        walked.append(pid)
        return 1

    monkeypatch.setattr(processes, "_proportional_share", walk)
    assert processes.memory_of_namespace("/tmp", 2**60) > 0
    assert walked == []
    processes.memory_of_namespace("/tmp", 0)
    assert str(os.getpid()) in walked


def apart(program: str) -> list[str]:
    """Run a program in a pid namespace of its own, and return the lines that it prints."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c"]
    done = subprocess.run([*command, f"{IMPORT}\n{program}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces")
def test_only_processes_of_the_namespace_are_counted_if_proc_shows_others() -> None:
    """Its own /proc is not mounted: what is there is that of the namespace around it."""
    assert apart("print(len(processes._pids_of_namespace()), processes.has_own_proc())") == ["1 False"]
    assert processes.has_own_proc()
    assert str(os.getpid()) in processes._pids_of_namespace()


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces")
def test_what_is_below_another_process_is_known_if_proc_has_other_numbers() -> None:
    program = """
import os, signal
top, ours = os.pipe()
if not (child := os.fork()):
    if (below := os.fork()):
        os.write(ours, b"%d" % below)
    signal.pause()
below = int(os.read(top, 20))
print(processes.descendants(child) == processes.children(child) == [below], processes.descendants(below))
print(processes.descendants(os.getpid()) == [child, below], processes.descendants(10_000_000))
"""
    assert apart(program) == ["True []", "True []"]


def test_no_room_for_a_descriptor_out_of_the_way_is_a_lack_of_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (processes.HIGH - 4, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            processes.move_high(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    moved = processes.move_high(0)
    assert moved >= processes.HIGH
    os.close(moved)


def test_descriptors_of_any_number_can_be_waited_for() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert not processes.is_readable(high)
        os.write(writer, b"x")
        assert processes.is_readable(high)
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)
