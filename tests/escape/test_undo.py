"""Attack 64: a cell attacks what its undo goes back to. The undo is exact, or it is refused with the reason."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.errors import CheckpointError
from cells import ok, value
from processes import eventually, parents

from .conftest import armed_session

pytestmark = pytest.mark.slow

STATE = """
import ctypes, os, resource, signal, threading, time
secret = ' '.join(['the', 'true', 'state'])
opened = open('numbers.txt', 'w+')
opened.write('0123456789'), opened.flush(), opened.seek(3)
def traits():
    return [
        secret, opened.tell(), os.get_blocking(opened.fileno()), os.nice(0), os.sched_getscheduler(0), len(os.sched_getaffinity(0)),
        [resource.getrlimit(one) for one in range(16)],
    ]
"""
COPIES = """
def copies():
    try:
        there = [int(name) for name in os.listdir('/proc') if name.isdigit()]
    except OSError:
        return GIVEN  # under Landlock, /proc shows nothing: other processes' numbers are guessed
    return [pid for pid in there if pid not in (1, os.getpid())]
"""
MEMORY = """
found = []
for pid in copies():
    for line in read(f'/proc/{pid}/maps').splitlines():
        if ' rw' in line:
            low, high = (int(end, 16) for end in line.split()[0].split('-'))
            with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as memory:
                memory.seek(low)
                data = answer(memory.read, high - low)
                place = data.find(b'the true ' + b'state') if isinstance(data, bytes) else -1
                while place >= 0:
                    memory.seek(low + place)
                    memory.write(b'the attacker!!'), found.append(pid)
                    place = data.find(b'the true ' + b'state', place + 1)
"""
FILES = """
for pid in copies():
    for name in 'oom_score_adj', 'clear_refs', 'coredump_filter', 'timerslack_ns', 'comm', 'attr/current', 'sched', 'autogroup':
        write(f'/proc/{pid}/{name}', '1')
    for number in range(64):
        answer(os.open, f'/proc/{pid}/fd/{number}', os.O_RDWR), answer(os.listdir, f'/proc/{pid}/map_files')
    for name, *rest in ('ptrace', 16, pid), ('process_vm_writev', pid, 0, 0, 0, 0, 0), ('pidfd_getfd', answer(os.pidfd_open, pid), 3, 0):
        assert call(NR[name], *(one if isinstance(one, int) else -1 for one in rest)) == 'EPERM'
"""
LIMITS = """
for pid in copies():
    for which in range(16):
        answer(resource.prlimit, pid, which, (1, 1))
        answer(resource.prlimit, pid, which, (resource.getrlimit(which)[1],) * 2)
"""
PRIORITIES = """
for pid in copies():
    answer(os.setpriority, os.PRIO_PROCESS, pid, 19)
    answer(os.setpriority, os.PRIO_PGRP, answer(os.getpgid, pid), 19)
    answer(os.setpriority, os.PRIO_USER, os.getuid(), 19)
    answer(os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))})
    answer(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    call(NR['ioprio_set'], 1, pid, 3 << 13)
"""
SIGNALS = """
for pid in copies():
    for number in {*range(1, 65)} - {9, 19, 20, 21, 22}:
        answer(os.kill, pid, number)
        answer(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
"""
STOPPING = """
def stop():
    while True:
        for pid in copies():
            answer(os.kill, pid, signal.SIGSTOP)
        time.sleep(0.001)
for pid in copies():
    os.kill(pid, signal.SIGSTOP)
threading.Thread(target=stop, daemon=True).start()
"""
KILLING = """
for pid in copies():
    answer(os.kill, pid, signal.SIGKILL)
"""
SHARED = """
os.lseek(opened.fileno(), 9, 0), os.set_blocking(opened.fileno(), False)
os.ftruncate(opened.fileno(), 4)
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            try:
                exec(ATTACK)
            except Exception:
                pass
    os._exit(0)
os.wait()
"""
EXACT = {
    "writes to its memory": MEMORY,
    "writes to its files": FILES,
    "limits it": LIMITS,
    "slows it down": PRIORITIES,
    "signals it": SIGNALS,
    "stops it": STOPPING,
    "uses shared descriptors": SHARED,
    "leaves a daemon": f"ATTACK = {MEMORY + LIMITS + SIGNALS!r}\n{DAEMON}",
}


@pytest.fixture
async def attacked(attacked_host: Host, workspace: Path) -> AsyncIterator[Session]:
    """A session with a state to go back to."""
    async with armed_session(attacked_host, workspace) as session:
        await ok(session, STATE)
        yield session


async def attack(session: Session, code: str) -> None:
    """Run a hostile cell that knows the numbers of the copies."""
    states, past = session._checkpoints.automatic, session.cells.past
    await eventually(lambda: any(one.moment.state == past.state for one in states.all()))
    tree = parents()
    waiting = [pid for pid in tree if _name(pid) == "checkpoint" and os.getpid() in ancestors(pid, tree)]
    await ok(session, f"GIVEN = {waiting!r}\n{COPIES}\n{code}", timeout=60)


def ancestors(pid: int, tree: dict[int, int]) -> list[int]:
    """Return the ancestors of a process, nearest first: no process of another test may be attacked."""
    found = []
    while (pid := tree.get(pid, 0)) > 1:
        found.append(pid)
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.parametrize("kind", EXACT)
async def test_the_undo_of_a_hostile_cell_is_exact(attacked: Session, kind: str) -> None:
    before = await value(attacked, "traits()")
    await attack(attacked, EXACT[kind])
    await attacked.undo()
    assert await value(attacked, "traits()") == before
    assert await value(attacked, "open('numbers.txt').read()") == "0123456789"
    assert await value(attacked, "'copies' in globals()") is False


async def test_a_cell_that_ends_what_its_undo_goes_back_to_is_not_undone(attacked: Session) -> None:
    await attack(attacked, KILLING)
    with pytest.raises(CheckpointError, match="there is no checkpoint from before that cell: "):
        await attacked.undo()
    assert await value(attacked, "secret") == "the true state"
    await ok(attacked, "secret = 1")  # and the next one is
    await attacked.undo()
    assert await value(attacked, "secret") == "the true state"


async def test_memory_that_is_shared_with_the_past_is_named(attacked: Session) -> None:
    """Also if it was not mapped by Python's module."""
    code = "libc.mmap.restype = ctypes.c_void_p\nplace = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x21, -1, ctypes.c_long(0))"
    await ok(attacked, code)
    await ok(attacked, "ctypes.memset(place, 1, 8)")
    await attacked.undo()
    result = await ok(attacked, "1")
    assert "Shared memory" in (result.stderr or "") + (result.text or "")


async def test_memory_of_a_process_that_hides_counts(attacked: Session) -> None:
    """Waiting copies hide, and so can any other process: init cannot look into it."""
    assert attacked._kernels.current is not None
    memory = attacked._kernels.current.memory
    await ok(
        attacked,
        """
if os.fork() == 0:
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    kept = bytearray(b'x') * (200 << 20)
    time.sleep(60)
    os._exit(0)
""",
    )
    memory.limit = 100 << 20

    async def noticed() -> bool:
        return "out of memory" in ((await attacked.execute("time.sleep(0.1)")).text or "")

    await eventually(noticed, timeout=30)
