"""A chain of daemons' sessions on one custodian, each killed at another point of an execution. A program, for `test_faults`.

Usage: named_kills.py code|sessions STATE WORKSPACE FIRST STEP [LAST].

Each is a fork of this process, which opens the store and goes on with the sessions of the one before. Code: it submits again
what that one had submitted last, with the same key. Its result must be there, or it was not run and is now. No code may run
twice, and none be lost. Sessions: each must be there or not, as before or after what that one was doing, with its variables.
Then it submits other code, or makes, forks, adopts and ends sessions. It is killed when it has entered and left calls by which
anything moves FIRST times; the next one STEP times later, and so on, until one is not killed any more. With LAST, each is
killed anywhere, and the one after it while it goes on with what is left: at its own point from FIRST up to LAST. Says how many
were killed.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from cellblock import Host
from cellblock.common.database import Database
from cellblock.errors import NotRunError
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.service.named.named_checkpoints import adopt, fork
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from cellblock.service.store.writer import Writer
from exact_kills import MOVES
from fuses import NOT_KILLED, Chain, Fuse, note, noted
from named_sessions import OPTIONS, submit

GONE, UNSET = "gone", "0"
CODE = "print('x' * {number})\nopen('ran', 'a').write('{number}\\n')\nn = globals().get('n', 0) + 1\nn"


class Daemon:
    """Sessions as a daemon has them."""

    def __init__(self, sessions: NamedSessions, workspace: str, notes: str) -> None:
        self.sessions = sessions
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


async def run(kind: str, state: str, workspace: str, point: int, *, early: bool = False) -> None:
    """Be one of the chain; without a point, the last one."""
    custodian = Custodian.connect(state)
    fuse = Fuse(point, *MOVES, (Database, "transaction"), (Writer, "_commit"))
    fuse.armed = early
    host = Host(isolate="none", custodian=custodian)
    sessions = NamedSessions(host, NamedStore(Path(state)))
    await sessions.adopt()
    daemon = KINDS[kind](sessions, workspace, f"{state}/notes")
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


KINDS = {"code": Daemon, "sessions": Branching}


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
