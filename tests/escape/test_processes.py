"""Attacks 8, 11, 13, 20, 31, 35, 36, 44 and 48: processes, what they may become, and what of the kernel they can touch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.walls.sandbox.policy import Policy, Resources
from cells import ok, value
from processes import alive, below, eventually

from .conftest import armed_session

STATUS = """
def fields(pid='self'):
    with open(f'/proc/{pid}/status') as file:
        return {name: rest.strip() for name, _, rest in (line.partition(':') for line in file)}
"""


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "root", "cwd", "exe", "fd/4", "ns/mnt", "ns/user", "io", "auxv"])
async def test_nothing_is_seen_of_process_1(cell: Session, name: str) -> None:
    path = f"/proc/1/{name}"
    action = {
        "fd/4": "os.readlink",
        "root": "os.listdir",
        "cwd": "os.listdir",
        "exe": "os.readlink",
        "ns/mnt": "os.readlink",
        "ns/user": "os.readlink",
    }
    assert await value(cell, f"answer({action.get(name, 'read')}, '{path}')") == "EACCES"


async def test_the_ways_around_it_are_closed_too(cell: Session) -> None:
    code = "[answer(os.listdir, path) for path in ('/proc/1/task/1/root', '/proc/1/task/1/cwd', '/proc/1/map_files')]"
    assert await value(cell, code) == ["EACCES"] * 3
    code = "{answer(os.open, f'/proc/1/fd/{number}', flags) for number in range(64) for flags in (os.O_PATH, os.O_RDWR)}"
    # Where the host runs as root the numbers can be listed, because it owns the directory; they lead nowhere.
    assert await value(cell, code) <= {"EACCES", "ENOENT"}


@pytest.mark.parametrize(
    "name", ["uid_map", "gid_map", "setgroups", "attr/current", "attr/exec", "mem", "loginuid", "timens_offsets", "projid_map"]
)
async def test_process_1_cannot_be_changed(cell: Session, name: str) -> None:
    assert await value(cell, f"write('/proc/1/{name}', 'monotonic 1 0' if 'time' in '{name}' else '0 0 1')") in (
        "EACCES",
        "EPERM",
        "ENOENT",
    )


@pytest.mark.parametrize(
    ("name", "content"), [("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow"), ("projid_map", "0 0 1")]
)
async def test_a_session_cannot_map_users_again(cell: Session, name: str, content: str) -> None:
    assert await value(cell, f"write('/proc/self/{name}', '{content}')") == ("EACCES" if name == "setgroups" else "EPERM")


async def test_a_session_cannot_make_itself_dearer_to_the_kernel(cell: Session) -> None:
    code = """
[write('/proc/self/oom_score_adj', '-1000'), answer(os.nice, -1), call(NR['sched_setscheduler'], 0, 1, (1).to_bytes(4, 'little'))]
"""
    assert await value(cell, code) == ["EACCES", "EPERM", "EPERM"]


@pytest.mark.parametrize(
    "path",
    [
        "/proc/kcore",
        "/proc/kallsyms",
        "/proc/timer_list",
        "/proc/keys",
        "/proc/key-users",
        "/proc/kmsg",
        "/proc/kpagecount",
        "/proc/kpageflags",
        "/proc/kpagecgroup",
        "/proc/slabinfo",
        "/proc/vmallocinfo",
        "/proc/pagetypeinfo",
        "/proc/sched_debug",
    ],
)
async def test_the_kernels_insides_are_hidden(cell: Session, path: str) -> None:
    assert await value(cell, f"read('{path}')") == ("EACCES" if os.path.lexists(path) else "ENOENT")


@pytest.mark.parametrize(
    "path",
    [
        "sys/kernel/core_pattern",
        "sys/kernel/modprobe",
        "sys/vm/overcommit_memory",
        "sys/kernel/pid_max",
        "sys/net/ipv4/ip_forward",
        "sys/user/max_user_namespaces",
        "sys/fs/binfmt_misc/register",
        "sysrq-trigger",
        "irq/default_smp_affinity",
    ],
)
async def test_the_kernels_settings_are_read_only(cell: Session, path: str) -> None:
    """To their owner as well, who is this user where the host runs as root."""
    answered = await value(cell, f"answer(os.open, '/proc/{path}', os.O_WRONLY)")
    if not os.path.lexists(f"/proc/{path}"):
        assert answered == "ENOENT"
    elif os.geteuid() == 0:
        # Settings of the session's own namespaces belong to its process 1, which had a capability for them.
        assert answered == ("EACCES" if path in ("sys/kernel/pid_max", "sys/user/max_user_namespaces") else "EROFS")
    else:
        assert answered in ("EROFS", "EACCES")


async def test_no_file_of_proc_or_sys_can_be_written_but_ones_own(cell: Session) -> None:
    code = """
