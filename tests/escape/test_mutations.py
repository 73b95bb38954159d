"""Each defence is switched off in turn, and its attack must come to something else then: no attack passes for free.

One is not: the pid namespace. What ends a session there kills every process that it may, which would be the machine's.

Most defences are data, and are taken out of the plan. The others are code: a copy of the package is changed in one place, and
a program that attacks runs with it. Where the kernel has a second line of defence of its own, the table says so.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import os
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellblock import Host
from cellblock.walls.linux import bpf, seccomp
from cellblock.walls.sandbox import tiers
from cellblock.walls.sandbox.plan import make_plan
from cellblock.wire.sandbox import Bind, Mask, Plan, Protect, Step, Tmpfs
from cells import value

from .conftest import armed_session
from .copies import Edit, copied, environment
from .test_system_calls import ABSENT, CLONE_NEW, REFUSED

pytestmark = [pytest.mark.slow, pytest.mark.sampled(8)]

ROOT = os.geteuid() == 0


def allowing(*names: str) -> Callable[[Plan], Plan]:
    """Let some system calls through."""
    return lambda plan: filtered(plan, seccomp.program(os.uname().machine, True, frozenset(names)))


def no_filter(plan: Plan) -> Plan:
    """Let every system call through, of any architecture."""
    return filtered(plan, struct.pack("=HBBI", 0x06, 0, 0, bpf.ALLOW))


def filtered(plan: Plan, program: bytes) -> Plan:
    return replace(plan, restrictions=replace(plan.restrictions, seccomp=base64.b64encode(program).decode()))


def without(*wanted: str) -> Callable[[Plan], Plan]:
    """Leave out the steps that have all of these as their kind or in their fields."""

    def change(plan: Plan) -> Plan:
        kept = tuple(step for step in plan.steps if not {*wanted} <= {step.kind, *map(str, astuple(step))})
        assert len(kept) < len(plan.steps)
        return replace(plan, steps=kept)

    return change


def unlimited(name: str) -> Callable[[Plan], Plan]:
    """Leave out a limit."""

    def change(plan: Plan) -> Plan:
        limits = {key: value for key, value in plan.restrictions.limits.items() if key != name}
        return replace(plan, restrictions=replace(plan.restrictions, limits=limits))

    return change


def large_tmp(plan: Plan) -> Plan:
    """Make what is in memory as large as one likes."""
    return replace(plan, steps=tuple(replace(step, size=2**40) if isinstance(step, Tmpfs) else step for step in plan.steps))


def with_etc(plan: Plan) -> Plan:
    """Show all of /etc."""
    return replace(plan, steps=(*plan.steps, Bind("/etc", "/etc", "ro")))


def with_tests(plan: Plan) -> Plan:
    """Show a directory that is nobody's business, as another's workspace is."""
    here = str(Path(__file__).parent)
    return replace(plan, steps=(*plan.steps, Bind(here, here, "ro")))


def unbounded(plan: Plan) -> Plan:
    """Leave out both of the limits on processes: the one that holds users and the one that holds root."""
    return without("sysctl", "kernel/pid_max")(unlimited("NPROC")(plan))


def unreserved(plan: Plan) -> Plan:
    """Leave out the placeholders."""
    return replace(plan, reserve={})


class Row(NamedTuple):
    """A defence, the attack that it stops, and what comes of the attack with and without it."""

    attack: str
    with_it: Any
    change: Callable[[Plan], Plan]
    without_it: Any


BOMB = """
made = 0
while made < 700 and isinstance(pid := answer(os.fork), int):
    if pid == 0:
        import time
        time.sleep(60)
        os._exit(0)
    made += 1
made < 700
"""
INT80 = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b814000000cd80c3'))
end(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page))))
"""

