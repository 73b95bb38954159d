"""A chain of hosts on one custodian, each killed at another point of what it does. Run as a program, for `test_takeover`.

Usage: exact_kills.py STATE WORKSPACE ISOLATION DOES FIRST STEP [LAST].

Each host is a fork of this process. It goes on with the session of the host before, and fails unless the history, the
variables and the files are of one state: the one before what that host was doing, or the one after it. If that host
had undone cells last, it first reverses that. It undoes a cell, and looks again. Then it does one of `DOES`, and is killed
when it has entered and left calls by which anything moves FIRST times; the next host STEP times later, and so on, until one is
not killed any more. Says how many were killed.

With "any", each host does any of these and is killed anywhere in it. The host after it is killed while it goes on with the
session: at its own point from FIRST up to LAST.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable, Sequence

from cellblock import CheckpointError, Exact, Host
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.launch.control import Control
from cellblock.host.session import Session
from cellblock.launch.custody import custodian_client
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model import CodeExecutionResult
from fuses import NOT_KILLED, Chain, Fuse, note, noted

CALLS = (
    *("splice", "sendfile", "pwrite", "pwritev", "pread", "lseek", "ftruncate"),
    *("rename", "replace", "unlink", "write", "fdatasync"),
)
MOVES = (
    *((os, name) for name in CALLS),
    (custodian_client, "send"),
    (Kernel, "_take"),
    (Control, "_tell"),
    (Control, "_take"),
)
"""The calls by which anything moves."""

FEWEST = 2
"""Cells that are there before a host does something: to go back to one of them needs no zygote, which takes time to start."""

TAKE_OVER = "take over"

TICK = """
import asyncio
async def tick():
    global ticks
    while True:
        ticks = globals().get("ticks", 0) + 1
        with open("log", "a") as log:
            print(ticks, file=log)
        await asyncio.sleep(0.0005)
