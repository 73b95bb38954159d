"""Attacks 3 to 5 and 12 to 18: system calls that lead out, up, or into old bugs of the kernel."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from cellblock import Session
from cells import ok, value

CLONE_NEW = {
    "NEWNS": 0x20000,
    "NEWCGROUP": 0x2000000,
    "NEWUTS": 0x4000000,
    "NEWIPC": 0x8000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}

# Call → arguments that would work, were it allowed.
REFUSED: dict[str, tuple[Any, ...]] = {
    # 3
    "mount": (b"none", b"/tmp", b"tmpfs", 0, 0),
    "umount2": (b"/proc", 2),
    "fsopen": (b"tmpfs", 0),
    "fsconfig": (-1, 6, 0, 0, 0),
    "fsmount": (-1, 0, 0),
    "fspick": (-100, b"/", 0),
    "open_tree": (-100, b"/", 1),
    "open_tree_attr": (-100, b"/", 1, 0, 0),
    "move_mount": (-100, b"/tmp", -100, b"/home", 0),
    "mount_setattr": (-100, b"/", 0, bytes(32), 32),
    "chroot": (b"/tmp",),
    "pivot_root": (b".", b"."),
    "statmount": (0, 0, 0, 0),
    "listmount": (0, 0, 0, 0),
    # 4
    "open_by_handle_at": (-100, bytes(16), 0),
    "name_to_handle_at": (-100, b"/", bytes(136), bytes(4), 0),
    # 12
    "setns": (0, 0),
    # 14
    "keyctl": (0, -3, 0, 0, 0),
    "add_key": (b"user", b"name", b"x", 1, -3),
    "request_key": (b"user", b"name", 0, -3),
    "bpf": (0, bytes(64), 64),
    "ptrace": (0, 0, 0, 0),
    "process_vm_readv": (1, 0, 0, 0, 0, 0),
    "process_vm_writev": (1, 0, 0, 0, 0, 0),
    "process_madvise": (0, 0, 0, 0, 0),
    "pidfd_getfd": (0, 0, 0),
    "kcmp": (1, 1, 0, 0, 0),
    "userfaultfd": (1,),
    "perf_event_open": (bytes(128), 0, -1, -1, 0),
    "splice": (0, 0, 1, 0, 1, 0),
    "tee": (0, 1, 1, 0),
    "vmsplice": (1, 0, 0, 0),
    # The rest of the policy's refusals.
    "seccomp": (1, 0, 0),
    "mbind": (0, 0, 0, 0, 0, 0),
    "set_mempolicy": (0, 0, 0),
    "move_pages": (0, 0, 0, 0, 0, 0),
    "migrate_pages": (0, 0, 0, 0),
    "syslog": (3, bytes(64), 64),
    "reboot": (0xFEE1DEAD - (1 << 32), 672274793, 0, 0),
    "swapoff": (b"/swap",),
    "sethostname": (b"x", 1),
    "settimeofday": (0, 0),
    "init_module": (0, 0, b""),
    "kexec_load": (0, 0, 0, 0),
    "fanotify_init": (0, 0),
    "quotactl": (0, 0, 0, 0),
    "acct": (0,),
}

# 12 and 15
ABSENT: dict[str, tuple[Any, ...]] = {
    "clone3": (bytes(88), 88),
    "io_uring_setup": (8, bytes(120)),
    "io_uring_enter": (0, 0, 0, 0, 0, 0),
    "io_uring_register": (0, 0, 0, 0),
    "openat2": (-100, b"/", bytes(24), 24),
    "sendfile": (1, 0, 0, 0),
    "memfd_create": (b"x", 0),
    "memfd_secret": (0,),
    "landlock_create_ruleset": (0, 0, 1),
    "file_setattr": (-100, b".", bytes(24), 24, 0),
}


@pytest.mark.parametrize(("name", "arguments"), REFUSED.items(), ids=REFUSED)
async def test_a_dangerous_call_is_refused(cell: Session, name: str, arguments: tuple[Any, ...]) -> None:
    assert await value(cell, f"call(NR[{name!r}], *{arguments!r})") == "EPERM"


@pytest.mark.parametrize(("name", "arguments"), ABSENT.items(), ids=ABSENT)
async def test_a_call_that_walks_past_the_filter_does_not_exist(cell: Session, name: str, arguments: tuple[Any, ...]) -> None:
    assert await value(cell, f"call(NR[{name!r}], *{arguments!r})") == "ENOSYS"


async def test_numbers_that_no_kernel_knows_do_not_exist(cell: Session) -> None:
    assert await value(cell, "{call(number) for number in (999, 5000, 0x3FFFFFFF)}") == {"ENOSYS"}


@pytest.mark.parametrize("flag", CLONE_NEW)
async def test_no_new_namespaces_by_unshare_and_clone(cell: Session, flag: str) -> None:
    bits = CLONE_NEW[flag]
    assert await value(cell, f"call(NR['unshare'], {bits})") == "EPERM"
    assert await value(cell, f"call(NR['clone'], {bits | 17}, 0, 0, 0, 0)") == "EPERM"


async def test_time_namespaces_cannot_be_made_either(cell: Session) -> None:
    assert await value(cell, "call(NR['unshare'], 0x80)") == "EPERM"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 runs the system calls of older processors")
async def test_system_calls_of_another_architecture_kill(cell: Session) -> None:
    code = """