DATA: dict[str, Row] = {
    "1 the rest of /etc is not there": Row("answer(os.stat, '/etc/shadow') == 'ENOENT'", True, with_etc, False),
    "1 masks": Row("read('.env')", "EACCES", without("mask", ".env"), "SECRET"),
    "5 set-id bits": Row("write('f'); [answer(os.chmod, 'f', 0o4755)]", ["EPERM"], no_filter, [None]),
    "6 links lead to what is there": Row(
        "os.symlink('/etc/shadow', 'link'); [answer(os.stat, 'link') == 'ENOENT', os.unlink('link')][0]", True, with_etc, False
    ),
    "11 kallsyms is masked": Row("read('/proc/kallsyms')[:3]", "EAC", without("mask", "/proc/kallsyms"), "000"),
    # Other users are refused by the files' modes as well.
    "11 /proc/sys is read-only": Row(
        "isinstance(answer(os.open, '/proc/sys/kernel/core_pattern', os.O_WRONLY), int)", False, without("read_only", "/proc/sys"), ROOT
    ),
    "11 sysrq-trigger is read-only": Row(
        "isinstance(answer(os.open, '/proc/sysrq-trigger', os.O_WRONLY), int)", False, without("read_only", "/proc/sysrq-trigger"),
        ROOT and os.path.exists("/proc/sysrq-trigger"),
    ),
    "11 pages of the machine are masked": Row(
        "isinstance(answer(os.open, '/proc/kpageflags', os.O_RDONLY), int)", False, without("mask", "/proc/kpageflags"), ROOT
    ),
    "12 unshare": Row("call(NR['unshare'], 0x10000000)", "EPERM", allowing("unshare"), 0),
    "12 clone": Row("end(lambda: call(NR['clone'], 0x10000011, 0, 0, 0, 0) == 'EPERM' and os.kill(os.getpid(), 9))", "SIGKILL",
                    allowing("clone"), "lives"),
    "12 clone3": Row("call(NR['clone3'], bytes(8), 8)", "ENOSYS", allowing("clone3"), "EINVAL"),
    "15 io_uring": Row("call(NR['io_uring_setup'], 0, 0)", "ENOSYS", allowing("io_uring_setup"), "EFAULT"),
    "45 files in memory": Row("isinstance(call(NR['memfd_create'], b'x', 0), int)", False, allowing("memfd_create"), True),
    "45 semaphores": Row("isinstance(call(NR['semget'], 0, 16, 0o600), int)", False, allowing("semget"), True),
    "15 openat2": Row("isinstance(call(NR['openat2'], -100, b'/', bytes(24), 24), int)", False, allowing("openat2"), True),
    "16 another architecture": Row(INT80, "SIGSYS", no_filter, "lives"),
    "16 x32": Row("end(lambda: call(0x40000000 + 39))", "SIGSYS", no_filter, "lives"),
    "17 typing": Row("call(NR['ioctl'], os.openpty()[1], 0x541C, b'x')", "EPERM", allowing("ioctl"), "ENOTTY"),
    "18 netlink": Row("call(NR['socket'], 16, 3, 0) in ('ENOTSUP', 'EOPNOTSUPP')", True, no_filter, False),
    "18 SCTP": Row("call(NR['socket'], 2, 1, 262) == 'EAFNOSUPPORT'", True, no_filter, False),
    "18 programs for sockets": Row("import socket; answer(socket.socket().setsockopt, 6, 31, b'x')", "EPERM", no_filter, "ENOENT"),
    "20 a bomb": Row(BOMB, True, unbounded, False),
    "21 /tmp": Row("answer(os.posix_fallocate, os.open('/tmp/f', os.O_CREAT | os.O_RDWR), 0, 2**30) == 'ENOSPC'", True, large_tmp, False),
    "21 size of files": Row("answer(os.ftruncate, os.open('f', os.O_CREAT | os.O_RDWR), 2**34)", "EFBIG", unlimited("FSIZE"), None),
    "31 the rest of the machine is not there": Row(
        f"answer(os.listdir, {str(Path(__file__).parent)!r}) == 'ENOENT'", True, with_tests, False
    ),
    "43 what runs code": Row("[write('.bashrc'), answer(os.rename, '.bashrc', 'x')]", ["EROFS", "EBUSY"], without("protect", ".bashrc"),
                             [None, None]),
    "43 a repository": Row("[write('.git/hooks/x'), answer(os.rename, '.git', 'x')]", ["EROFS", "EBUSY"], without("protect", ".git"),
                           [None, None]),
    "43 what does not exist": Row("[write('.mcp.json'), write('.vscode/x')]", ["EISDIR", "EROFS"], unreserved, [None, None]),
}  # fmt: skip


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Plan], Plan], Path], None]:
    """Have plans changed on their way to the session. Names of steps in the workspace are given without it."""

    def change_plans(change: Callable[[Plan], Plan], workspace: Path) -> None:
        def changed(*arguments: Any) -> Plan:
            plan = make_plan(*arguments)
            return moved(change(moved(plan, f"{workspace}/", "")), "", f"{workspace}/")

        def moved(plan: Plan, old: str, new: str) -> Plan:
            """Rename what is masked or protected in the workspace."""

            def renamed(step: Step) -> Step:
                if isinstance(step, Mask | Protect) and (step.target.startswith(old) if old else step.target[0] != "/"):
                    return replace(step, target=new + step.target.removeprefix(old))
                return step

            return replace(plan, steps=tuple(map(renamed, plan.steps)))

        monkeypatch.setattr(tiers, "make_plan", changed)

    return change_plans