ticking = asyncio.get_running_loop().create_task(tick())
"""
LOOK = """import json, os
json.dumps([
    sorted(int(name[1:]) for name in globals() if name[0] == 'v' and name[1:].isdigit()),
    [*map(int, open('log'))] == [*range(1, ticks + 1)] if 'ticks' in globals() else not os.path.exists('log'),
])"""


class Script:
    """What one host does, and what it tells the next one."""

    def __init__(self, session: Session, workspace: str, notes: str) -> None:
        self.session = session
        self.workspace = workspace
        self.notes = notes
        self.state: list[int] = []
        self.ticks = False
        """Whether a task runs. A redo keeps what it has changed since the undo, and says so."""

    def note(self, *states: Sequence[int], redo: Sequence[int] | None = None, tried: bool = False) -> None:
        """Note which states the next host may find, the one that a redo leads to, and whether a redo was begun."""
        note(self.notes, (states, redo, tried))

    async def look(self) -> list[int]:
        """Return the cells of the present state, by the history, the variables and the files."""
        history = [number for number in self.present() if number]
        variables, consistent = json.loads(ast.literal_eval((await self.session.execute(LOOK)).return_value or ""))
        files = sorted(int(name[1:]) for name in os.listdir(self.workspace) if name[0] == "f")
        assert history == variables == files, (history, variables, files)
        assert consistent, "the file of the task and its variable"
        return history

    def present(self) -> list[int]:
        """Return the numbers of the cells that led to the present state; 0 for one that looks."""
        cells = [cell for cell in self.session.history() if not cell.abandoned and cell.status != "died"]
        return [int(cell.code[1:].partition(" ")[0]) if cell.code[0] == "v" else 0 for cell in cells]

    async def cell(self, more: str = "") -> None:
        """Run a cell that leaves a variable and a file, and does something more."""
        number = max(self.state, default=0) + 1
        after = [*self.state, number]
        self.note(self.state, after)
        await self.session.execute(f"v{number} = open('f{number}', 'w').close()\n{more}", tag="t")
        self.now(after)

    async def task(self) -> None:
        """Run a cell that leaves a task, which changes a variable and a file all the time."""
        await self.cell(TICK)
        self.ticks = True

    async def values(self) -> None:
        """Put a value into the session, and get it: no cell of the history, but code that asks for it."""
        self.note(self.state)
        await self.session.put("w", [*range(1000)])
        assert await self.session.get("w") == [*range(1000)]

    async def crash(self) -> None:
        self.note(self.state)
        await self.session.execute("print('last words'); import os; os._exit(1)", tag="crash")

    async def undo(self, count: int = 1) -> None:
        before, after = self.state, self.state[:-count]
        self.note(before, after)
        await self.session.undo(count)
        self.now(after)
        self.note(after, redo=None if self.ticks else before)

    async def mark(self) -> None:
        """Make and drop checkpoints, after which an undo can still be reversed."""
        for _ in range(3):
            await (await self.session.checkpoint("mark")).drop()

    async def redo(self) -> None:
        """Undo a cell, and reverse that."""
        before = self.state
        await self.undo()
        self.note(self.state, before)
        await self.session.redo()
        self.now(before)

    async def undo_all(self) -> None:
        await self.undo(len(self.state))

    async def restore(self) -> None:
        mark = await self.session.checkpoint("mark", files="copy")
        at = self.state
        await self.cell()
        await self.cell()
        self.note(self.state, at)
        await self.session.restore("mark")
        self.now(at)
        await mark.drop()

    async def go_on(self) -> None:
        """Go on with what another host has left, and undo a cell."""
        if (tag := self.session.cells.resumed) is not None:
            *_, result = [event async for event in self.session.cells.resume()]
            assert isinstance(result, CodeExecutionResult)
            told = (result.status, result.output, result.recovery)
            assert told == (("died", "last words\n", "restored") if tag == "crash" else ("success", "", None)), told
        possible, redo, tried = noted(self.notes)
        if redo is not None:
            self.note(*possible, redo, redo=redo, tried=True)
            try:
                await self.session.redo()
            except CheckpointError:
                assert tried, "the undo cannot be reversed"
                possible.append(redo)
            else:
                possible = [redo]
            self.note(*possible)
        found = await self.look()
        assert found in possible, (found, possible)
        self.state = found[: max(len(found) - (1 if len(found) < 8 else 6), FEWEST)]
        self.note(found, self.state)
        before = self.present()
        after = before.index(self.state[-1]) + 1 if self.state else 0
        await self.session.undo(len(before) - after)  # including those that have looked
        kept = await self.look()
        assert kept == self.state, (kept, self.state, found, tag)
        await self.session.undo()
        for left in self.session.checkpoints():
            if not left.automatic:
                assert left.name == "mark", left
                await left.drop()
        self.note(self.state)

    async def adopt(self) -> None:
        number = max(self.state, default=0) + 1
        after = [*self.state, number]
        self.note(self.state)
        (branch,) = await self.session.fork()
        await branch.execute(f"v{number} = open('f{number}', 'w').close()")
        self.note(self.state, after)
        await self.session.adopt(branch)
        self.now(after)

    def now(self, state: list[int]) -> None:
        self.state = state
        self.note(state)


DOES: dict[str, Sequence[Callable[[Script], Awaitable[None]]]] = {
    "cells": (Script.cell, Script.cell),
    "undo": (Script.cell, Script.cell, Script.undo, Script.mark),
    "redo": (Script.cell, Script.cell, Script.redo, Script.cell),
    "undo all": (Script.cell, Script.undo_all, Script.mark, Script.cell),
    "crash": (Script.cell, Script.crash, Script.cell),
    "restore": (Script.cell, Script.restore),
    "adopt": (Script.cell, Script.adopt, Script.cell),
    "values": (Script.cell, Script.values, Script.cell, Script.undo),
    "task": (Script.task, Script.cell, Script.undo, Script.restore),
}


class Hosts(Chain):
    """Hosts, one after the other."""

    def __init__(self, state: str, workspace: str, isolate: str) -> None:
        super().__init__()
        self.state = state
        self.workspace = workspace
        self.isolate = isolate

    def host(self, does: str, point: int) -> bool:
        """Run a host; return whether it was killed at its point. Without anything to do, it is the last one."""
        return self.run(lambda: self._run(does, point), f"{does!r}, point {point}")

    async def _run(self, does: str, point: int) -> None:
        custodian = Custodian.connect(self.state)
        fuse = Fuse(point, *MOVES)
        fuse.armed = does == TAKE_OVER
        host = Host(isolate=self.isolate, custodian=custodian)  # type: ignore[arg-type]
        remains = []
        for left in await host.adopt():
            if left.label:
                remains.append(left)
            else:  # a branch
                await host.discard(left)
        session = host.session(
            working_dir=self.workspace,
            images_dir=f"{self.state}/images",
            recovery=Exact(keep=20),  # each host that is killed while it looks leaves a cell that has looked
            label="s",
            remains=remains[0] if remains else None,
        )
        await session.start()
        script = Script(session, self.workspace, f"{self.state}/notes")
        if remains:
            await script.go_on()
        if fuse.armed:
            os._exit(NOT_KILLED)
        while len(script.state) < FEWEST:
            await script.cell()
        if not does:
            async with asyncio.timeout(20):  # directories of branches of killed hosts are removed by threads
                while any(name[0] == "." for name in os.listdir(self.workspace)):
                    await asyncio.sleep(0.01)
            await host.close()
            custodian.end()
            return
        fuse.armed = True
        for step in DOES[does]:
            await step(script)
        fuse.armed = False
        os._exit(NOT_KILLED)


def main(state: str, workspace: str, isolate: str, does: str, first: str, step: str, last: str = "") -> None:
    hosts, point = Hosts(state, workspace, isolate), int(first)
    if does == "any":
        chance = random.Random(point)
        while point < int(last):
            hosts.host(chance.choice([does for does in DOES if does != "task"]), chance.randrange(1, 120))
            hosts.host(TAKE_OVER, point)
            point += int(step)
    else:
        while hosts.host(does, point):
            point += int(step)
    hosts.host("", 0)
    print(hosts.killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
