"""No text that anybody has saved is lost, although the daemon is killed while it undoes cells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import pytest

import cellblock
from cellblock.fronts.functions.connection import local
from cellblock.service.daemon import control
from daemons import own_daemon
from histories import Saved, history

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


async def ask(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in another thread, by a new connection: a killed daemon may still take a request, and lose it."""

    def call() -> T:
        try:
            return function(*arguments, **options)
        finally:
            for each in local.__dict__.pop("connections", {}).values():
                each.close()

    return await asyncio.to_thread(call)


class Named:
    """A session in the daemon, or a branch of it, which ends with the context."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __aenter__(self) -> Named:
        return self

    async def __aexit__(self, *_: object) -> None:
        await ask(cellblock.destroy, self._name)

    async def execute(self, code: str) -> cellblock.CodeExecutionResult:
        return await ask(cellblock.execute, self._name, code)

    async def undo(self, count: int, *, partial: bool) -> object:
        return await ask(cellblock.undo, self._name, count, partial=partial)

    async def redo(self) -> object:
        return await ask(cellblock.redo, self._name)

    async def checkpoint(self, *, files: Literal["copy"]) -> Mark:
        return Mark(self._name, (await ask(cellblock.checkpoint, self._name, files=files)).id)

    async def restore(self, checkpoint: Mark) -> object:
        return await ask(cellblock.restore, self._name, checkpoint.id)

    async def fork(self, *, files: Literal["shared"]) -> list[Named]:
        await ask(cellblock.fork, self._name, ["branch"], files=files)
        return [Named("branch")]

    async def adopt(self, branch: Named) -> object:
        return await ask(cellblock.adopt, self._name, branch._name)


class Mark:
    """A checkpoint of a session."""

    def __init__(self, session: str, number: str) -> None:
        self.id = number
        self._session = session

    async def drop(self) -> None:
        await ask(cellblock.drop_checkpoint, self._session, self.id)


async def kill() -> None:
    """Kill the daemon, and wait until nobody can connect to it. The next request starts another one."""
    if (pid := await running()) is not None:
        os.kill(pid, signal.SIGKILL)
        while await running() == pid:
            await asyncio.sleep(0.01)


async def running() -> int | None:
    """Return the pid of the daemon that answers, if any."""
    with contextlib.suppress(cellblock.CellblockError):
        about = await ask(control.status)
        return None if about is None else int(about["pid"])
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(1)
async def test_each_text_is_in_the_workspace_or_in_the_trash(home: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"daemon {seed} {date.today()}")
    saved = Saved(tmp_path, chance)
    cellblock.get_or_create("s", working_dir=str(saved.workspace))
    try:
        await history(Named("s"), saved, chance, kill, steps=15)
    finally:
        cellblock.wipe()