async def attacked(host: Host, workspace: Path, images: Path, code: str) -> Any:
    """Return what comes of an attack, in a fresh session."""
    (workspace / ".env").write_text("SECRET")
    (workspace / ".bashrc").write_text("")
    (workspace / ".git" / "hooks").mkdir(parents=True, exist_ok=True)
    async with armed_session(host, workspace) as session:
        return (await value(session, _last_in_a_list(code)))[0]


def _last_in_a_list(code: str) -> str:
    """Have the last expression in a list, so that None is a value, too."""
    tree = ast.parse(code)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    tree.body[-1] = ast.Expr(ast.List([last.value], ast.Load()))
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize("row", DATA.values(), ids=DATA)
async def test_an_attack_succeeds_without_its_defence(
    native_host: Host, workspace: Path, tmp_path: Path, planned: Callable[[Callable[[Plan], Plan], Path], None], row: Row
) -> None:
    assert await attacked(native_host, workspace, tmp_path / "images", row.attack) == row.with_it
    shutil.rmtree(workspace)
    workspace.mkdir()
    planned(row.change, workspace)
    assert await attacked(native_host, workspace, tmp_path / "images", row.attack) == row.without_it


# The kernel refuses these to whoever has no capabilities, which nobody has in a session: the filter is the first line.
REFUSED_BY_THE_KERNEL_TOO = frozenset(
    [
        "mount",
        "umount2",
        "fsopen",
        "fsmount",
        "fspick",
        "open_tree",
        "open_tree_attr",
        "move_mount",
        "mount_setattr",
        "chroot",
        "pivot_root",
        "open_by_handle_at",
        "reboot",
        "swapoff",
        "sethostname",
        "settimeofday",
        "init_module",
        "kexec_load",
        "fanotify_init",
        "acct",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "process_madvise",
        "syslog",
        "kcmp",
        "process_vm_readv",
        "process_vm_writev",
        "quotactl",
        "setns",
        "listmount",
        "statmount",
        "name_to_handle_at",
    ]
)


