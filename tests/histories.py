"""Histories of a workspace: cells, tasks and a person write, move and remove files, also while a cell or an undo runs.

Each text is unique, and who replaces one notes it. So each text that nobody has replaced must be in the workspace or in the
trash. Where nobody interferes, an undo and a redo must also make the variables and files of before, and a refused one none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from cellblock.common import config
from cellblock.errors import CellblockError, CheckpointError, SnapshotError
from full_disk import full_after
from processes import eventually
from suite import SEED

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "e/a")
STEPS = (
    *["cell"] * 7,
    *["task", "person", "redo", "restore"] * 2,
    *["undo"] * 6,
    *["mark", "branch", "crash"],
)
WITH_KILLS = (*STEPS, *["kill"] * 6)
"""Steps of a session whose program can be killed."""

WITHOUT_CHECKPOINTS = tuple(step for step in STEPS if step not in {"mark", "restore", "branch"})
"""Steps of fronts that offer no checkpoints and branches."""

CHANGES = ("save", "save", "edit", "remove", "move")
SAVE = """
import asyncio, contextlib, os, time
replaced, was = [], globals().get('state')

def save(name, text):
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    remove(name)
    open(name, 'w').write(text)

def edit(name, text):
    if os.path.exists(name):
        replaced.append(open(name).read())
        open(name, 'w').write(text)
    else:
        save(name, text)

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

async def later(name, text, seconds):
    await asyncio.sleep(seconds)
    with contextlib.suppress(OSError), open(name, 'x') as file:  # which replaces nothing
        file.write(text)
"""


class Outcome(Protocol):
    """The outcome of a cell."""

    @property
    def ok(self) -> bool: ...
    @property
    def text(self) -> str | None: ...
    @property
    def recovery(self) -> str | None: ...


class Session(Protocol):
    """What histories need of a session, in this process or through a front. `WITHOUT_CHECKPOINTS` needs the first three."""

    async def execute(self, code: str) -> Outcome: ...
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
        tasks: Texts that tasks may save, some time.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.workspace, self._aside = directory / "workspace", directory / "aside"
        self.workspace.mkdir()
        self._aside.mkdir()
        self.done: list[object] = []
        self.tasks: set[str] = set()
        self._chance = chance
        self._number = 0
        self._texts: set[str] = set()

    def new(self) -> str:
        self._number += 1
        return f"text {self._number}"

    def add(self, text: str) -> None:
        self._texts.add(text)

    def replaced(self, texts: Collection[str]) -> None:
        self._texts.difference_update(texts)

    def interfere(self) -> None:
        """Save, edit, move or delete a file, or move a folder, as a person does."""
        path, other = (self.workspace / name for name in self._chance.sample(NAMES, 2))
        with contextlib.suppress(OSError):  # a folder or a file of this name appears or disappears
            match self._chance.choice(["save", "save", "edit", "move", "delete", "move a folder"]):
                case "save":
                    self._take(path)
                    self._put(path, self.new())
                case "edit":
                    self._edit(path, self.new())
                case "move":
                    if (text := self._take(path)) is not None:
                        self._put(other, text)
                case "delete":
                    self._take(path)
                case _ if path.parent != self.workspace:
                    path.parent.rename(self.workspace / "f")  # which replaces at most an empty folder

    def _take(self, path: Path) -> str | None:
        """Move a file aside, to know what it was; return its text."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, self._aside / "old")
            text = self._aside.joinpath("old").read_text()
            self.replaced([text])
            self._note("took", path, text)
            return text
        return None

    def _put(self, path: Path, text: str) -> None:
        new = self._aside / text
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        os.link(new, path)  # not by a rename, which would replace what has come to this name meanwhile
        new.unlink()
        self.add(text)
        self._note("put", path, text)

    def _edit(self, path: Path, text: str) -> None:
        """Write a text over that of a file, by one system call. It is longer, or as long."""
        with path.open("r+b", buffering=0) as file:
            old = file.read().decode()
            self.replaced([old])
            file.seek(0)
            file.write(text.encode())
        self.add(text)
        self._note("edited", path, text)

    def _note(self, what: str, path: Path, text: str) -> None:
        self.done.append((f"person {what}", str(path.relative_to(self.workspace)), text))

    def files(self) -> dict[str, str]:
        """Return the texts in the workspace, by path, without those that a full disk kept out of the trash."""
        found = {str(path.relative_to(self.workspace)): path.read_text() for path in _files(self.workspace)}
        return {path: text for path, text in found.items() if not path.startswith(".")}

    def check(self) -> None:
        """Look for all texts."""
        found = {path.read_text() for top in (self.workspace, config.state_directory() / "trash") for path in _files(top)}
        self._texts |= self.tasks & found
        self.tasks -= found
        lost = self._texts - found
        assert not lost, f"lost: {sorted(lost)}"


