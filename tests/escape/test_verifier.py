"""Attack 126 and its like: code in a session, and programs beside it, try to answer in the place of a program that judges them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cellblock import ExecResult, Session
from cells import ok, value

_PATCHES = """
import builtins, os, subprocess, sys, posix, _posixsubprocess
def forged(*a, **k): print("ALL TESTS PASSED"); raise SystemExit(0)
for module, names in ((subprocess, ("Popen", "run", "call", "check_output")), (os, ("execve", "execvpe", "posix_spawn", "system", "fork")),
                      (posix, ("execve", "posix_spawn", "fork")), (_posixsubprocess, ("fork_exec",)), (builtins, ("print", "open", "exit"))):
    for name in names:
        if hasattr(module, name) and name != "print":
            setattr(module, name, forged)
sys.stdout = sys.stderr = sys.__stdout__
"""

_PLANTED = """
import io, os
FORGED = "import os; os.write(1, b'ALL TESTS PASSED'); os._exit(0)"
home = os.environ["HOME"]
places = [os.getcwd(), home, os.environ.get("TMPDIR", "/tmp"), f"{home}/.local/lib/python3.11/site-packages", f"{home}/.config", f"{home}/.local/bin"]
for place in places:
    os.makedirs(place, exist_ok=True)
    for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "os.py", "json.py", "evil.pth"):
        fd = os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.write(fd, FORGED.encode()); os.close(fd)
    for name in ("python3", "python", "sh", "true"):
        fd = os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o755)
        os.write(fd, b"#!/bin/sh\\necho ALL TESTS PASSED\\n"); os.close(fd)
os.environ.update(PATH=f"{os.getcwd()}:{home}/.local/bin:" + os.environ["PATH"], PYTHONPATH=os.getcwd(), PYTHONSTARTUP="os.py",
                  LD_PRELOAD=f"{os.getcwd()}/x.so", BASH_ENV=f"{os.getcwd()}/os.py", PYTHONHOME="/tmp")
"""

_REACH = """
import ctypes, glob, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def got(action, *arguments):
    try:
        action(*arguments)
        return True
    except OSError:
        return False
def touch(path, flags):
    fd = os.open(path, flags)
    try:
        if path.endswith(("syscall", "stack")):  # only reading them is refused
            os.read(fd, 1)
    finally:
        os.close(fd)
def reached(pid):
    found = [way for way in ("mem", "environ", "cwd", "root", "exe", "fd/0", "fd/1", "fd/2", "maps", "syscall", "stack", "auxv")
             if got(touch, f"/proc/{pid}/{way}", os.O_RDWR if way in ("mem", "fd/1") else os.O_RDONLY)]
    calls = {"ptrace": (101, 16, pid, 0, 0), "process_vm_writev": (311, pid, 0, 0, 0, 0, 0)} if os.uname().machine == "x86_64" else {}
    found += [name for name, call in calls.items() if libc.syscall(*map(ctypes.c_long, call)) >= 0 and name == "ptrace"]
    try:
        pidfd = os.pidfd_open(pid)
        found += ["pidfd_getfd"] if libc.syscall(438, pidfd, 1, 0) >= 0 else []
    except OSError:
        pass
    return found
def attack(mark):
    found, until = {}, time.monotonic() + 20
    while time.monotonic() < until and not os.path.exists("verified"):
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    line = file.read()
            except OSError:
                continue
            pid = int(path.split("/")[2])
            if mark.encode() in line and pid != os.getpid():
                found.setdefault(pid, reached(pid))
    return found
"""

_VERIFIER = """
import os, sys, time
sys.argv[1:] = sys.argv[1:]
open("begun", "w").close()
deadline = time.monotonic() + 15
while not os.path.exists("go") and time.monotonic() < deadline: time.sleep(0.01)
print("the truth", sys.flags.isolated, "evil" in sys.modules)
"""


async def verified(session: Session, *, wait: float = 0.2) -> ExecResult:
    """Run the verifier as an attacked evaluation would, and give attackers time while it runs."""
    verifier = asyncio.create_task(session.exec([sys.executable, "-I", "-c", _VERIFIER, "the-verifier"], timeout=60))
    await asyncio.sleep(wait)
    await session.exec(["/usr/bin/touch", "go"])
    result = await verifier
    await session.exec(["/usr/bin/touch", "verified"])
    return result


async def test_a_verifier_says_what_is_true_whatever_the_code_has_patched_and_planted(jail: Session) -> None:
    await ok(jail, _PLANTED)
    await ok(jail, _PATCHES)
    result = await verified(jail, wait=0.0)
    assert (result.status, result.stdout, result.stderr) == ("exited", b"the truth 1 False\n", b"")


async def test_a_verifier_is_out_of_reach_of_a_running_cell(jail: Session) -> None:
    await ok(jail, _REACH)
    attacking = asyncio.create_task(jail.execute("attack('the-verifier')", timeout=60))
    result = await verified(jail)
    assert result.out == "the truth 1 False\n"
    found = await attacking
    assert found.return_value is not None
    reached = await value(jail, "_")
    assert reached or jail.isolate == "landlock", "the attack did not see the verifier"
    assert all(ways == [] for ways in reached.values()), reached


async def test_a_verifier_is_out_of_reach_of_programs_that_were_started_before(jail: Session, workspace: Path) -> None:
    (workspace / "attack.py").write_text(f"{_REACH}\nimport json; print(json.dumps(attack('the-verifier')))")
    attacking = asyncio.create_task(jail.exec([sys.executable, "attack.py"], timeout=60))
    background = await jail.exec(f"{sys.executable} attack.py > background.txt & echo")
    assert background.left
    assert (await verified(jail)).out == "the truth 1 False\n"
    import json

    for text in ((await attacking).out, (workspace / "background.txt").read_text()):
        reached = json.loads(text or "{}")
        assert all(ways == [] for ways in reached.values()), reached


async def test_what_watches_programs_is_out_of_reach(jail: Session) -> None:
    """A confined watcher is in the user namespace of its program, and hides."""
    result = await jail.exec(
        [sys.executable, "-I", "-c", f"{_REACH}\nprint(os.getppid(), reached(os.getppid()), reached(1))"], timeout=60
    )
    assert result.err == ""
    assert result.out.split(maxsplit=1)[1] == "[] []\n"
    await ok(jail, _REACH)
    process = await jail.spawn(["sleep", "100"])
    await ok(jail, "import os")
    shown = await value(jail, f"[reached(int(open('/proc/{process.pid}/stat').read().split()[3])), reached({process.pid})]")
    assert shown == [[], []]


async def test_code_that_kills_a_verifier_or_its_watcher_gets_no_verdict(jail: Session) -> None:
    process = await jail.spawn([sys.executable, "-I", "-c", _VERIFIER, "the-verifier"])
    await ok(jail, f"import os; os.kill({process.pid}, 9)")
    assert (await process.wait(30)).status == "signalled"
    process = await jail.spawn([sys.executable, "-I", "-c", _VERIFIER, "the-verifier"])
    await ok(jail, f"os.kill(int(open('/proc/{process.pid}/stat').read().split()[3]), 9)")
    ended = await process.wait(30)
    assert (ended.status, ended.exit_code, ended.reason) == ("unknown", None, "its watcher was killed")
    assert (await jail.exec("echo still")).out == "still\n"
