"""Histories of a workspace: cells and a person write, move and remove files, also while a cell or an undo runs.

Each text is unique, and who replaces one notes it. So each text that nobody has replaced must be in the workspace or in the
trash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from cellblock import CodeExecutionResult
from cellblock.common import config
from cellblock.errors import CellblockError, CheckpointError, SnapshotError
from full_disk import full_after
from processes import eventually

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "e/a")
STEPS = ["cell", "cell", "cell", "person", "undo", "undo", "redo", "mark", "restore", "branch", "crash"]
CHANGES = ["save", "save", "remove", "move"]
SAVE = """
import asyncio, os, shutil, time
replaced = []

def save(name, text):
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    remove(name)
    open(name, 'w').write(text)

def remove(name):
    try:
        replaced.append(open(name).read())
        os.remove(name)
    except OSError:
        pass

def move(name, other):
    if os.path.exists(name):
        os.makedirs(os.path.dirname(other) or '.', exist_ok=True)
        remove(other)
        os.rename(name, other)

def wait(name):
    open(name, 'w').close()
    while os.path.exists(name):
        time.sleep(0.001)
"""


class Session(Protocol):
    """What histories need of a session: of this process, or one in a daemon."""

    async def execute(self, code: str) -> CodeExecutionResult: ...
    async def undo(self, count: int, *, partial: bool) -> object: ...
    async def redo(self) -> object: ...
    async def checkpoint(self, *, files: Literal["copy"]) -> Any: ...
    async def restore(self, checkpoint: Any) -> object: ...
    async def fork(self, *, files: Literal["shared"]) -> list[Any]: ...
    async def adopt(self, branch: Any) -> object: ...


class Saved:
    """The texts that anybody has saved in a workspace, and nobody has replaced.

    Attributes:
        workspace: The workspace.
        done: What was done, for messages.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.workspace, self._aside = directory / "workspace", directory / "aside"
        self.workspace.mkdir()
        self._aside.mkdir()
        self.done: list[object] = []
        self._chance = chance
        self._number = 0
        self._texts: set[str] = set()

    def new(self) -> str:
        self._number += 1
        return f"text {self._number}"

    def add(self, text: str) -> None:
        self._texts.add(text)

    def replaced(self, texts: list[str]) -> None:
        self._texts.difference_update(texts)

    def save(self) -> None:
        """Save a file. What it replaces is moved aside first, to know what that was."""
        path, text = self.workspace / self._chance.choice(NAMES), self.new()
        new = self._aside / text
        with contextlib.suppress(OSError):  # a folder or a file of this name appears or disappears
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text)
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, self._aside / "old")
                self.replaced([self._aside.joinpath("old").read_text()])
            os.link(new, path)  # not by a rename, which would replace what has come to this name meanwhile
            new.unlink()
            self.add(text)
            self.done.append(("person", str(path.relative_to(self.workspace)), text))

    def check(self) -> None:
        """Look for all texts."""
        found = {path.read_text() for top in (self.workspace, config.state_directory()) for path in _files(top)}
        lost = self._texts - found
        assert not lost, "\n".join(map(str, ["lost:", *sorted(lost), "done:", *self.done]))


def _files(top: Path) -> list[Path]:
    """Return files of all names, and those that a full disk let be put neither into the trash nor under their own names."""
    found = (Path(folder, name) for folder, _, names in os.walk(top) for name in names)
    return [path for path in found if path.name in {"a", "b"} or path.name.startswith("old-")]


@asynccontextmanager
async def working(saved: Saved, chance: random.Random) -> AsyncIterator[None]:
    """Let a person save files, at any moment of what is done meanwhile."""

    done = asyncio.Event()

    async def work() -> None:
        while not done.is_set():
            await asyncio.sleep(chance.random() * 0.02)
            await asyncio.to_thread(saved.save)

    task = asyncio.create_task(work()) if chance.random() < 0.5 else None
    try:
        yield
    finally:
        done.set()
        if task is not None:
            await task


async def cell(session: Session, saved: Saved, chance: random.Random) -> None:
    """Run a cell that changes files, and have a person save others while it waits."""
    lines: list[str] = []
    for _ in range(chance.randint(1, 3)):
        name, other = chance.sample(NAMES, 2)
        match chance.choice(CHANGES):
            case "save":
                lines.append(f"save({name!r}, {(text := saved.new())!r})")
                saved.add(text)
            case "remove":
                lines.append(f"remove({name!r})")
            case _:
                lines.append(f"move({name!r}, {other!r})")
    waits = chance.random() < 0.3
    if waits:
        lines.append("wait('waits')")
    saved.done.append(tuple(lines))
    running = asyncio.create_task(session.execute("\n".join([SAVE, *lines, "print('|'.join(replaced))"])))
    if waits:
        await eventually((saved.workspace / "waits").exists)
        for _ in range(chance.randint(0, 3)):
            saved.save()
        (saved.workspace / "waits").unlink()
    result = await running
    saved.replaced((result.text or "").strip().split("|"))
    assert result.ok, result


async def try_to(
    saved: Saved,
    name: str,
    action: Coroutine[Any, Any, object],
    chance: random.Random,
    kill: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Do something that may be refused, while a person works. Perhaps kill the program that does it, or fill the disk."""
    saved.done.append(name)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(working(saved, chance))
        if kill is None and chance.random() < 0.3:
            count = chance.choice([0, 1, 2, 4, 8])
            saved.done.append(f"the disk is full after {count} writes")
            stack.enter_context(full_after(count))
        doing = asyncio.create_task(action)
        if killed := kill is not None and chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.05)
            saved.done.append("kill")
            await kill()
        try:
            await doing
        except (CheckpointError, SnapshotError) as error:
            saved.done.append(str(error))
        except (CellblockError, OSError) as error:  # nobody knows whether it was done
            if not killed:
                raise
            saved.done.append(str(error))


async def history(
    session: Session,
    saved: Saved,
    chance: random.Random,
    kill: Callable[[], Awaitable[None]] | None = None,
    *,
    steps: int = 30,
) -> None:
    """Do random steps, and look for all texts after each.

    Args:
        session: A session in the workspace.
        saved: The texts.
        chance: The steps, and their times.
        kill: Kills the program that has the session.
        steps: Their number.
    """
    marks = [await session.checkpoint(files="copy")]
    for _ in range(steps):
        match chance.choice(STEPS):
            case "cell":
                await cell(session, saved, chance)
            case "person":
                saved.save()
            case "undo":
                count = chance.choice([1, 1, 2, 3])
                await try_to(saved, f"undo {count}", session.undo(count, partial=chance.random() < 0.3), chance, kill)
            case "redo":
                await try_to(saved, "redo", session.redo(), chance, kill)
            case "mark":
                marks.append(await session.checkpoint(files="copy"))
            case "restore":
                await try_to(saved, "restore", session.restore(chance.choice(marks)), chance, kill)
            case "branch":
                saved.done.append("branch")
                (branch,) = await session.fork(files="shared")
                async with branch:
                    await cell(branch, saved, chance)
                    if chance.random() < 0.5:
                        await try_to(saved, "adopt", session.adopt(branch), chance)
            case _:
                saved.done.append("crash")
                await session.execute("import os; os._exit(1)")
        saved.check()
    for mark in marks:
        await mark.drop()
