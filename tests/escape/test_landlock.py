"""Attacks from inside a sandbox made of Landlock, with the default policy: attack 56, and what of the others is different here.

They run with the rights of every version of Landlock. That is what an older kernel would do: a right that is not asked for does
not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cellblock import CodeExecutor, Host, Session
from cellblock.common import config
from cellblock.errors import NO_NETWORK_BY_LANDLOCK
from cellblock.walls.linux import landlock
from cellblock.walls.sandbox.policy import Filesystem, Policy, Resources
from cells import ok, value
from processes import alive, eventually

from .conftest import arm
from .test_processes import kill_host
from .test_system_calls import ABSENT, REFUSED

pytestmark = pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))

_PR_SET_SECUREBITS, _SECBIT_NOROOT = 28, 1

# For the oldest, init does most. Sessions of `landlock_host` have the newest.
VERSIONS = [
    pytest.param(number, id=f"abi {number}", marks=() if number == 1 else pytest.mark.slow)
    for number in range(1, min(landlock.version(), 6) + 1)
]


@contextlib.asynccontextmanager
async def session_at(version: int, host: Host, place: Path, policy: Policy | None = None) -> AsyncIterator[Session]:
    """A session with the attacker's tools, and with the rights of a version of Landlock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landlock, "version", lambda: version)
        # Checkpoints that it makes by itself would look like what a test has left behind.
        async with host.session(working_dir=place, images_dir=place / "images", policy=policy, recovery="none") as session:
            yield await arm(session)


@pytest.fixture(scope="module", params=VERSIONS)
async def attacker(
    request: pytest.FixtureRequest, landlock_host: Host, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Session]:
    """A session for all attacks that change nothing."""
    async with session_at(request.param, landlock_host, tmp_path_factory.mktemp("attacker")) as session:
        yield session