found = []
for top in ('/proc', '/sys'):
    for place, directories, files in os.walk(top):
        if place == '/proc':
            directories[:] = [name for name in directories if not name.isdigit() and name not in ('self', 'thread-self')]
        for name in files:
            made = answer(os.open, f'{place}/{name}', os.O_WRONLY | os.O_NONBLOCK)
            if isinstance(made, int):
                os.close(made)
                found.append(f'{place}/{name}')
found
"""
    assert await value(cell, code) == []


async def test_no_file_of_proc_can_be_read_that_is_for_root_only(cell: Session) -> None:
    code = """
found = []
for name in os.listdir('/proc'):
    made = answer(os.open, f'/proc/{name}', os.O_RDONLY | os.O_NONBLOCK)
    if isinstance(made, int):
        if not os.fstat(made).st_mode & 0o004:
            found.append(name)
        os.close(made)
found
"""
    assert await value(cell, code) == []


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", ["/usr", "/etc"])
async def test_no_file_of_the_system_can_be_read_that_is_for_its_owner_only(cell: Session, place: str) -> None:
    """The session of a host that runs as root has root's files under the system's directories before it: there are none."""
    code = f"""
found = []
for top, _, files in os.walk('{place}'):
    for name in files:
        status = os.lstat(os.path.join(top, name))
        if status.st_mode & 0o170000 == 0o100000 and not status.st_mode & 0o044 and os.access(os.path.join(top, name), os.R_OK):
            found.append(os.path.join(top, name))
found
"""
    assert await value(cell, code) == []


async def test_there_is_nobody_to_become(cell: Session) -> None:
    code = "[answer(os.setuid, 0), answer(os.setgid, 0), answer(os.setresuid, 0, 0, 0), answer(os.seteuid, 65534), answer(os.setgroups, [0])]"
    # Numbers that are not mapped are no users (EINVAL).
    assert await value(cell, code) == ["EINVAL", "EINVAL", "EINVAL", "EINVAL", "EPERM"]


async def test_programs_with_set_id_bits_change_nothing(cell: Session) -> None:
    code = """
import subprocess
[subprocess.run(['su', '-c', 'id'], capture_output=True, input=b'').returncode != 0, os.getresuid(), os.getresgid()]
"""
    assert await value(cell, code) == [True, (1000, 1000, 1000), (1000, 1000, 1000)]


@pytest.mark.parametrize("where", ["fields()", "fields(child.pid)"], ids=["worker", "program"])
async def test_there_are_no_capabilities_and_no_new_privileges(cell: Session, where: str) -> None:
    code = f"""
{STATUS}
import subprocess
with subprocess.Popen(['cat'], stdin=-1) as child:
    found = {where}
{{name: found[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')}}
"""
    found = await value(cell, code)
    assert {int(number, 16) for name, number in found.items() if name.startswith("Cap")} == {0}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


async def test_a_fork_has_the_same_namespaces_and_limits(cell: Session) -> None:
    """Attack 48, for a fork that the code makes; checkpoints are forks of the same kind."""
    code = f"""
{STATUS}
import resource, json
def mine():
    names = [name for name in dir(resource) if name.startswith('RLIMIT_')]
    status = fields()
    return [
        {{name: os.readlink(f'/proc/self/ns/{{name}}') for name in os.listdir('/proc/self/ns')}},
        {{name: resource.getrlimit(getattr(resource, name)) for name in names}},
        [status[name] for name in ('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters')],
    ]
reader, writer = os.pipe()
if (child := os.fork()) == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            pass
        os.write(writer, json.dumps(mine()).encode())
    os._exit(0)
os.close(writer)
os.waitpid(child, 0)
with open(reader) as file:
    theirs = file.read()
theirs == json.dumps(mine())
"""
    assert await value(cell, code) is True


async def test_process_1_ignores_what_would_end_it(jail: Session) -> None:
    code = """
import signal
[answer(os.kill, 1, number) for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGSEGV, 40)]
"""
    assert await value(jail, code) == [None] * 7
    assert await value(jail, "6 * 7") == 42


@pytest.mark.slow
async def test_stopping_everything_does_not_stop_the_host(jail: Session) -> None:
    result = await jail.execute(
        "import signal; answer(os.kill, -1, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGSTOP)", timeout=1
    )
    assert result.status == "timeout"
    assert await value(jail, "6 * 7") == 42


async def test_processes_outside_do_not_exist(attacked_host: Host, jail: Session, workspace: Path, tmp_path: Path) -> None:
    async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images") as other:
        await ok(other, "import subprocess; child = subprocess.Popen(['sleep', '60'])")
        code = """
import signal
seen = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
outside = [pid for pid in range(2, 512) if pid not in seen and answer(os.kill, pid, 0) != 'ESRCH']
[len(seen), outside, {answer(os.kill, pid, 9) for pid in (%d, %d, 2**22 - 1)}]
"""
        theirs = sorted(below(os.getpid()))
        outside = [pid for pid in theirs if pid > 512]
        found = await value(jail, code % (os.getpid(), outside[-1] if outside else os.getpid()))
        assert found == [2, [], {"ESRCH"}]
        assert await value(other, "child.poll() is None; child.kill(); child.wait()") == -signal.SIGKILL


async def test_a_descriptor_of_the_host_cannot_be_signalled(jail: Session) -> None:
    """The channel's other end was made by the host, and the kernel hands out a pidfd of it."""
    code = """
import signal, socket
channel = socket.socket(fileno=os.dup(3))
peer = answer(channel.getsockopt, socket.SOL_SOCKET, 77)
made = [peer] if isinstance(peer, str) else [answer(signal.pidfd_send_signal, peer, number) for number in (0, 9)]
pid, uid, gid = (int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[at:at + 4], 'little') for at in (0, 4, 8))
channel.close()
made, pid
"""
    answers, pid = await value(jail, code)
    # Linux before 6.5 does not know the option; before 6.18 no pidfd is made of what is not seen here.
    assert set(answers) <= {"EINVAL", "ENOPROTOOPT", "ESRCH", "ENODATA", "EPERM"}
    assert pid == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "threads"])
