"""Attack 45: a session over its memory is the only one that ends, and its result says so."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import CodeExecutionResult, Host, Session
from cellblock.walls.sandbox.policy import Policy, Resources
from cells import ok, value
from processes import eventually, parents

pytestmark = pytest.mark.slow

LIMIT = 256 * 2**20

ONE = """
kept = []
while True:
    kept.append(bytearray(b'x') * (8 * 2**20))
"""
MAPPED = """
import mmap, time
kept = mmap.mmap(-1, 2**30)  # shared, and so no data of this process
for at in range(0, 2**30, 4096):
    kept[at] = 1
time.sleep(60)
"""
SPREAD = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(b'x') * (64 * 2**20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
FILES = """
import time
for number in range(64):
    with open(f'/dev/shm/{number}', 'wb') as file:
        file.write(bytes(8 * 2**20))
time.sleep(60)
"""
SOCKETS = """
import socket, time
kept = []
for _ in range(1500):
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        try:
            while True:
                end.send(bytes(2**16))
        except BlockingIOError:
            pass
    kept.append(pair)
time.sleep(60)
"""
LARGE_SOCKETS = """
import socket, time
kept, sent = [], 0
while sent < 600 << 20:  # in as few as the system allows
    pair = socket.socketpair()
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    pair[0].setblocking(False)
    try:
        while True:
            sent += pair[0].send(bytes(2**16))
    except BlockingIOError:
        pass
    kept.append(pair)
time.sleep(60)
"""
TABLES = """
import mmap, time
kept = [mmap.mmap(-1, 2**37, mmap.MAP_PRIVATE | 0x4000, mmap.PROT_READ) for _ in range(3)]
for one in kept:
    for at in range(0, len(one), 2**21):
        one[at]
time.sleep(60)
"""
SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(6):
    place = libc.shmat(libc.shmget(0, ctypes.c_size_t(64 * 2**20), 0o600), None, 0)
    ctypes.memset(place, 1, 64 * 2**20)
    libc.shmdt(place)
time.sleep(60)
"""
QUEUES = """
import ctypes, time
libc = ctypes.CDLL(None)
for _ in range(20_000):
    queue = libc.msgget(0, 0o600)
    for _ in range(2):
        libc.msgsnd(queue, (1).to_bytes(8, 'little') + bytes(8192), ctypes.c_size_t(8192), 0o4000)
time.sleep(60)
"""
LATER = """
import os, threading
def grow():
    for _ in range(8):
        if os.fork() == 0:
            kept = bytearray(b'x') * (64 * 2**20)
            threading.Event().wait()
threading.Timer(0.1, grow).start()
"""


@pytest.fixture
async def small(attacked_host: Host, jail: Session, workspace: Path, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that may use little memory. After the attack another session, and the fork server, are as they were."""
    await ok(jail, "kept = 'theirs'")
    servers = _children()
    policy = replace(Policy(), resources=Resources(memory=LIMIT))
    async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images", policy=policy) as session:
        await ok(session, "mine = 1")
        yield session
        assert await value(session, "6 * 7") == 42
    assert await value(jail, "kept") == "theirs"
    assert _children() == servers


def _children() -> set[int]:
    """Return what this process itself has started: the fork servers."""
    return {pid for pid, parent in parents().items() if parent == os.getpid()}


CODES = {
    "mapped by one process": MAPPED,
    "over children": SPREAD,
    "in files": FILES,
    "in sockets": SOCKETS,
    "in large sockets": LARGE_SOCKETS,
    "in page tables": TABLES,
    "in segments": SEGMENTS,
    "in queues": QUEUES,
}

STAYS = {"in files", "in segments", "in queues"}
"""What does not go with a kernel"""


async def test_memory_of_one_process_is_an_error_that_names_the_limit(small: Session) -> None:
    """The process is refused what it has no room for, and goes on without."""
    result = await small.execute(ONE, timeout=60)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "MemoryError"
    assert result.error.evalue.startswith("out of memory: the session may use 256 MiB; ")
    assert await value(small, "kept.clear(); mine") == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", CODES)
async def test_a_session_over_its_memory_dies_and_its_result_names_the_limit(small: Session, kind: str) -> None:
    result = await small.execute(CODES[kind], timeout=60)
    assert result.status == "died"
    assert result.error is not None
    assert re.search(r"out of memory: its processes used [\d,]+ MiB, and may use 256 MiB", result.error.evalue)
    assert result.recovery in ("restored", "restarted"), result.text  # the second: copies were dropped before that was known
    if kind in STAYS:  # until the sandbox ends with all copies

        async def lost() -> bool:
            if (await small.execute("mine")).status == "error":
                return True
            # On a busy machine it may have died just above the limit, and what stays be below it without its process.
            await small.execute(CODES[kind], timeout=60)
            return False

        await eventually(lost, 60.0)
    kept = result.recovery == "restored" and kind not in STAYS
    assert await value(small, "'mine' in globals()") is kept


async def test_copies_of_a_session_count_and_it_goes_on_without_them(small: Session) -> None:
    """A kernel that may live alone, but not with a copy of an earlier state, is not ended for that."""
    await ok(small, "x = bytearray(150 * 2**20)")
    said = []
    for number in range(60):
        result = await small.execute(f"for page in range(0, len(x), 4096): x[page] = {number}")
        assert result.status == "success", result.text
        said.append(result.not_undoable)
    assert any("too much of its memory for another copy" in why for why in said), said


async def test_short_cells_do_not_hide_what_grows_behind_them(small: Session) -> None:
    """However quickly cells follow each other: it dies in one of them, or between two, which the next result says."""
    await ok(small, LATER)
    results: list[CodeExecutionResult] = []

    async def died() -> bool:
        results.append(await small.execute("1"))
        return "out of memory: its processes used" in (results[-1].text or "")

    await eventually(died, timeout=30)
    assert "and may use 256 MiB" in (results[-1].text or "")
