"""A chain of daemons' sessions on one custodian, each killed at another point of an execution. A program, for `test_faults`.

Usage: named_kills.py code|sessions|saves STATE WORKSPACE FIRST STEP [LAST].

Each is a fork of this process, which opens the store and goes on with the sessions of the one before. Code: it submits again
what that one had submitted last, with the same key. Its result must be there, or it was not run and is now. No code may run
twice, and none be lost. Sessions: each must be there or not, as before or after what that one was doing, with its variables.
Then it submits other code, or makes, forks, adopts and ends sessions. Saves: the kernels end with each process, and a durable
session continues from a complete save; the value there and the cells that are reported as lost are all cells.

It is killed when it has entered and left calls by which anything moves FIRST times; the next one STEP times later, and so on,
until one is not killed any more. With LAST, each is killed anywhere, and the one after it while it goes on with what is left:
at its own point from FIRST up to LAST. Says how many were killed.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellblock import CodeExecutionResult, Host
from cellblock.common.database import Database
from cellblock.errors import NotRunError
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.service.named.named_checkpoints import adopt, fork
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from cellblock.service.store.writer import Writer
from exact_kills import MOVES
from fuses import NOT_KILLED, Chain, Fuse, note, noted
from named_sessions import OPTIONS, saved, submit
from processes import eventually

GONE, UNSET = "gone", "0"
CODE = "print('x' * {number})\nopen('ran', 'a').write('{number}\\n')\nn = globals().get('n', 0) + 1\nn"


class Daemon:
    """Sessions as a daemon has them."""

    def __init__(self, sessions: NamedSessions, fuse: Fuse, workspace: str, notes: str) -> None:
        self.sessions = sessions
        self.fuse = fuse
        self.workspace = workspace
        self.notes = notes

    async def execute(self, number: int) -> None:
        """Run code once, whoever has submitted it before."""
        note(self.notes, number)
        named = await self.sessions.create("s", OPTIONS | {"working_dir": self.workspace})
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
        number = int(noted(self.notes) or 0)
        if number:
            await self.execute(number)
        return number

    async def act(self, number: int) -> None:
        """Have other code run, twice."""
        await self.execute(number + 1)
        await self.execute(number + 2)


class Branching(Daemon):
    """Sessions that come and go."""

    async def run(self, name: str, code: str, *, afresh: bool = False) -> str | None:
        """Run code; return its value. Its kernel must be the one before, unless it may be `afresh`."""
        result = await submit(self.sessions, self.sessions.find(name), code).wait()
        assert result.status == "success", (name, result.text)
        assert result.recovery is None or afresh, (name, result.recovery)
        return result.return_value

    def expect(self, **allowed: list[str]) -> None:
        """Note which values `v` may have in which sessions; without any, there must be no such session."""
        note(self.notes, allowed)

    async def go_on(self) -> int:
        """Look at the sessions that the one before has left, and end all but the first; return the value in that."""
        allowed: dict[str, list[str]] = noted(self.notes) or {}
        names = {named.record.name for named in self.sessions.all()}
        assert names <= allowed.keys(), (names, allowed)
        found = {name: await self.run(name, "v", afresh=GONE in allowed[name]) for name in names}
        for name, values in allowed.items():
            assert found.get(name, GONE) in values, (found, allowed)
        for name in found.keys() - {"s"}:
            self.expect(**{one: [*allowed[one], GONE] if one != "s" else allowed[one] for one in allowed})
            await self.sessions.destroy(name)
        if "s" not in found:
            await self.sessions.create("s", OPTIONS | {"working_dir": self.workspace})
            await self.run("s", "v = 1")
            found["s"] = "1"
        self.expect(s=[found["s"] or ""])
        return int(found["s"] or "")

    async def execute(self, number: int) -> None:
        """The first session is there already."""

    async def act(self, number: int) -> None:
        """Make a session and a branch, adopt the branch, and end the session."""
        now, later = str(number), str(number + 1)
        self.expect(s=[now], other=[GONE, UNSET])
        await self.sessions.create("other", OPTIONS | {"startup_code": f"v = {UNSET}"})
        self.expect(s=[now], other=[UNSET], branch=[GONE, now])
        await fork(self.sessions, "s", ["branch"])
        self.expect(s=[now], other=[UNSET], branch=[now, later])
        await self.run("branch", "v += 1")
        self.expect(s=[now, later], other=[UNSET], branch=[later, GONE])
        await adopt(self.sessions, "s", "branch")
        self.expect(s=[later], other=[UNSET, GONE])
        await self.sessions.destroy("other")
        self.expect(s=[later])


class Saves(Daemon):
    """A durable session, whose kernel ends with each process."""

    async def run(self, code: str) -> CodeExecutionResult:
        return await submit(self.sessions, self.sessions.find("s"), code).wait()

    async def go_on(self) -> int:
        """Check what the session continues from; return the number of cells that it has."""
        before: dict[str, Any] | None = noted(self.notes)
        if before is None:
            return 0
        result = await self.run("v")
        assert result.recovery in ("restored", "restored_earlier"), result
        found = int(result.return_value or 0)
        lost = [int(number) for number in re.findall(r"`v = (\d+)`", result.stderr)]
        if lost:  # again, if no save was made since a process has reported it
            assert lost in ([*range(found + 1, before["ran"] + 1)], before["lost"]), (before, found, result.stderr)
        elif found != before["ran"]:
            assert found == before["ran"] + 1 == before["undone"], (before, found, result.stderr)
            assert not before["done"] or "had restored another state" in result.stderr, (before, result.stderr)
        await self.save(found, lost=lost)
        return found

    async def execute(self, number: int) -> None:
        await self.sessions.create("s", OPTIONS | {"working_dir": self.workspace, "durable": 0.01, "idle_timeout": 0})
        await self.run(f"v = {number}")
        await self.save(number)

    def note(self, ran: int, *, undone: int = 0, done: bool = False, lost: Sequence[int] = ()) -> None:
        note(self.notes, {"ran": ran, "undone": undone, "done": done, "lost": lost})

    async def save(self, number: int, *, undone: int = 0, lost: Sequence[int] = ()) -> None:
        self.note(number, undone=undone, done=True, lost=lost)
        path = await saved(self.sessions.find("s"))
        await eventually(lambda: {*os.listdir(path.parent)} == {path.name, "session.json", "cells.jsonl"}, 20)

    async def act(self, number: int) -> None:
        """Save the session after a cell, and after an undo of another one."""
        for ran in (number + 1, number + 2):
            self.fuse.armed = False
            await self.run(f"v = {ran}")
            self.note(ran)
            self.fuse.armed = True
            await self.save(ran)
        named = self.sessions.find("s")
        self.note(ran - 1, undone=ran)
        async with named.going_back():
            await named.session.undo()
        await self.save(ran - 1, undone=ran)


async def run(kind: str, state: str, workspace: str, point: int, *, early: bool = False) -> None:
    """Be one of the chain; without a point, the last one."""
    custodian = Custodian.connect(state)
    if kind == "saves" and custodian.entries:
        custodian.end()
        custodian = Custodian.connect(state)
    fuse = Fuse(point, *MOVES, (os, "fsync"), (os, "link"), (Database, "transaction"), (Writer, "_commit"))
    fuse.armed = early
    host = Host(isolate="none", custodian=custodian)
    sessions = NamedSessions(host, NamedStore(Path(state)))
    await sessions.adopt()
    daemon = KINDS[kind](sessions, fuse, workspace, f"{state}/notes")
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
    await daemon.act(number)
    fuse.armed = False
    os._exit(NOT_KILLED)


KINDS = {"code": Daemon, "sessions": Branching, "saves": Saves}


def main(kind: str, state: str, workspace: str, first: str, step: str, last: str = "") -> None:
    chain, point = Chain(), int(first)

    def one(point: int, *, early: bool = False) -> bool:
        return chain.run(lambda: run(kind, state, workspace, point, early=early), f"{kind}, point {point}")

    if last:
        chance = random.Random(point)
        while point < int(last):
            one(chance.randrange(1, 110))
            one(point, early=True)
            point += int(step)
    else:
        while one(point):
            point += int(step)
    one(0)
    print(chain.killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