async def test_files_outside_cannot_be_opened_listed_or_made(attacker: Session, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    here = Path(__file__)
    paths = ["/etc/shadow", "/etc/hostname", str(here), str(tmp_path / "secret"), "/proc/net/tcp6/x", "/proc/kallsyms"]
    assert {await value(attacker, f"read({path!r})") for path in paths} <= {"EACCES", "ENOTDIR"}
    places = [
        "/",
        "/root",
        "/home",
        "/tmp",
        "/etc",
        "/dev",
        "/dev/shm",
        "/proc",
        "/run",
        "/var",
        str(tmp_path),
        str(here.parent),
    ]
    assert await value(attacker, f"{{answer(os.listdir, path) for path in {places}}}") <= {"EACCES", "ENOENT"}
    changes = [f"write('{tmp_path}/new')", f"answer(os.mkdir, '{tmp_path}/new')", f"answer(os.unlink, '{tmp_path}/secret')"]
    changes += [f"answer(os.truncate, '{tmp_path}/secret', 0)", f"answer(os.rename, '{tmp_path}/secret', 'mine')"]
    changes += [f"answer(os.link, '{tmp_path}/secret', 'mine')", "write('/tmp/new')", "write('/dev/shm/new')"]
    assert {await value(attacker, change) for change in changes} <= {"EACCES", "EPERM", "EXDEV"}
    assert (tmp_path / "secret").read_text() == "x"


async def test_system_and_interpreter_are_read_only(attacker: Session) -> None:
    code = """
import sys, IPython
places = ['/usr', '/usr/bin', '/etc', '/proc/sys/kernel', '/sys/devices/system/cpu', os.path.dirname(os.path.realpath(sys.executable))]
places += [os.path.dirname(os.__file__), os.path.dirname(IPython.__file__)]
{write(f'{place}/planted') for place in places} | {answer(os.open, os.__file__, os.O_WRONLY)}
"""
    assert await value(attacker, code) <= {"EACCES", "EROFS", "ENOENT"}  # the last: sysfs and procfs make nothing
    assert await value(attacker, "answer(os.open, '/proc/sys/kernel/core_pattern', os.O_WRONLY)") == "EACCES"


async def test_attributes_of_files_outside_stay(attacker: Session, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch(0o600)
    before = victim.stat()
    await ok(attacker, f"it = {str(victim)!r}")
    for change in (
        "os.chmod(it, 0o777)",
        "os.chmod(os.path.relpath(it), 0o777)",
        "os.chmod(it, 0o4755)",
        "os.utime(it, (1, 1))",
        "os.chown(it, -1, -1)",
        "os.setxattr(it, 'user.x', b'x')",
        "os.getxattr(it, 'user.x')",
        "os.chmod(os.path.basename(it), 0o777, dir_fd=os.open(os.path.dirname(it), os.O_PATH))",
    ):
        assert await value(attacker, f"action = lambda: {change}; answer(action)") in ("EPERM", "ENOTSUP"), change
    for link in ("link", "link/../link"):
        await value(attacker, f"[os.path.lexists('link') or os.symlink(it, 'link'), answer(os.chmod, {link!r}, 0o777)][1]")
    after = victim.stat()
    assert (after.st_mode, after.st_mtime, after.st_uid) == (before.st_mode, before.st_mtime, before.st_uid)
    await ok(attacker, "os.unlink('link')")


async def test_attributes_of_what_can_be_read_stay(attacker: Session) -> None:
    code = """
import sys
held = [os.open(way, os.O_RDONLY) for way in (os.__file__, sys.executable)]
[answer(os.fchmod, one, 0o777) for one in held] + [answer(os.utime, one, (1, 1)) for one in held]
"""
    assert await value(attacker, code) == ["EPERM"] * 4


async def test_attributes_of_ones_own_files_can_be_changed(attacker: Session) -> None:
    code = """
import shutil, stat
write('own'); os.makedirs('deep/er', exist_ok=True)
os.chmod('own', 0o750); os.utime('own', (1, 2)); shutil.copy2('own', 'deep/er/copy')
held = os.open('deep/er/copy', os.O_RDWR); os.fchmod(held, 0o700); os.utime(held, ns=(3, 4))
os.chmod('copy', 0o711, dir_fd=os.open('deep/er', os.O_RDONLY))
os.symlink('own', 'to own'); os.chmod('to own', 0o751); os.utime('to own', (5, 6), follow_symlinks=False)
home = os.path.expanduser('~/f'); write(home); os.chmod(home, 0o700)
[oct(stat.S_IMODE(os.stat(path).st_mode)) for path in ('own', 'deep/er/copy', home)], os.stat('own').st_mtime, os.stat('deep/er/copy').st_mtime_ns
"""
    assert await value(attacker, code) == (["0o751", "0o711", "0o700"], 2.0, 4)
    assert await value(
        attacker, "[answer(os.chmod, 'own', 0o4755), answer(os.chmod, 'none', 0o700), answer(os.chmod, '', 0)]"
    ) == [
        "EPERM",
        "ENOENT",
        "ENOENT",
    ]


async def test_what_is_changed_in_memory_while_init_looks_makes_no_difference(attacker: Session, tmp_path: Path) -> None:
    """A path, and a directory, that lead somewhere else at every other look."""
    victim = tmp_path / "victim"
    victim.touch(0o600)
    code = f"""
import threading
outside = {str(victim)!r}.encode()
inside = os.path.join(os.getcwd(), 'o').encode(); write('o')
path, stop = ctypes.create_string_buffer(max(len(outside), len(inside)) + 1), threading.Event()
def change():
    while not stop.is_set():
        path.value = outside
        path.value = inside
        os.path.lexists('way') and os.unlink('way')
        os.symlink(outside, 'way')
        os.unlink('way')
        os.symlink('o', 'way')
thread = threading.Thread(target=change); thread.start()
said = {{call(NR['fchmodat'], -100, path, 0o777) for _ in range(500)}} | {{answer(os.chmod, 'way', 0o777) for _ in range(500)}}
stop.set(); thread.join()
said
"""
    await ok(attacker, code)
    assert victim.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside that any signal ends, without capabilities: Linux protects only those of other users from it."""
    drop = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_SECUREBITS, _SECBIT_NOROOT, 0, 0, 0)  # an ordinary user has none
    with subprocess.Popen(["sleep", "60"], start_new_session=True, preexec_fn=drop) as process:
        yield process
        process.kill()


async def test_no_other_process_is_signalled_limited_traced_or_read(
    attacker: Session, victim: subprocess.Popen[bytes]
) -> None:
    outside = [os.getpid(), victim.pid, *await value(attacker, "[os.getppid()]")]
    for pid in outside:
        tries = [
            f"answer(os.kill, {pid}, 0)",
            f"answer(os.setpriority, 0, {pid}, 5)",
            f"answer(os.sched_setaffinity, {pid}, {{0}})",
        ]
        tries += [f"__import__('resource') and answer(__import__('resource').prlimit, {pid}, 7, (1, 1))"]
        tries += [
            f"answer(__import__('signal').pidfd_send_signal, os.pidfd_open({pid}), 0)",
            f"call(NR['ptrace'], 16, {pid}, 0, 0)",
        ]
        tries += [f"call(NR['ioprio_set'], 1, {pid}, 0)", f"call(NR['process_vm_readv'], {pid}, 0, 0, 0, 0, 0)"]
        assert {await value(attacker, attempt) for attempt in tries} == {"EPERM"}
        looks = ["environ", "mem", "maps", "cmdline", "status", "fd", "net/tcp"]
        found = {await value(attacker, f"answer(os.open, '/proc/{pid}/{name}', os.O_RDONLY)") for name in looks}
        assert found == {"EACCES"}
        assert (
            await value(attacker, f"[answer(os.readlink, f'/proc/{pid}/{{name}}') for name in ('cwd', 'exe', 'root')]")
            == ["EACCES"] * 3
        )
    assert all(alive(pid) for pid in outside)


async def test_no_signal_gets_out_in_any_way(attacker: Session, victim: subprocess.Popen[bytes]) -> None:
    pid = victim.pid
    tries = [f"call(NR['{name}'], {pid}, 9, 0)" for name in ("kill", "tkill")]
    tries += [f"call(NR['kill'], {pid} + (1 << 32), 9)", f"call(NR['kill'], {-pid}, 9)"]
    tries += [f"call(NR['tgkill'], {pid}, {pid}, 9)", f"call(NR['tgkill'], os.getpid(), {pid}, 9)"]
    tries += [f"call(NR['rt_sigqueueinfo'], {pid}, 9, information)"]
    tries += [f"call(NR['rt_tgsigqueueinfo'], {pid}, {pid}, 9, information)"]
    tries += [f"call(NR['pidfd_send_signal'], os.pidfd_open({pid}), 9, {how}, 0)" for how in (0, "information")]
    await ok(attacker, "import struct; information = ctypes.create_string_buffer(struct.pack('3i', 9, 0, -1), 128)")
    said = {attempt: await value(attacker, attempt) for attempt in tries}
    assert {*said.values()} <= {"EPERM", "ESRCH"}, said
    assert await value(attacker, "call(NR['kill'], -1, 0)") in ("EPERM", 0)  # Landlock leaves out those that may not be
    # A pipe whose owner gets a signal when there is something to read.
    code = f"""
import fcntl, socket, time
owners = []
for command, argument in ((8, {pid}), (8, {-pid}), (15, struct.pack('ii', 1, {pid}))):
    ours, theirs = socket.socketpair()
    owners.append(answer(fcntl.fcntl, ours, command, argument))
    answer(fcntl.fcntl, ours, 10, 9)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    theirs.send(b'x')
for command in (0x8901, 0x8902):
    ours, theirs = socket.socketpair()
    owners.append(answer(fcntl.ioctl, ours, command, struct.pack('i', {pid})))
owners
"""
    refused = {found in ("EPERM", "ESRCH") for found in await value(attacker, code)}
    assert len(refused) == 1  # or Landlock lets it be named, and then nothing is sent
    assert victim.poll() is None


async def test_signals_among_ones_own_processes_work(attacker: Session) -> None:
    code = """
import signal, subprocess, threading
heard = []
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: heard.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR2)
call(NR['tkill'], threading.get_native_id(), signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
signal.pidfd_send_signal(os.pidfd_open(os.getpid()), signal.SIGUSR1)
thread = threading.Thread(target=lambda: call(NR['tkill'], os.getpid(), signal.SIGUSR2)); thread.start(); thread.join()
"""
    await ok(attacker, code)
    assert await value(attacker, "[number.name[-1] for number in map(signal.Signals, heard)]") == [*"121212"]
    ends = {
        "child.kill()": -9,
        "child.terminate()": -15,
        "os.killpg(child.pid, 2)": -2,
        "signal.pidfd_send_signal(os.pidfd_open(child.pid), 10)": -10,
        "call(NR['rt_sigqueueinfo'], child.pid, 9, ctypes.create_string_buffer(struct.pack('3i', 9, 0, -1), 128))": -9,
    }
    for how, status in ends.items():
        begin = "import struct; child = subprocess.Popen(['sleep', '60'], start_new_session=True)"
        assert await value(attacker, f"{begin}; {how}; child.wait()") == status
    # A group of two orphans.
    code = """
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.fork() or os.setpgid(0, os.getppid())
        os.write(writer, os.getpgid(0).to_bytes(4))
        signal.pause()
    os._exit(0)
os.wait()
groups = {int.from_bytes(os.read(reader, 4)) for _ in range(2)}
os.close(writer)
[answer(os.killpg, group, 9) for group in groups], os.read(reader, 1), answer(os.killpg, 2**30, 9), answer(os.kill, 2**22 + 1, 9)
"""
    assert await value(attacker, code) == ([None], b"", "ESRCH", "ESRCH")
    assert await value(attacker, "end(os.abort), end(lambda: os.kill(0, 9) if os.setsid() is None else None)") == (
        "SIGABRT",
        "SIGKILL",
    )


async def test_a_group_of_parents_and_children_ends_at_once(attacker: Session) -> None:
    code = """
import select, signal
reader, writer = os.pipe()
if (first := os.fork()) == 0:
    os.setpgid(0, 0)
    for _ in range(30):
        if os.fork():
            break
    else:
        os.write(writer, b'x')
    signal.pause()
os.close(writer)
os.read(reader, 1), answer(os.killpg, first, 9), len(select.select([reader], [], [], 10)[0]), os.waitpid(first, 0)[1]
"""
    assert await value(attacker, code) == (b"x", None, 1, 9)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_can_only_be_read_is_not_truncated(landlock_host: Host, tmp_path: Path, version: int) -> None:
    """As the same user: nothing but the sandbox prevents it."""
    for name in ("seen", "outside", "workspace"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    policy = Policy(Filesystem(read=(str(tmp_path / "seen"),)))
    async with session_at(version, landlock_host, tmp_path / "workspace", policy) as session:
        assert await value(session, f"read('{tmp_path}/seen/file')") == "x"
        for path in (f"{tmp_path}/seen/file", f"{tmp_path}/outside/file"):
            tries = [f"answer(os.open, it, {how} | os.O_TRUNC)" for how in ("os.O_RDONLY", "os.O_WRONLY", "os.O_RDWR", "3")]
            tries += ["answer(os.truncate, it, 0)", "call(NR['creat'], it.encode(), 0)"]
            assert {await value(session, f"it = {path!r}; {attempt}") for attempt in tries} <= {"EACCES", "EPERM"}
    assert (tmp_path / "seen" / "file").read_text() == "x"
    assert (tmp_path / "outside" / "file").read_text() == "x"


async def test_ones_own_files_can_be_truncated(attacker: Session) -> None:
    code = """
write('long', 'x' * 100); os.truncate('long', 50); held = os.open('long', os.O_RDWR); os.ftruncate(held, 20)
found = [os.stat('long').st_size]
write('long', 'y'); found.append(os.stat('long').st_size)
found, answer(os.truncate, 'none', 0), answer(os.truncate, '.', 0)
"""
    assert await value(attacker, code) in (
        ([20, 1], "ENOENT", "EISDIR"),
        ([20, 1], "ENOENT", "EINVAL"),
    )
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
answer(os.truncate, 'long', resource.getrlimit(resource.RLIMIT_FSIZE)[0] + 1)
"""
    assert await value(attacker, code) == "EFBIG"


async def test_nothing_is_opened_for_commands_only(attacker: Session, tmp_path: Path) -> None:
    """Landlock asks for no right then: a device, or a file of others that could be locked."""
    (tmp_path / "lock").touch()
    assert (
        await value(attacker, f"[answer(os.open, path, 3) for path in ({str(tmp_path / 'lock')!r}, '/dev/tty', 'new')]")
        == ["EPERM"] * 3
    )


@pytest.mark.slow
async def test_the_walls_are_the_same_whatever_a_kernel_comes_from(landlock_host: Host, tmp_path: Path) -> None:
    """A checkpoint, a branch, a file, an undo, or nothing: each has a kernel that is kept in as the first one was."""
    (tmp_path / "workspace").mkdir()
    (secret := tmp_path / "secret").write_text("x")
    saved = tmp_path / "saved.cellblock"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        look = f"""
import os, socket
def tried(function, *arguments):
    try: function(*arguments)
    except OSError as error: return error.errno
def look():
    secret = {str(secret)!r}
    os.path.islink('to secret') or os.symlink(secret, 'to secret')
    return [
        tried(open, secret), tried(open, 'to secret'), tried(os.listdir, os.path.dirname(secret)), tried(os.unlink, secret),
        tried(os.chmod, secret, 0o777), tried(os.link, secret, 'mine'), tried(os.kill, {os.getpid()}, 0),
        tried(socket.create_connection, ('127.0.0.1', {listener.getsockname()[1]}), 5), tried(open, '/etc/shadow'),
    ]
"""
        async with landlock_host.session(working_dir=tmp_path / "workspace", images_dir=tmp_path / "images") as session:
            await ok(session, look)
            before = await value(session, "look()")
            assert None not in before
            checkpoint = await session.checkpoint()
            await ok(session, "y = 1")
            await session.restore(checkpoint)
            assert await value(session, "look()") == before
            branch, adopted = await session.fork(2)
            assert await value(branch, "look()") == before
            await branch.close()
            await session.adopt(adopted)
            assert await value(session, "look()") == before
            await checkpoint.drop()
            await ok(session, "y = 2")
            await session.undo(1)
            assert await value(session, "look()") == before
            await session.save(saved, workspace=True)
            for _ in range(2):
                await session.load(saved, workspace=True)
                await ok(session, look)
                assert await value(session, "look()") == before
            await session.reset()
            await ok(session, look)
            assert await value(session, "look()") == before
    assert secret.read_text() == "x"


async def test_two_sessions_are_kept_apart(landlock_host: Host, attacker: Session, tmp_path: Path) -> None:
    async with landlock_host.session(working_dir=tmp_path, images_dir=tmp_path / "images") as other:
        await ok(other, "import os; open('secret', 'w').write('x'); open(os.path.expanduser('~/secret'), 'w').write('x')")
        pid, *places = await value(other, "[os.getpid(), os.getcwd(), os.path.expanduser('~'), os.environ['TMPDIR']]")
        assert await value(attacker, f"[answer(os.kill, {pid}, 9), read('/proc/{pid}/environ')]") == ["EPERM", "EACCES"]
        assert await value(attacker, f"{{answer(os.listdir, path) for path in {places}}}") == {"EACCES"}
        assert await value(other, "6 * 7") == 42


async def test_there_is_no_network_and_no_socket_of_the_machine(attacker: Session, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        port = listener.getsockname()[1]
        local.bind(f"\0cellblock-test-{os.getpid()}")
        code = f"""
import socket
def reach(address, family=socket.AF_INET):
    with socket.socket(family) as made:
        made.settimeout(2)
        return answer(made.connect, address)
def send(flags):
    with socket.socket() as made:
        return answer(made.sendto, b'x', flags, ('127.0.0.1', {port}))
"""
        await ok(attacker, code)
        assert await value(attacker, f"reach(('127.0.0.1', {port}))") == "ECONNREFUSED"
        assert await value(attacker, "send(0x20000000)") == "EPERM"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert await value(attacker, "[reach((host, 80)) for host in ('8.8.8.8', '169.254.169.254')]") == ["ENETUNREACH"] * 2
    assert await value(attacker, "reach(('::1', 80), socket.AF_INET6)") == "ENETUNREACH"
    for kind in (
        "AF_UNIX",
        "AF_NETLINK, socket.SOCK_RAW",
        "AF_INET, socket.SOCK_DGRAM",
        "AF_INET, socket.SOCK_RAW",
        "AF_VSOCK",
    ):
        assert await value(attacker, f"answer(socket.socket, socket.{kind})") == "EPERM"
    assert await value(attacker, "answer(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)") == "EPERM"
    code = "made = socket.socket(); [answer(made.bind, ('127.0.0.1', 0)), answer(made.listen), made.close()][:2]"
    assert await value(attacker, code) == ["EPERM", "EPERM"]


async def test_a_dangerous_call_is_refused_here_too(attacker: Session) -> None:
    names = ["shmget", "shmat", "msgget", "semget", "mq_open", "inotify_init1", "inotify_add_watch"]
    answers = await value(attacker, f"{{name: call(NR[name], 0, 0, 0, 0, 0, 0) for name in {names}}}")
    assert answers == dict.fromkeys(names, "EPERM")


async def test_calls_that_the_filter_knows_are_answered_as_in_other_sandboxes(attacker: Session) -> None:
    refused, absent = [*REFUSED], [*ABSENT, "landlock_restrict_self"]
    answers = await value(attacker, f"{{name: call(NR[name], 0, 0, 0, 0, 0, 0) for name in {refused + absent}}}")
    assert answers == dict.fromkeys(refused, "EPERM") | dict.fromkeys(absent, "ENOSYS")


async def test_there_are_no_capabilities_and_no_way_to_get_any(attacker: Session) -> None:
    code = """
import subprocess
fields = dict(line.split(':', 1) for line in open('/proc/self/status'))
{name: fields[name].strip() for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')}
"""
    found = await value(attacker, code)
    # Only root may take the bounding set away; without new privileges, it gives an ordinary user nothing.
    kept = {"CapBnd"} if os.geteuid() != 0 else set()
    assert {int(number, 16) for name, number in found.items() if name.startswith("Cap") and name not in kept} == {0}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    # What a program starts is kept in likewise.
    assert (
        await value(attacker, "subprocess.run(['cat', '/etc/shadow', '/proc/1/environ'], capture_output=True).stdout") == b""
    )


async def test_no_descriptor_leads_to_the_host(landlock_host: Host, tmp_path: Path) -> None:
    code = """
import os
found = []
for number in os.listdir('/proc/self/fd'):
    try:
        found.append(os.readlink(f'/proc/self/fd/{number}').split(':')[0])
    except FileNotFoundError:
        continue  # of the listing itself
sorted(found)
"""
    async with landlock_host.session(working_dir=tmp_path, images_dir=tmp_path / "images") as session:
        # The channel, where copies say that they exist, and both ends of what asyncio wakes its loop with.
        assert await value(session, code) == ["/dev/null", "pipe", "pipe", "socket", "socket", "socket", "socket"]


async def test_private_directories_are_gone_with_the_session(landlock_host: Host, tmp_path: Path) -> None:
    async with landlock_host.session(working_dir=tmp_path, images_dir=tmp_path / "images") as session:
        code = "import os, tempfile; held = [tempfile.mkdtemp(), os.path.expanduser('~/.cache')]; os.makedirs(held[1] + '/deep', 0o500); held"
        places = await value(session, code)
        assert all(os.path.isdir(place) for place in places)
    assert not any(os.path.lexists(os.path.dirname(os.path.dirname(place))) for place in places)


@pytest.mark.slow
async def test_nothing_outlives_a_killed_host(tmp_path: Path) -> None:
    place = await kill_host("landlock", tmp_path)
    await eventually(lambda: not os.path.lexists(place.parents[1]))


@pytest.mark.slow
async def test_a_session_over_its_memory_ends(landlock_host: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(memory=2**28))
    async with landlock_host.session(working_dir=tmp_path, images_dir=tmp_path / "images", policy=policy) as session:
        code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(os.urandom(1)) * (100 * 2**20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
        result = await session.execute(code)
        assert result.status == "died"
        assert result.error is not None
        assert "out of memory" in result.error.evalue


async def test_commands_that_were_approved_run_beside_code_that_may_run_none(landlock_host: Host, tmp_path: Path) -> None:
    asked = []

    async def decide(request: object) -> bool:
        asked.append(request)
        return True

    async with landlock_host.session(
        working_dir=tmp_path, images_dir=tmp_path / "images", on_command=decide, forbid_programs=True
    ) as session:
        await arm(session)
        assert await value(session, "call(NR['execve'], b'/bin/true', 0, 0)") == "EPERM"
        result = await session.execute("!echo $HOME; cat /etc/shadow; touch new; chmod 700 new; ls -l new")
        assert "-rwx------" in result.output
        assert "Permission denied" in (result.text or "")
        assert len(asked) == 1
        running = asyncio.create_task(session.execute("!sleep 30"))
        await eventually(lambda: len(asked) == 2)
        running.cancel()


async def test_tools_are_called_over_a_connection_that_init_makes(landlock_host: Host, tmp_path: Path) -> None:
    from tool_sessions import CALL, register

    register(tmp_path)
    async with CodeExecutor(
        host=landlock_host, isolate="landlock", working_dir=tmp_path, images_dir=tmp_path / "images"
    ) as executor:
        result = await executor.execute(f"{CALL}bad.run_sync('echo', {{'text': 'hello'}})")
        assert result.ok, result.error
        code = """
import os, socket
with socket.create_connection(('127.0.0.1', int(os.environ['CELLBLOCK_TOOL_PORT'])), 5) as port:
    port.sendall(b'POST /run HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 2\\r\\n\\r\\n{}')
    said = port.recv(100)
said
"""
        assert (await value(executor.session, code)).split()[1] == b"401"


@pytest.mark.slow
async def test_a_connection_is_made_also_if_children_of_init_end_meanwhile(landlock_host: Host, tmp_path: Path) -> None:
    """After each cell, the checkpoint of an earlier one ends, and init hears of that in the middle of what it does."""
    async with CodeExecutor(host=landlock_host, isolate="landlock", working_dir=tmp_path) as executor:
        await executor.execute(
            """
            import os, socket
            def connect():
                with socket.create_connection(('127.0.0.1', int(os.environ['CELLBLOCK_TOOL_PORT'])), 5) as port:
                    return port.getpeername()[0]
            """
        )
        assert {await value(executor.session, "connect()") for _ in range(100)} == {"127.0.0.1"}


async def test_variables_of_servers_that_a_session_plants_are_not_read(
    landlock_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program reads `.env` in its current directory, which the session can write, for parameters of MCP servers."""
    monkeypatch.chdir(tmp_path)
    async with landlock_host.session(working_dir=tmp_path) as session:
        await ok(session, "open('.env', 'w').write('URL_OF_TEST=http://evil.example')")
    assert (tmp_path / ".env").exists(), "Landlock cannot prevent that"
    assert "URL_OF_TEST" not in config.server_environment()


async def test_a_failed_connection_says_that_landlock_has_no_network(attacker: Session) -> None:
    for connection in ("socket.create_connection(('93.184.215.14', 80))", "socket.getaddrinfo('example.org', 80)"):
        result = await attacker.execute(f"import socket; {connection}")
        assert result.error is not None
        assert NO_NETWORK_BY_LANDLOCK in result.error.evalue
        assert result.for_model().startswith(f"Error: {result.error.ename}: {NO_NETWORK_BY_LANDLOCK}\n")


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_a_filter_around_it_that_answers_calls_is_named(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, socket
from cellblock import Host
from cellblock.walls.linux import abi
from cellblock.walls.sandbox import confine
from cellblock.walls.linux.bpf import ALLOW, RET, Assembler
from cellblock.walls.linux.syscall import prctl

ours, theirs = socket.socketpair()
prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
everything = Assembler()
everything.add(RET, ALLOW)
confine._filter_with(theirs, everything.bytes())

async def main():
    async with Host(isolate="landlock") as host, host.session(working_dir={str(tmp_path)!r}) as session:
        await session.execute("1")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "handles system calls by its own filter" in done.stderr