def _files(top: Path) -> list[Path]:
    """Return files of all names, and those that a full disk let be put neither into the trash nor under their own names."""
    found = (Path(folder, name) for folder, _, names in os.walk(top) for name in names)
    return [path for path in found if path.name in {"a", "b"} or path.name.startswith("old-")]


class _State(NamedTuple):
    """What a user expects: the value of the variable `state`, and the files. None is not known."""

    value: str | None
    files: dict[str, str] | None


class Expected:
    """What a user expects of undo and redo.

    Attributes:
        value: The value of the variable `state`, as text; None if it is not known.
    """

    def __init__(self) -> None:
        self.value: str | None = "None"
        self._before: list[_State] = []
        self._redoable: list[tuple[_State, list[_State]]] = []

    def forget(self) -> None:
        self.value = None
        self._before.clear()
        self._redoable.clear()

    def others(self) -> None:
        """Note that not only cells have changed files."""
        self._before = [_State(value, None) for value, _ in self._before]
        self._redoable = [(_State(state.value, None), cells) for state, cells in self._redoable]

    def cell(self, value: str, files: dict[str, str]) -> None:
        """Note that a cell has begun with these files, and has set the variable to a value."""
        self._redoable.clear()
        self._before.append(_State(self.value, files))
        self.value = value

    def undone(self, count: int, files: dict[str, str]) -> _State:
        """Note that cells were undone, with these files before; return what is expected."""
        if count > len(self._before):  # cells of before something that made the past unknown
            self.forget()
            return _State(None, None)
        self._redoable.append((_State(self.value, files), self._before[-count:]))
        state = self._before[-count]
        del self._before[-count:]
        self.value = state.value
        return state

    def redone(self) -> _State:
        """Note that an undo was undone; return what is expected."""
        if not self._redoable:
            self.forget()
            return _State(None, None)
        state, cells = self._redoable.pop()
        self._before += cells
        self.value = state.value
        return state


@asynccontextmanager
async def working(saved: Saved, chance: random.Random) -> AsyncIterator[None]:
    """Let a person work with the files, at any moment of what is done meanwhile."""

    done = asyncio.Event()

    async def work() -> None:
        while not done.is_set():
            await asyncio.sleep(chance.random() * 0.01)
            await asyncio.to_thread(saved.interfere)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        done.set()
        await task