import mmap
# mov eax, 20 (getpid); int 0x80; ret
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b814000000cd80c3'))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
end(ctypes.CFUNCTYPE(ctypes.c_int)(address))
"""
    assert await value(cell, code) == "SIGSYS"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has x32")
async def test_system_calls_of_x32_kill(cell: Session) -> None:
    assert await value(cell, "end(lambda: libc.syscall(ctypes.c_long(0x40000000 + 39)))") == "SIGSYS"


@pytest.mark.parametrize("command", ["0x5412", "0x5412 | 1 << 32", "0x5412 | 0xFFFFFFFF << 32", "0x541C", "0x5423"])
async def test_nothing_can_be_typed_into_a_terminal(cell: Session, command: str) -> None:
    code = f"""
master, slave = os.openpty()
got = call(NR['ioctl'], slave, {command}, b'x')
os.close(master), os.close(slave)
got
"""
    assert await value(cell, code) == "EPERM"


async def test_odd_address_families_do_not_exist(cell: Session) -> None:
    code = "{family: call(NR['socket'], family, kind, 0) for family in range(3, 46) if family != 10 for kind in (1, 2, 3, 5)}"
    found = await value(cell, code)
    assert found.pop(16) in ("ENOTSUP", "EOPNOTSUPP")  # one number with two names
    assert set(found.values()) == {"EAFNOSUPPORT"}


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [(3, 1), (3, 255), (1, 132), (5, 132), (6, 33), (1, 262), (2, 136), (2, 1), (10, 3)],
    ids=["raw ICMP", "raw", "SCTP", "SCTP packets", "DCCP", "MPTCP", "UDP-Lite", "ping", "packet"],
)
async def test_odd_protocols_do_not_exist(cell: Session, kind: int, protocol: int) -> None:
    assert await value(cell, f"[call(NR['socket'], family, {kind}, {protocol}) for family in (2, 10)]") == ["EAFNOSUPPORT"] * 2


async def test_socketpairs_are_local(cell: Session) -> None:
    assert await value(cell, "{call(NR['socketpair'], family, 1, 0, bytes(8)) for family in (2, 10, 16, 40)}") == {
        "EAFNOSUPPORT"
    }


@pytest.mark.parametrize(("level", "option"), [(6, 31), (6, 19), (17, 100), (1, 26), (1, 50), (1, 51), (1, 52)])
async def test_sockets_take_no_programs_and_no_layers(cell: Session, level: int, option: int) -> None:
    code = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if {level} == 17 else socket.SOCK_STREAM) as it:
    got = answer(it.setsockopt, {level}, {option}, bytes(16))
got
"""
    assert await value(cell, code) == "EPERM"


@pytest.mark.parametrize(
    "command", ["40086602", "40046602", "401C5820", "40087602", "5000940E", "40806685", "100000000 + 0x40086602"]
)
async def test_attributes_of_files_that_outlive_the_session_cannot_be_set(
    cell: Session, workspace: Path, command: str
) -> None:
    code = f"""
held = os.open('.', os.O_RDONLY)
given = (0x10).to_bytes(32, 'little')
got = call(NR['ioctl'], held, 0x{command}, given), call(NR['ioctl'], held, 0x80086601, b' ' * 8)
os.close(held)
got
"""
    refused, read = await value(cell, code)
    assert refused == "EPERM"
    assert read in (0, "ENOTTY")
    (workspace / "made").touch()


async def test_sets_of_semaphores_are_small(cell: Session) -> None:
    assert await value(cell, "[call(NR['semget'], 0, count, 0) for count in (16, 250, 32000)]") == ["EINVAL"] * 3
    assert await value(cell, "call(NR['semget'], 0, 15, 0o600) >= 0")


