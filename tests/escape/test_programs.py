"""Attack 50 and its like: code in a session that may execute no programs tries to, and tries to bend those that were approved."""

from __future__ import annotations

import ast
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellblock import CommandRequest, Host, Session
from cells import ok, value
from processes import eventually

from .conftest import arm
from .copies import Edit, copied, environment


class Decider:
    """Lets through what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[CommandRequest] = []
        self.yes = True

    async def __call__(self, request: CommandRequest) -> bool:
        self.asked.append(request)
        return self.yes

    @property
    def commands(self) -> list[str]:
        """What would have run."""
        return [request.command for request in self.asked]


@pytest.fixture
def decider() -> Decider:
    """Whoever decides."""
    return Decider()


@pytest.fixture
async def cage(attacked_host: Host, workspace: Path, tmp_path: Path, decider: Decider) -> AsyncIterator[Session]:
    """A fresh session that may execute no programs, with the attacker's tools."""
    async with attacked_host.session(
        working_dir=workspace, images_dir=tmp_path / "images", on_command=decider, forbid_programs=True, recovery="none"
    ) as session:
        yield await arm(session)


@pytest.fixture(params=["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
async def any_cage(
    request: pytest.FixtureRequest, attacked_host: Host, workspace: Path, tmp_path: Path, decider: Decider
) -> AsyncIterator[Session]:
    """Likewise, of both ways to launch."""
    async with AsyncExitStack() as stack:
        host = attacked_host
        if request.param == "spawn":
            host = await stack.enter_async_context(Host(isolate="native", launch="spawn"))
        session = host.session(working_dir=workspace, images_dir=tmp_path / "images", on_command=decider, forbid_programs=True)
        yield await arm(await stack.enter_async_context(session))


# Each leaves a file named after it, should it come to execute anything.
ATTACKS: dict[str, tuple[str, Any]] = {
    "execve": ("call(NR['execve'], b'/usr/bin/touch', ARGV, None)", "EPERM"),
    "execveat": ("call(NR['execveat'], -100, b'/usr/bin/touch', ARGV, None, 0)", "EPERM"),
    "fexecve of a program in memory": (
        "fd = os.open(os.environ.get('TMPDIR', '/dev/shm'), os.O_TMPFILE | os.O_RDWR, 0o700); os.write(fd, open('/usr/bin/touch', 'rb').read()); "
        "call(NR['execveat'], fd, b'', ARGV, None, 0x1000)",
        "EPERM",
    ),
    "a fork executes": ("in_child(lambda: call(NR['execve'], b'/usr/bin/touch', ARGV, None) == 'EPERM')", 1),
    "a sibling, not a child, executes": (
        "pid = libc.syscall(NR['clone'], 0x8000 | 17, 0, 0, 0, 0)\n"
        "if pid == 0:\n    os._exit(call(NR['execve'], b'/usr/bin/touch', ARGV, None) == 'EPERM')\n"
        "pid > 0",
        True,
    ),
    "a thread executes": (
        "import threading; got = []\n"
        "thread = threading.Thread(target=lambda: got.append(call(NR['execve'], b'/usr/bin/touch', ARGV, None)))\n"
        "thread.start(); thread.join(); got",
        ["EPERM"],
    ),
    "the C library's system": ("libc.system(b'touch executed')", 127 << 8),
    "the C library's posix_spawn": (
        "libc.posix_spawn(ctypes.byref(ctypes.c_int()), b'/usr/bin/touch', None, None, ARGV, None)",
        1,
    ),
    "the C library's popen": ("libc.popen(b'touch executed', b'r')", 0),
    "Python's own, put back": (
        "import sys; [sys.modules.pop(name) for name in ('subprocess', '_posixsubprocess')]; import subprocess\n"
        "answer(subprocess.run, ['touch', 'executed'])",
        "EPERM",
    ),
    "a script with an interpreter": (
        "write('s', '#!/usr/bin/touch executed\\n'); os.chmod('s', 0o755); call(NR['execve'], b's', ARGV, None)",
        "EPERM",
    ),
    "another filter": ("[call(NR['seccomp'], 1, 0, 0), libc.prctl(22, 2, 0, 0, 0)]", ["EPERM", -1]),
    "another user namespace": ("call(NR['unshare'], 0x10000000)", "EPERM"),
    "limits of init": ("[call(NR['prlimit64'], pid, 1, None, LIMIT) for pid in (1, 0)]", ["EPERM", 0]),
    "process 1": ("[read('/proc/1/mem'), read('/proc/1/environ'), answer(os.readlink, '/proc/1/fd/4')]", ["EACCES"] * 3),
    "capabilities": (
        # Without namespaces, an ordinary user cannot empty the bounding set, which gives nothing without privileges.
        f"['0' * 16 if line.startswith('CapBnd') and os.getuid() == {os.getuid()} != 0 else line.split()[1] "
        "for line in read('/proc/self/status').split('\\n') if line.startswith('Cap')]",
        ["0" * 16] * 5,
    ),
}

SETUP = """
ARGV = (ctypes.c_char_p * 3)(b'touch', b'executed', None)
LIMIT = (ctypes.c_ulong * 2)()
def in_child(action):
    child = os.fork()
    if child == 0:
        os._exit(bool(action()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


async def test_nothing_is_executed_in_any_way(any_cage: Session, workspace: Path, decider: Decider) -> None:
    await ok(any_cage, SETUP)
    found = {}
    for name, (code, _) in ATTACKS.items():
        found[name] = await value(any_cage, code)
    assert found == {name: expected for name, (_, expected) in ATTACKS.items()}
    assert not (workspace / "executed").exists()
    assert decider.asked == []


WAYS = {
    "subprocess.run(['true'])",
    "os.system('true')",
    "os.popen('true')",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.execv('/bin/true', ['true'])",
    "os.execlp('true', 'true')",
    "asyncio.run(asyncio.create_subprocess_exec('true'))",
    "multiprocessing.get_context('spawn').Process(target=print).start()",
    "multiprocessing.get_context('forkserver').Process(target=print).start()",
}


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_python_says_what_forbids_its_own_ways(cage: Session, decider: Decider) -> None:
    await ok(cage, "import subprocess, asyncio, multiprocessing")
    for way in sorted(WAYS):
        result = await cage.execute(way)
        assert result.error is not None, way
        assert result.error.ename == "ProgramForbiddenError", way
        assert "programs are forbidden in this session" in result.error.evalue, way
    assert decider.asked == []


async def test_forks_still_work(cage: Session) -> None:
    code = "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n    got = pool.map(abs, [-1, -2])\ngot"
    assert await value(cage, code) == [1, 2]


# A program that was approved is out of reach: whatever could be written to it would run with its rights.
MEDDLING = """
import glob, os, threading, time
found = []
def meddle():
    while True:
        for path in glob.glob('/proc/[0-9]*/cmdline'):
            pid = path.split('/')[2]
            if 'sleep' in str(read(path)) and 'glob' not in str(read(path)):
                found.append([
                    answer(os.open, f'/proc/{pid}/mem', os.O_RDWR), answer(os.open, f'/proc/{pid}/fd/0', os.O_RDWR),
                    answer(os.readlink, f'/proc/{pid}/cwd'), answer(os.readlink, f'/proc/{pid}/exe'), read(f'/proc/{pid}/environ'),
                    call(NR['ptrace'], 16, int(pid), 0, 0), call(NR['process_vm_writev'], int(pid), 0, 0, 0, 0, 0),
                    call(NR['pidfd_getfd'], 0, 0, 0), call(NR['prlimit64'], int(pid), 7, 0, 0),
                ])
                os.kill(int(pid), 9)
                return
        time.sleep(0.01)
thread = threading.Thread(target=meddle); thread.start()
"""


async def test_a_running_command_is_out_of_reach(any_cage: Session, decider: Decider) -> None:
    await ok(any_cage, MEDDLING)
    await ok(any_cage, "%%bash --no-raise-error\nexec sleep 1000", timeout=60)
    (found,) = await value(any_cage, "thread.join(); found")
    assert found[:5] == ["EACCES"] * 5
    assert found[5:] == ["EPERM"] * 4
    assert decider.commands == ["exec sleep 1000\n"]


TRICKS: dict[str, str] = {
    "an object with two faces": """
class Faces:
    turn = 0
    def __format__(self, spec):
        Faces.turn += 1
        return f"echo {Faces.turn}"
    __str__ = lambda self: self.__format__("")
x = Faces()
!{x}
""",
    "a string with two faces": """
class Text(str):
    turn = 0
    def encode(self, *_): return b"touch executed"
    def __str__(self): return "touch executed"
    def rstrip(self, *_): return self
    def __format__(self, *_): return self
get_ipython().system(Text("echo 1"))
""",
    "a variable that names another": "x = '{y}'; y = '$(touch executed)'\nz = !echo {x}\nprint(z[0])",
    "expansion in a script's line": "x = 'sh'\n%%script {x} -s 1\necho $1",
}


async def test_what_is_shown_is_what_runs(cage: Session, workspace: Path, decider: Decider) -> None:
    for trick, code in TRICKS.items():
        decider.asked.clear()
        code = code.lstrip("\n")
        if trick.startswith("expansion"):
            first, _, code = code.partition("\n")
            await ok(cage, first)
        result = await ok(cage, code)
        assert len(decider.asked) == 1, trick
        shown = decider.asked[0]
        ran = ["sh", "-c", shown.command] if shown.tool == "shell" else list(shown.program)
        process = await asyncio.create_subprocess_exec(*ran, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate(b"" if shown.tool == "shell" else shown.command.encode())
        assert result.output == said.decode(), trick
        assert not (workspace / "executed").exists()


async def test_what_code_changes_around_a_command_is_shown_and_its_own_packages_are_not_on_the_way(
    cage: Session, workspace: Path, decider: Decider
) -> None:
    await ok(cage, "open('id', 'w').write('#!/bin/sh\\ntouch executed'); os.chmod('id', 0o755)")
    # What installed packages bring is on the kernel's PATH. Code cannot write there, and no command looks there.
    place = await value(cage, "os.environ['PATH'].split(':')[0]")
    assert await value(cage, f"[write('{place}/id')]") == ["EROFS"]
    result = await ok(cage, "!echo $PATH")
    assert place not in result.output.split(":")
    await ok(cage, "!id")
    assert decider.asked[-1].environment == {}
    assert not (workspace / "executed").exists()
    await ok(
        cage, "os.environ['PATH'] = os.getcwd() + ':' + os.environ['PATH']; del os.environ['LANG']; os.chdir('/tmp')\n!id"
    )
    assert decider.asked[-1].environment["PATH"].split(":")[0] == str(workspace)  # type: ignore[union-attr]
    assert decider.asked[-1].environment["LANG"] is None
    assert decider.asked[-1].cwd == "/tmp"


FORGED = """
import json, socket, struct
def frame(header, *buffers):
    head = json.dumps({**header, "sizes": [len(buffer) for buffer in buffers]}).encode()
    body = b"".join(buffers)
    return struct.pack("!II", len(head), len(body)) + head + body
channel = socket.socket(fileno=3)
def forge(number, text, **more):
    channel.sendall(frame({"type": "command", "number": number, "tool": "shell", "program": 0, "keep": "nothing", **more}, text, b"/", b"A=1", b"A=2"))
"""


async def test_a_forged_request_is_asked_about_like_any_other(cage: Session, workspace: Path, decider: Decider) -> None:
    """And a program in the name of a line is refused, and nobody is asked. What a cell has sent comes before its end."""
    decider.yes = False
    await ok(cage, FORGED)
    touch = f"touch {workspace}/executed"
    for number, details in enumerate(("tool='shell', program=1", "tool='shell_magic', program=0"), 1):
        await ok(cage, f"forge({number}, b{touch!r}, {details})\nimport time; time.sleep(0.1)")
    await asyncio.sleep(0.1)
    assert decider.asked == []
    await ok(cage, f"forge(1, b{touch!r}); forge(1, b{touch!r}, answered=True, approved=True)\nimport time; time.sleep(0.1)")
    await eventually(lambda: decider.asked)
    assert {*decider.commands} == {touch}
    assert decider.asked[0].environment == {"A": "2"}
    assert not (workspace / "executed").exists()


async def test_a_broken_request_ends_the_kernel(cage: Session, decider: Decider) -> None:
    for broken in (
        "forge(1, b'\\xff')",
        "forge(1, b'x' * (1 << 20))",
        "forge(1, b'x', program=3)",
        "forge(1, b'x', tool='network')",
        "forge(-1, b'x')",
    ):
        result = await cage.execute(f"{FORGED}\n{broken}\nimport time; time.sleep(60)")
        assert result.status == "died", broken
        assert "broke the protocol" in str(result.text)
    assert decider.asked == []


# -- each defence in turn ------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A defence that is switched off, the attack, and what comes of it with and without."""

    edit: Edit
    attack: str
    with_it: Any
    without_it: Any


EXECUTE = "ARGV = (ctypes.c_char_p * 2)(b'true', None)\nend(lambda: call(NR['execve'], b'/bin/true', ARGV, None) == 'EPERM' and os.kill(os.getpid(), 9))"
REACH = MEDDLING + "get_ipython().system('sleep 1000'); thread.join(); isinstance(found[0][0], int)"
PATH = "os.environ['PATH'].split(':')[0] == get_ipython().getoutput('echo $PATH')[0].split(':')[0]"

CHANGES: dict[str, Change] = {
    "the filter": Change(Edit("walls/sandbox/confine.py", "_forbid_programs", "pass"), EXECUTE, "SIGKILL", "lives"),
    "the namespace apart": Change(Edit("launch/init/worker.py", "_stand_apart", "inner.send(b'0')"), REACH, False, True),
    "the environment is init's own": Change(
        Edit("launch/init/programs.py", "Programs._environment", "return {**self.env, 'PATH': '/tmp/.packages/0/bin:' + self.env['PATH']}"),
        PATH, False, True,
    ),
}  # fmt: skip

PROGRAM = """
import asyncio, sys
from pathlib import Path
from cellblock import Host

async def yes(request):
    return True

async def main(workspace: Path, tools: str, attack: str) -> None:
    async with Host(isolate="native") as host:
        async with host.session(working_dir=workspace, on_command=yes, forbid_programs=True) as session:
            await session.execute(Path(tools).read_text() + sys.argv[4])
            result = await session.execute(attack, timeout=60)
            print(result.return_value or result.text)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", CHANGES.values(), ids=CHANGES)
async def test_an_attack_succeeds_without_the_code_that_stops_it(tmp_path: Path, row: Change) -> None:
    from .conftest import NUMBERS

    for name, edits, expected in (("with", [], row.with_it), ("without", [row.edit], row.without_it)):
        package = copied(tmp_path / name, *edits)
        workspace = tmp_path / f"{name}-workspace"
        workspace.mkdir()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(workspace), str(Path(__file__).parent / "inside.py"), row.attack, f"\nNR = {NUMBERS!r}",
            stdout=asyncio.subprocess.PIPE, env=environment(package), cwd=package,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert ast.literal_eval(out.decode()) == expected, (name, out.decode())