class History:
    """Random steps of a session, and what its user expects after each."""

    def __init__(
        self,
        session: Session,
        saved: Saved,
        chance: random.Random,
        kill: Callable[[], Awaitable[None]] | None = None,
        *,
        disk: bool = True,
    ) -> None:
        """Begin a history.

        Args:
            session: A fresh session in the workspace.
            saved: The texts.
            chance: The steps, and their times.
            kill: Kills the program that has the session.
            disk: Whether the session is in this process, for which the disk can be full.
        """
        self._session, self._saved, self._chance, self._kill, self._disk = session, saved, chance, kill, disk
        self._expected = Expected()
        self._marks: list[Any] = []

    async def run(self, steps: int, kinds: Sequence[str] = STEPS) -> None:
        """Do steps of some kinds, and look for all texts after each."""
        try:
            for _ in range(steps):
                await self._step(self._chance.choice(kinds))
                self._saved.check()
            for mark in self._marks:
                await mark.drop()
        except BaseException as error:
            error.add_note("\n".join(map(str, ["done:", *self._saved.done])))
            raise

    async def _step(self, kind: str) -> None:
        session, saved, chance = self._session, self._saved, self._chance
        match kind:
            case "kill" if self._kill is not None:  # the next program goes on, also with what can be redone
                saved.done.append("kill")
                await self._kill()
            case "cell" | "task":
                await self._cell(session, task=kind == "task")
            case "person":
                saved.interfere()
                self._expected.others()
            case "undo":
                count, partial = chance.choice([1, 1, 2, 3]), chance.random() < 0.2
                files = saved.files()
                if (done := await self._try(f"undo {count}", session.undo(count, partial=partial))) is not None:
                    state = self._expected.undone(count, files)
                    self._look(state if not partial else None, alone=done)
            case "redo":
                if (done := await self._try("redo", session.redo())) is not None:
                    self._look(self._expected.redone(), alone=done)
            case "restore" if self._marks:
                if await self._try("restore", session.restore(chance.choice(self._marks))) is not None:
                    self._expected.forget()
            case "mark" | "restore":
                saved.done.append("mark")
                self._marks.append(await session.checkpoint(files="copy"))
            case "branch":
                saved.done.append("branch")
                (branch,) = await session.fork(files="shared")
                self._expected.others()
                async with branch:
                    await self._cell(branch)
                    if chance.random() < 0.5 and await self._try("adopt", session.adopt(branch), kill=False) is not None:
                        self._expected.forget()
            case _:
                saved.done.append("crash")
                value = self._expected.value
                result = await session.execute("import os; os._exit(1)")
                self._expected.forget()
                self._expected.value = value if result.recovery == "restored" else None

    def _look(self, state: _State | None, *, alone: bool) -> None:
        """Compare the files with what is expected after an undo or a redo."""
        if state is None:
            self._expected.forget()
        elif not alone or self._saved.tasks:
            self._expected.others()
        elif state.files is not None:
            files = self._saved.files()
            assert files == state.files, f"not as before: {files}, and not {state.files}"

    async def _cell(self, session: Session, *, task: bool = False) -> None:
        """Run a cell that changes files, and have a person work with others while it waits."""
        saved, chance, lines = self._saved, self._chance, list[str]()
        alone = not saved.tasks and not task
        for _ in range(chance.randint(1, 3)):
            name, other = chance.sample(NAMES, 2)
            match chance.choice(CHANGES):
                case "save" | "edit" as change:
                    lines.append(f"{change}({name!r}, {(text := saved.new())!r})")
                    saved.add(text)
                case "remove":
                    lines.append(f"remove({name!r})")
                case _:
                    lines.append(f"move({name!r}, {other!r})")
        if task:
            text, seconds = saved.new(), chance.random() * 0.03
            lines.append(f"asyncio.ensure_future(later({chance.choice(NAMES)!r}, {text!r}, {seconds}))")
            saved.tasks.add(text)
        if waits := chance.random() < 0.3:
            lines.append("wait('waits')")
        saved.done.append(tuple(lines))
        files, value = saved.files(), saved.new()
        code = "\n".join([SAVE, *lines, f"state = {value!r}", "print('<<' + '|'.join(replaced) + '>>' + str(was))"])
        running = asyncio.create_task(session.execute(code))
        if waits:
            await eventually(lambda: running.done() or (saved.workspace / "waits").exists(), 60)
            for _ in range(chance.randint(0, 3)):
                saved.interfere()
            (saved.workspace / "waits").unlink()
        result = await running
        assert result.ok, result
        said = re.search(r"<<(.*)>>(.*)", result.text or "")
        assert said is not None, result
        saved.replaced(said[1].split("|"))
        saved.tasks.difference_update(said[1].split("|"))
        if session is self._session:
            value_then = self._expected.value
            assert value_then in (None, said[2]), f"the variable is {said[2]}, and not {value_then}"
            self._expected.cell(value, files)
        if waits or not alone:
            self._expected.others()

    async def _try(self, name: str, action: Coroutine[Any, Any, object], *, kill: bool = True) -> bool | None:
        """Do something that may be refused, perhaps while a person works. Perhaps kill the program, or fill the disk.

        Returns:
            Whether it was done without anybody else, or None if it was refused.
        """
        saved, chance = self._saved, self._chance
        saved.done.append(name)
        files, alone, tasks = saved.files(), chance.random() < 0.7, {*saved.tasks}
        killed = kill and self._kill is not None and chance.random() < 0.3
        async with contextlib.AsyncExitStack() as stack:
            if not alone:
                await stack.enter_async_context(working(saved, chance))
            if self._disk and chance.random() < 0.2:
                count = chance.choice([0, 1, 2, 4, 8])
                saved.done.append(f"the disk is full after {count} writes")
                stack.enter_context(full_after(count))
            doing = asyncio.create_task(action)
            if killed and self._kill is not None:
                await asyncio.sleep(chance.random() * 0.05)
                saved.done.append("kill")
                await self._kill()
            try:
                await doing
            except (CellblockError, OSError) as error:
                saved.done.append(str(error))
                if not killed and not isinstance(error, (CheckpointError, SnapshotError)):
                    raise
                refused = True
            else:
                refused = False
        if killed:  # if it has failed, nobody knows whether it was done
            self._expected.forget()
            return None
        if not alone:
            self._expected.others()
        elif refused and not tasks:
            now = saved.files()
            assert now == files, f"it was refused, and yet there is {now}, and not {files}"
        return None if refused else alone


async def play(
    opened: Callable[[Path], AbstractAsyncContextManager[Session]],
    directory: Path,
    count: int,
    seed: str,
    kinds: tuple[str, ...] = STEPS,
    **faults: Any,
) -> None:
    """Play histories one after the other, each in a session and a workspace of its own: if a short one fails, it shrinks."""
    for number in range(count):
        chance = random.Random(f"{seed} {number} {os.environ[SEED]}")
        (directory / str(number)).mkdir()
        saved = Saved(directory / str(number), chance)
        async with opened(saved.workspace) as session:
            await History(session, saved, chance, **faults).run(4, kinds)
        shutil.rmtree(config.state_directory() / "trash", ignore_errors=True)  # in which each history looks for its texts