async def test_each_refused_call_is_refused_by_the_filter_itself(
    native_host: Host, workspace: Path, tmp_path: Path, planned: Callable[[Callable[[Plan], Plan], Path], None]
) -> None:
    calls = {
        name: arguments for name, arguments in {**REFUSED, **ABSENT}.items() if name not in ("clone3", "ptrace", "seccomp")
    }
    code = f"{{name: call(NR[name], *arguments) for name, arguments in {calls!r}.items()}}"
    before = await attacked(native_host, workspace, tmp_path / "images", code)
    assert set(before.values()) == {"EPERM", "ENOSYS"}
    planned(allowing(*calls), workspace)
    after = await attacked(native_host, workspace, tmp_path / "images", code)
    unknown = {name for name, answered in after.items() if answered == "ENOSYS"}  # not built into this kernel
    same = {name for name in calls if before[name] == after[name]} - unknown
    assert same <= REFUSED_BY_THE_KERNEL_TOO


@pytest.mark.parametrize("flag", CLONE_NEW)
async def test_each_namespace_is_refused_by_the_filter_or_for_want_of_capabilities(
    native_host: Host, workspace: Path, tmp_path: Path, planned: Callable[[Callable[[Plan], Plan], Path], None], flag: str
) -> None:
    planned(allowing("unshare"), workspace)
    bits = CLONE_NEW[flag] | CLONE_NEW["NEWUSER"]
    assert await attacked(native_host, workspace, tmp_path / "images", f"call(NR['unshare'], {bits})") == 0


# -- defences that are code ----------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A defence that is switched off, the attack, and what comes of it with and without."""

    edit: Edit
    attack: str
    with_it: Any
    without_it: Any


DRAW = "import numpy; numpy.random.random()"  # Python itself sees to its own module after a fork
READ_ONLY = "bool(os.statvfs({!r}).f_flag & os.ST_RDONLY)"
NOT_STARTED = "SandboxError or LaunchError"

CODE: dict[str, Change] = {
    "13 capabilities are dropped": Change(
        Edit("walls/sandbox/confine.py", "drop_capabilities", "pass"),
        "[line[-16:] for line in read('/proc/self/status').split('\\n') if line[:7] == 'CapEff:'][0] == '0' * 16", True, False,
    ),
    "13 no new privileges": Change(  # the kernel takes no filter then
        Edit("walls/sandbox/confine.py", "_forbid_new_privileges", "pass"), "1", 1, NOT_STARTED,
    ),
    "10 the interpreter is started from a read-only mount": Change(
        Edit("walls/linux/mount_api.py", "set_read_only", "pass"), READ_ONLY.format("/proc/self/exe"), True, False,
    ),
    "10 the host's devices keep their modes": Change(
        Edit("walls/sandbox/mounts.py", "_BIND_ATTRIBUTES", '{"ro": abi.MOUNT_ATTR_RDONLY, "rw": 0, "dev": abi.MOUNT_ATTR_NOSUID}'),
        READ_ONLY.format("/dev/null"), True, False,
    ),
    "9 standard input is the sandbox's": Change(  # a worker that is late opens the sandbox's by chance
        Edit("walls/sandbox/confine.py", "_take_null_device", "pass"),
        "len({read(f'/proc/self/fdinfo/{number}').split('mnt_id:')[1].split()[0] for number in (0, os.open('/dev/null', 0))}) == 1",
        True, False,
    ),
    "9 descriptors are closed": Change(
        Edit("launch/init/processes.py", "close_descriptors", "pass"), "len(os.listdir('/proc/self/fd')) < 9", True, False,
    ),
    "2 the system is read-only": Change(
        Edit("walls/sandbox/mounts.py", "_BIND_ATTRIBUTES", '{"ro": abi.MOUNT_ATTR_NOSUID, "rw": 0, "dev": abi.MOUNT_ATTR_NOSUID}'),
        READ_ONLY.format("/usr"), True, False,
    ),
    "2 the root directory is sealed": Change(
        Edit("walls/sandbox/mounts.py", "_seal_root", "pass"), "write('/planted')", "EROFS", None,
    ),
    "7 the old root is gone": Change(
        Edit("walls/sandbox/mounts.py", "_detach_old_root", "pass"), "'shadow' in str(answer(os.listdir, '/../etc'))", False, True,
    ),
    "8 process 1 hides": Change(  # it has capabilities that nobody else has, for which the kernel refuses as well
        Edit("walls/linux/syscall.py", "hide", "pass"), "read('/proc/1/environ')", "EACCES", "EACCES",
    ),
    "19 a network of its own": Change(  # which it may not even bring up then
        Edit("walls/sandbox/namespaces.py", "_NAMESPACES", "0x3E020000"), "1", 1, NOT_STARTED,
    ),
    "31 queues and shared memory of its own": Change(
        Edit("walls/sandbox/namespaces.py", "_NAMESPACES", "0x76020000"),
        f"os.readlink('/proc/self/ns/ipc') == {os.readlink('/proc/self/ns/ipc')!r}", False, True,
    ),
    "43 the way to what is protected": Change(
        Edit("walls/linux/mount_api.py", "pin", "pass"), "answer(os.rename, 'real', 'x')", "EBUSY", None,
    ),
    "43 links to what is protected": Change(
        Edit("walls/sandbox/covers.py", "Covers._protect_end_of_link", "pass"), "write('real/.git/hooks/x')", "EROFS", None,
    ),
    "47 new luck": Change(Edit("launch/init/specialise.py", "reseed", "pass"), DRAW, "differ", "same"),
    "22 the environment is empty": Change(
        Edit("walls/sandbox/ground.py", "ENVIRONMENT", '{"CANARY": "x"}'), "'CANARY' in read('/proc/self/environ')", False, True,
    ),
}  # fmt: skip

