"""Each text that anybody has saved is in the workspace or in the trash, unless a cell or a person has replaced it.

Cells and a person write, move and remove files, also while a cell or an undo runs. Each text is unique, and who replaces one
notes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, Session
from cellblock.common import config
from cellblock.errors import CheckpointError, SnapshotError
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


class Saved:
    """The texts that anybody has saved in a workspace, and nobody has replaced.

    Attributes:
        workspace: The workspace.
        done: What was done, for messages.
    """

    def __init__(self, workspace: Path, aside: Path, chance: random.Random) -> None:
        self.workspace = workspace
        self.done: list[object] = []
        self._aside = aside
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
    return [Path(folder, name) for folder, _, names in os.walk(top) for name in names if name in {"a", "b"}]


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


async def try_to(saved: Saved, name: str, action: Awaitable[Any], chance: random.Random) -> None:
    """Do something that may be refused, while a person works."""
    saved.done.append(name)
    async with working(saved, chance):
        try:
            await action
        except (CheckpointError, SnapshotError) as error:
            saved.done.append(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(2)
async def test_each_text_is_in_the_workspace_or_in_the_trash(any_host: Host, tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{seed} {date.today()}")
    workspace, aside = tmp_path / "workspace", tmp_path / "aside"
    workspace.mkdir()
    aside.mkdir()
    saved = Saved(workspace, aside, chance)
    async with any_host.session(working_dir=workspace) as session:
        marks = [await session.checkpoint(files="copy")]
        try:
            for _ in range(30):
                match chance.choice(STEPS):
                    case "cell":
                        await cell(session, saved, chance)
                    case "person":
                        saved.save()
                    case "undo":
                        count = chance.choice([1, 1, 2, 3])
                        await try_to(saved, f"undo {count}", session.undo(count, partial=chance.random() < 0.3), chance)
                    case "redo":
                        await try_to(saved, "redo", session.redo(), chance)
                    case "mark":
                        marks.append(await session.checkpoint(files="copy"))
                    case "restore":
                        await try_to(saved, "restore", session.restore(chance.choice(marks)), chance)
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
        finally:  # the next tests have the same host
            for mark in marks:
                await mark.drop()
