"""A turnkey that was taken over can open nothing: each attack succeeds in a process that is not confined."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import cellblock

SRC = Path(cellblock.__file__).parents[1]

ATTACKS = {
    "a file": "open('/etc/passwd').read()",
    "a new file": "open('/dev/null', 'w')",
    "a directory": "os.listdir('/proc/self')",
    "a program": "os.posix_spawn('/bin/true', ['true'], {})",
    "a process": "(os.fork() or os._exit(0))",
    "a socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a local socket": "socket.socket(socket.AF_UNIX)",
    "a pair": "socket.socketpair()",
    "a connection": "given.connect(('127.0.0.1', port))",
    "a listener": "given.listen()",
    "an address": "given.bind(('127.0.0.1', 0))",
    "signals": "os.kill(os.getppid(), 0)",
    "memory of others": "os.pidfd_open(os.getppid())",
    "new code": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)",
    "owners of signals": "fcntl.fcntl(given, fcntl.F_SETOWN, os.getppid())",
    "typing": "fcntl.ioctl(1, 0x5412, b'x') if os.isatty(1) else fcntl.ioctl(given, 0x5411, b'1234')",
    "limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "names in memory": "os.memfd_create('a')",
    "a thread": "_thread.start_new_thread(print, ())",
}

CODE = """
import _thread, fcntl, json, mmap, os, resource, socket, sys
from cellblock.walls.keys.confinement import confine
server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]
outcomes = {}
for name, attack in json.loads(sys.argv[2]).items():
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        given = socket.socket()
        if sys.argv[1] == "confined":
            confine()
        try:
            exec(attack)
        except (OSError, RuntimeError):
            os.write(writer, b'refused')
        except BaseException as error:
            os.write(writer, str(error).encode())
        else:
            os.write(writer, b'done')
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    outcomes[name] = os.read(reader, 4096).decode()
    os.close(reader)
print(json.dumps(outcomes))
"""


def outcomes(names: Iterable[str], how: str) -> dict[str, str]:
    """Try attacks, each in a process of its own; return what became of each."""
    command = [sys.executable, "-c", CODE, how, json.dumps({name: ATTACKS[name] for name in names})]
    done = subprocess.run(command, env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nothing_can_be_opened() -> None:
    assert outcomes(ATTACKS, "confined") == dict.fromkeys(ATTACKS, "refused")


def test_without_the_confinement_it_can() -> None:
    names = ATTACKS.keys() - {"typing"}
    assert outcomes(names, "open") == dict.fromkeys(names, "done")


VICTIM = """
import os
from cellblock.walls.keys.confinement import confine
from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import prctl
if os.getuid() == 0:
    os.setuid(65534)
    prctl(abi.PR_SET_DUMPABLE, 1)
owner = os.getuid()
if {confined}:
    confine()
os.write(1, b'%d' % owner)
os.read(0, 1)
os._exit(0)
"""


def test_21_processes_of_its_user_see_nothing_of_it() -> None:
    cases: list[bool] = [True, False]
    for confined in cases:
        command = [sys.executable, "-c", VICTIM.format(confined=confined)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"PYTHONPATH": str(SRC)}) as victim:
            assert victim.stdin
            assert victim.stdout
            owner = int(os.read(victim.stdout.fileno(), 20))
            about = Path(f"/proc/{victim.pid}")
            # Of an undumpable process, these files belong to root: its user can neither trace it nor read its memory.
            assert ((about / "environ").stat().st_uid != owner) is confined
            if confined:
                assert "Max core file size        0                    0 " in (about / "limits").read_text()
            victim.stdin.close()