@pytest.mark.parametrize("option", [22, 0x59616D61, 35, 62, 59, 78, 79, 10_000])
async def test_dangerous_options_of_prctl_are_refused(cell: Session, option: int) -> None:
    assert await value(cell, f"call(NR['prctl'], {option}, 1, 0, 0, 0)") == "EPERM"


async def test_harmless_options_of_prctl_work(cell: Session) -> None:
    code = "[call(NR['prctl'], 15, b'name', 0, 0, 0), call(NR['prctl'], 3, 0, 0, 0, 0), call(NR['prctl'], 36, 1, 0, 0, 0)]"
    assert await value(cell, code) == [0, 1, 0]


async def test_watches_and_pending_signals_are_few(cell: Session) -> None:
    """The kernel's user namespace has limits of its own in /proc; those of the session above it hold all the same."""
    code = """
import resource, tempfile
place = tempfile.mkdtemp()
names = [f'{place}/{number}'.encode() for number in range(1100)]
for name in names: open(name, 'w').close()
made, watches, ended = [], 0, None
while isinstance(number := call(NR['inotify_init1'], 0), int) and len(made) < 1000:
    made.append(number)
    for name in names:
        answer_ = call(NR['inotify_add_watch'], number, name, 0x2)
        if not isinstance(answer_, int):
            ended = answer_
            break
        watches += 1
for one in made: os.close(one)
for name in names: os.unlink(name)
len(made), number, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] <= 4096, ended, watches <= 16384
"""
    assert await value(cell, code) == (16, "EMFILE", True, "ENOSPC", True)


async def test_only_harmless_personalities_can_be_taken_on(cell: Session) -> None:
    assert await value(cell, "call(NR['personality'], 0x0400000)") == "EPERM"
    assert await value(cell, "call(NR['personality'], 0xFFFFFFFF)") == 0


# 5
async def test_set_id_bits_do_not_land_in_the_workspace(jail: Session) -> None:
    await ok(jail, "write('file')")
    for mode in ("0o4755", "0o2755", "0o6755"):
        code = f"""
[
    answer(os.chmod, 'file', {mode}),
    answer(lambda: os.fchmod(os.open('file', os.O_RDWR), {mode})),
    answer(os.open, 'other', os.O_CREAT | os.O_WRONLY, {mode}),
    answer(os.open, '.', os.O_TMPFILE | os.O_WRONLY, {mode}),
    answer(os.mkdir, 'directory', {mode}),
    answer(os.mknod, 'node', {mode} | 0o100000),
    call(NR['fchmodat2'], -100, b'file', {mode}, 0),
]
"""
        assert await value(jail, code) == ["EPERM"] * 7, mode


async def test_no_devices_can_be_made(jail: Session) -> None:
    code = "[answer(os.mknod, 'node', kind | 0o666, os.makedev(1, 1)) for kind in (0o020000, 0o060000)]"
    assert await value(jail, code) == ["EPERM", "EPERM"]


async def test_files_get_no_attributes(jail: Session) -> None:
    """A default access list would open files that the user makes in the workspace later, whatever the umask."""
    entries = "".join(f"{tag:02x}00{rights:02x}00ffffffff" for tag, rights in ((1, 7), (4, 7), (32, 7)))
    await ok(jail, f"write('file'); given = bytes.fromhex('02000000{entries}')")
    for name in ("security.capability", "system.posix_acl_default", "system.posix_acl_access", "user.x"):
        code = f"""
[answer(os.setxattr, '.', {name!r}, given), answer(os.setxattr, os.open('.', os.O_RDONLY), {name!r}, given),
 answer(os.removexattr, 'file', {name!r}), answer(lambda: os.setxattr('file', {name!r}, given, follow_symlinks=False))]
"""
        assert set(await value(jail, code)) <= {"ENOTSUP", "EOPNOTSUPP"}, name  # one number with two names


@pytest.mark.parametrize("command", [1024, 1026])
async def test_the_host_waits_for_nobody_to_open_a_file(cell: Session, command: int) -> None:
    """A lease on a file, also on one of the interpreter, that is the user's: who opens it waits up to 45 seconds for it."""
    code = f"""
import fcntl
write('leased')
with open('leased') as file:
    said = answer(fcntl.fcntl, file, {command}, 1)
said, answer(fcntl.fcntl, os.open('.', os.O_RDONLY), {command}, 1)
"""
    assert await value(cell, code) == ("EPERM", "EPERM")
