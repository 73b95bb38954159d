"""A chain of daemons' sessions on one custodian, each killed at another point of an execution. A program, for `test_faults`.

Usage: named_kills.py STATE WORKSPACE FIRST STEP [LAST].

Each is a fork of this process, which opens the store and goes on with the session of the one before. It submits again what
that one had submitted last, with the same key: its result must be there, or it was not run and is now. No code may run twice,
and none be lost. Then it submits other code, and is killed when it has entered and left calls by which anything moves FIRST
times; the next one STEP times later, and so on, until one is not killed any more. With LAST, each of these is killed anywhere,
and the one after it while it goes on with what is left: at its own point from FIRST up to LAST. Says how many were killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from os import rename  # that of `os` is counted
from pathlib import Path

from cellblock import Host
from cellblock.common.database import Database
from cellblock.errors import NotRunError
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.launch.control import Control
from cellblock.launch.custody import client
from cellblock.launch.custody.client import Custodian
from cellblock.service.named.sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from cellblock.service.store.writer import Writer
from exact_kills import CALLS, NOT_KILLED
from fuses import Fuse, forked
from named_sessions import submit

CODE = "print('x' * {number})\nopen('ran', 'a').write('{number}\\n')\nn = globals().get('n', 0) + 1\nn"


class Daemon:
    """Sessions as a daemon has them."""

    def __init__(self, sessions: NamedSessions, workspace: str, notes: str) -> None:
        self.sessions = sessions
        self.workspace = workspace
        self.notes = notes

    async def execute(self, number: int) -> None:
        """Run code once, whoever has submitted it before."""
        with open(f"{self.notes}.new", "w", encoding="utf-8") as file:
            json.dump(number, file)
        rename(f"{self.notes}.new", self.notes)
        named = await self.sessions.create("s", {"sandbox": False, "working_dir": self.workspace})
        while True:
            execution = submit(self.sessions, named, CODE.format(number=number), key=f"key {number}", live=number % 2 == 0)
            try:
                result = await execution.wait()
                break
            except NotRunError:
                continue
        ran = [int(line) for line in Path(self.workspace, "ran").read_text(encoding="utf-8").split()]
        assert ran == [*range(1, number + 1)], (ran[-5:], number)
        assert (result.output, result.return_value) == ("x" * number + "\n", str(number)), (result, number)

    async def go_on(self) -> int:
        """Submit again what was submitted last; return its number."""
        if not os.path.exists(self.notes):
            return 0
        with open(self.notes, encoding="utf-8") as file:
            number = int(json.load(file))
        await self.execute(number)
        return number


async def run(state: str, workspace: str, point: int, *, early: bool = False) -> None:
    """Be one of the chain; without a point, the last one."""
    custodian = Custodian.connect(state)
    fuse = Fuse(
        point,
        *((os, name) for name in (*CALLS, "fdatasync")),
        *((client, "send"), (Kernel, "_take"), (Control, "_tell"), (Control, "_take")),
        *((Database, "transaction"), (Writer, "_commit")),
    )
    fuse.armed = early
    host = Host(isolate="none", custodian=custodian)
    sessions = NamedSessions(host, NamedStore(Path(state)))
    await sessions.adopt()
    daemon = Daemon(sessions, workspace, f"{state}/notes")
    number = await daemon.go_on()
    if not point:
        await sessions.end_kernels()
        await sessions.close()
        await host.close()
        custodian.end()
        return
    if early:
        os._exit(NOT_KILLED)
    if not number:
        await daemon.execute(number := 1)
    fuse.armed = True
    await daemon.execute(number + 1)
    await daemon.execute(number + 2)
    fuse.armed = False
    os._exit(NOT_KILLED)


class Chain:
    """One after the other."""

    def __init__(self, state: str, workspace: str) -> None:
        self.state = state
        self.workspace = workspace
        self.killed = 0

    def run(self, point: int, *, early: bool = False) -> bool:
        """Run one; return whether it was killed at its point."""
        pid = forked(lambda: asyncio.run(run(self.state, self.workspace, point, early=early)))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.killed += 1
            return True
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, NOT_KILLED):
            sys.exit(f"point {point}: it has found what it should not, or failed")
        return False


def main(state: str, workspace: str, first: str, step: str, last: str = "") -> None:
    tempfile.gettempdir()  # writes a file to find out, which would be left by one that is killed at that moment
    chain, point = Chain(state, workspace), int(first)
    if last:
        chance = random.Random(point)
        while point < int(last):
            chain.run(chance.randrange(1, 110))
            chain.run(point, early=True)
            point += int(step)
    else:
        while chain.run(point):
            point += int(step)
    chain.run(0)
    print(chain.killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