async def test_a_fork_bomb_stops_at_the_limit(attacked_host: Host, workspace: Path, way: str) -> None:
    policy = replace(Policy(), resources=Resources(processes=64))
    async with armed_session(attacked_host, workspace, policy=policy) as session:
        fork = """
made = 0
while isinstance(pid := answer(os.fork), int) and made < 1000:
    if pid == 0:
        import time
        time.sleep(60)
        os._exit(0)
    made += 1
pid, made
"""
        threads = """
import threading
stop, made, pid = threading.Event(), 0, None
try:
    while made < 1000:
        threading.Thread(target=stop.wait).start()
        made += 1
except RuntimeError:
    pid = 'EAGAIN'
stop.set()
pid, made
"""
        ending, made = await value(session, fork if way == "fork" else threads)
        assert ending == "EAGAIN"
        assert made <= 64  # as root, it is the namespace's highest pid that stops it
    await eventually(lambda: len(below(os.getpid())) < 30)


@pytest.mark.slow
async def test_after_the_limit_of_processes_there_is_room_again(attacked_host: Host, workspace: Path) -> None:
    """Linux does not give the first 300 numbers of a pid namespace a second time."""
    policy = replace(Policy(), resources=Resources(processes=40))
    async with armed_session(attacked_host, workspace, policy=policy) as session:
        fill = """
def fill(most):
    made = []
    while len(made) < most and isinstance(pid := answer(os.fork), int):
        if pid == 0:
            import signal
            signal.pause()
        made.append(pid)
    for pid in made:
        os.kill(pid, 9), os.waitpid(pid, 0)
    return len(made)
[fill(20) for _ in range(20)]
"""
        assert await value(session, fill) == [20] * 20


async def test_a_daemon_ends_with_its_session(attacked_host: Host, workspace: Path) -> None:
    before = below(os.getpid())
    async with armed_session(attacked_host, workspace, recovery="none") as session:
        code = """
import time, ctypes
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        call(NR['prctl'], 1, 0, 0, 0, 0)  # no signal when the parent ends
        time.sleep(600)
    os._exit(0)
os.wait()
"""
        await ok(session, code)
        assert len(await value(session, "[name for name in os.listdir('/proc') if name.isdigit()]")) == 3
    await eventually(lambda: len(below(os.getpid())) <= len(before) + 1)


async def kill_host(isolate: str, workspace: Path, environment: dict[str, str] | None = None) -> Path:
    """Kill a host of a session whose processes have switched off the signal at a parent's end, and see that all of them end.

    Returns:
        A directory for temporary files of the session.
    """
    program = f"""
import asyncio
from cellblock import Host

CODE = '''
import ctypes, os, tempfile, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
print(tempfile.mkdtemp())
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        time.sleep(600)
'''

async def main() -> None:
    async with Host(isolate={isolate!r}) as host, host.session(working_dir={str(workspace)!r}, images_dir={str(workspace / "i")!r}) as session:
        print((await session.execute(CODE)).output, flush=True)
        await session.execute("while True: pass", timeout=None)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    place = Path((await process.stdout.readline()).decode().strip())
    inside = below(process.pid)
    assert len(inside) >= 6
    process.kill()
    await process.wait()
    await eventually(lambda: not any(alive(pid) for pid in inside))
    return place


@pytest.mark.slow
async def test_everything_ends_when_the_host_is_killed(workspace: Path) -> None:
    """Attack 36."""
    # What a killed host leaves there is not this test's business.
    await kill_host("native", workspace, {**os.environ, "TMPDIR": str(workspace)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nos.fork(), os.fork()\nwhile True: pass",
    ],
    ids=["signals ignored", "a loop in C", "signals blocked, and forks"],
)
async def test_code_that_will_not_stop_is_killed_at_the_deadline(jail: Session, code: str) -> None:
    result = await jail.execute(code, timeout=0.5)
    assert result.status == "timeout"
    assert await value(jail, "6 * 7") == 42