PROGRAM = """
import asyncio, sys
from pathlib import Path
from cellblock import Host, LaunchError

async def main(workspace: Path, tools: str, attack: str, *preload: str) -> None:
    found = []
    async with Host(isolate="native", preload=preload) as host:
        for _ in range(1 + len(preload)):
            async with host.session(working_dir=workspace, images_dir=workspace / "images") as session:
                await session.execute(Path(tools).read_text())
                result = await session.execute(attack)
                found.append(result.return_value or result.text)
    print(found)

try:
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
except LaunchError:
    print(["['SandboxError or LaunchError']"])
"""


def with_a_linked_repository(workspace: Path) -> Path:
    """Make a workspace whose ``.git`` is a link."""
    (workspace / "real" / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git").symlink_to("real/.git")
    return workspace


async def changed(package: Path, workspace: Path, attack: str) -> Any:
    """Run an attack with a copy of the package; return what comes of it, or whether two sessions say the same."""
    tools = str(Path(__file__).parent / "inside.py")
    preload = ["numpy.random"] if attack == DRAW else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(with_a_linked_repository(workspace)), tools, _last_in_a_list(attack), *preload,
        stdout=asyncio.subprocess.PIPE, env=environment(package), cwd=package,
    )  # fmt: skip
    out, _ = await process.communicate()
    found = ast.literal_eval(out.decode())
    if attack == DRAW:
        return "same" if found[0] == found[1] else "differ"
    return ast.literal_eval(found[0])[0]


async def unchanged(host: Host, workspace: Path, attack: str) -> Any:
    """Likewise, with the package as it is."""
    with_a_linked_repository(workspace)
    async with armed_session(host, workspace) as session:
        return (await value(session, _last_in_a_list(attack)))[0]


_TRIES = 10


@pytest.mark.parametrize("row", CODE.values(), ids=CODE)
async def test_an_attack_succeeds_without_the_code_that_stops_it(native_host: Host, tmp_path: Path, row: Change) -> None:
    if row.attack == DRAW:  # it takes a host that has loaded numpy
        found = await changed(copied(tmp_path / "with"), tmp_path / "workspace", row.attack)
    else:
        found = await unchanged(native_host, tmp_path / "workspace", row.attack)
    assert found == row.with_it
    package = copied(tmp_path / "without", row.edit)
    # Some defences hold no longer than until a race is lost.
    for attempt in range(_TRIES):
        found = await changed(package, tmp_path / f"workspace-{attempt}", row.attack)
        if found == row.without_it:
            break
    assert found == row.without_it
