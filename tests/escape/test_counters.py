"""Attack 45: use up what all processes of the user outside share, or kernel memory that no limit of Linux holds for."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.walls.sandbox.policy import Policy, Resources
from cells import ok, value

pytestmark = pytest.mark.slow

IN_FLIGHT = """
import array, socket, time
kept = []
def send(most):
    for _ in range(most // 250):
        pair = socket.socketpair()
        try:
            pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))])
        except OSError as error:
            return error.errno
        kept.append(pair)
"""
WATCHES = """
import os, select, time
kept = [os.eventfd(0) for _ in range(1900)]
for _ in range(120):
    kept.append(select.epoll())
    for one in kept[:1900]:
        kept[-1].register(one)
time.sleep(60)
"""
LOCKS = """
import fcntl, os, time
kept = []
for number in range(400):
    kept.append(os.open(f'{number}.lock', os.O_RDWR | os.O_CREAT))
    for place in range(500):
        fcntl.lockf(kept[-1], fcntl.LOCK_EX, 1, 2 * place)
time.sleep(60)
"""
LOCKS_OF_FILES = """
import fcntl, os, struct, time
kept = []
for number in range(400):
    kept.append(os.open(f'{number}.lock', os.O_RDWR | os.O_CREAT))
    for place in range(500):
        fcntl.fcntl(kept[-1], fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2 * place, 1, 0))
time.sleep(60)
"""
MAPS = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(60_000 * 4096), 3, 0x4022, -1, ctypes.c_long(0))
for page in range(0, 60_000, 2):
    libc.mprotect(ctypes.c_void_p(place + page * 4096), ctypes.c_size_t(4096), 1)
for _ in range(9):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
KINDS = {
    "watches": (WATCHES, "watches of epoll"),
    "locks": (LOCKS, "file locks"),
    "locks of open files": (LOCKS_OF_FILES, "file locks"),
    "maps": (MAPS, "memory maps"),
    "descriptors in messages": (IN_FLIGHT + "send(2000), time.sleep(60)", "descriptors in unreceived messages"),
}


@pytest.fixture
async def other(attacked_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """Another session, which notices nothing."""
    place = tmp_path / "other"
    place.mkdir()
    async with attacked_host.session(working_dir=place) as session:
        await ok(session, "kept = 'theirs'")
        yield session
        assert await value(session, "kept") == "theirs"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_with_too_much_of_the_kernels_memory_ends_and_its_result_says_what(
    jail: Session, other: Session, kind: str
) -> None:
    code, named = KINDS[kind]
    result = await jail.execute(code, timeout=60)
    assert result.status == "died", result.text
    assert result.error is not None
    assert f" {named} or more; the limit is " in result.error.evalue
    assert await value(jail, "6 * 7") == 42


async def test_descriptors_in_flight_leave_room_for_trusted_processes(
    attacked_host: Host, other: Session, workspace: Path, tmp_path: Path
) -> None:
    """A process sends while all that its user has in flight is below its own limit: those that are trusted have a higher one."""
    policy = replace(Policy(), resources=Resources(open_files=512))
    async with attacked_host.session(working_dir=workspace, policy=policy) as attacker:
        assert await value(attacker, f"{IN_FLIGHT}\nsend(5000)") == 109  # ETOOMANYREFS, long before these are sent
        await ok(other, "kept = 'theirs'; x = 1")
        await other.undo()
        assert (await other.exec(["echo", "works"])).stdout == b"works\n"
        async with attacked_host.session(working_dir=tmp_path / "other") as third:
            assert await value(third, "6 * 7") == 42


@pytest.mark.parametrize("open_files", [4096, 2**20])
async def test_limits_of_sessions_are_below_those_of_trusted_processes(
    attacked_host: Host, workspace: Path, open_files: int
) -> None:
    """However low the host's own limit is, and however high that of the policy."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[0]), before[1]))
    try:
        policy = replace(Policy(), resources=Resources(open_files=open_files))
        async with attacked_host.session(working_dir=workspace, policy=policy) as session:
            theirs = await value(session, "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(max(theirs) + 253, before[1])
        assert max(theirs) <= before[1] // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_the_terminals_of_a_session_are_few(jail: Session, other: Session) -> None:
    code = """
kept = []
while len(kept) < 1000 and isinstance(pair := answer(os.openpty), tuple):
    kept.append(pair)
len(kept), pair
"""
    assert await value(jail, code) == (64, "ENOSPC")
    assert await value(other, "import os; len(os.openpty())") == 2


async def test_what_the_machine_has_one_maximum_for_does_not_exist(jail: Session) -> None:
    assert await value(jail, "call(NR['io_setup'], 1, ctypes.byref(ctypes.c_ulong()))") == "ENOSYS"


async def test_pipes_are_not_made_larger(jail: Session) -> None:
    code = "import fcntl; ends = os.pipe(); [answer(fcntl.fcntl, ends[0], 1031, size) for size in (1 << 20, (1 << 16) + 1, 1 << 16, 4096)]"
    assert await value(jail, code) == ["EPERM", "EPERM", 1 << 16, 4096]


async def test_a_queue_of_messages_is_not_all_that_the_user_may_have(jail: Session) -> None:
    code = "import resource; resource.getrlimit(12)[0]"
    assert await value(jail, code) <= 128 * 1024 < 819_200
