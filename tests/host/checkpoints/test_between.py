"""What others have saved stays or comes back, whatever cells are undone; if that cannot be, the undo refuses."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock import Exact, Host
from cellblock.errors import CheckpointError, SnapshotError
from cellblock.host.snapshots import Snapshots
from checkpoint_sessions import run, tree, wait_for_clock
from suite import first_quick

MIB = 2**20


@pytest.mark.parametrize("there", first_quick([False, True]))
async def test_what_others_saved_before_a_cell_that_was_undone_stays(zygote_host: Host, tmp_path: Path, there: bool) -> None:
    """What an undo has brought back is whose it was, also for the next undo."""
    if there:
        (tmp_path / "notes").write_text("before")
        await wait_for_clock()
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "x = 1")
        await wait_for_clock()
        (tmp_path / "notes").write_text("mine")
        await asyncio.sleep(0.06)  # after that, a change shows in any case
        await run(session, "open('notes', 'a').write(' and the cell')", "y = 1", "open('notes', 'w').write('mine')")
        await session.undo()
        await session.undo(2)
        for code in ("open('notes', 'a').write('again')", "import os; os.rename('notes', 'n')"):
            await asyncio.sleep(0.06)
            await run(session, code)
            await session.undo()
            assert tree(tmp_path) == {"notes": "mine"}
        await session.undo()
        assert tree(tmp_path) == {"notes": "mine"}


async def test_what_others_have_put_into_it_keeps_it(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import os", "os.mkdir('.venv'); os.mkdir('node_modules'); open('.venv/theirs', 'w').close()")
        await wait_for_clock()
        (tmp_path / ".venv" / "mine").touch()
        undone = await session.undo()
        assert undone.files_left.startswith("'.venv' stays unchanged")
        assert sorted(os.listdir(tmp_path / ".venv")) == ["mine", "theirs"]
        assert os.listdir(tmp_path) == [".venv"]
        await wait_for_clock()
        (tmp_path / "node_modules").mkdir()  # somebody else's
        await wait_for_clock()
        await run(session, "x = 1")
        assert (await session.undo()).files_left == ""


# -- between the undone cells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", first_quick(["file", "link", "folder"]))
async def test_what_others_make_between_two_cells_is_there_after_both_are_undone(
    zygote_host: Host, tmp_path: Path, kind: str
) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE)
        for change in ("remove('name')", "remove('folder')", "os.rename('folder', 'f')", "make('name', 'file')"):
            await run(session, "x = 1")
            await wait_for_clock()
            for name in ("name", "folder/name"):
                CHANGE["make"](tmp_path, name, kind, f"theirs before {change}")
            await wait_for_clock()
            before = kinds(tmp_path)
            await run(session, change)
            assert (await session.undo(2)).files_left == ""
            assert kinds(tmp_path) == before


@pytest.mark.parametrize(
    ("make", "change"),
    first_quick(
        [
            (lambda path: (path / "HEAD").mkdir(parents=True), "remove('name')"),
            (os.mkfifo, "os.rename('name', 'n')"),
            (lambda path: big(path), "remove('name')"),
            (lambda path: (path / "HEAD").mkdir(parents=True), "open('name/HEAD', 'w').close()"),
            (os.mkfifo, "open('name/HEAD', 'w').close()"),
            (lambda path: big(path), "os.rename('name', 'n')"),
        ],
        3,
    ),
)
async def test_what_is_not_kept_of_what_others_make_between_two_cells_is_not_lost_in_silence(
    zygote_host: Host, tmp_path: Path, make: Callable[[Path], object], change: str
) -> None:
    name = ".git" if make is not os.mkfifo else "pipe"
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "x = 1")
        await wait_for_clock()
        make(tmp_path / name)
        await wait_for_clock()
        result = await session.execute(f"with contextlib.suppress(OSError): {change.replace('name', name)}")
        if result.not_undoable:
            there = sorted(tmp_path.rglob("*"))
            with pytest.raises(CheckpointError, match="those cells cannot be undone, because files cannot be restored"):
                await session.undo(2)
            assert sorted(tmp_path.rglob("*")) == there
        else:  # it has changed nothing
            await session.undo(2)
            assert (tmp_path / name).exists()


def big(path: Path) -> None:
    """Make a file of which automatic checkpoints keep only the status."""
    with path.open("wb") as file:
        file.truncate(65 * MIB)


async def test_what_cells_make_and_remove_again_goes_although_it_is_not_kept(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "import os", "os.mkfifo('pipe'); open('big', 'w').truncate(65 << 20)")
        await session.execute("os.remove('pipe'); os.remove('big')")
        await session.undo(2)
        assert not [*tmp_path.iterdir()]


async def test_files_are_kept_between_cells_of_a_kernel_that_cannot_be_copied(zygote_host: Host, tmp_path: Path) -> None:
    begun = "import sqlite3\ndatabase = sqlite3.connect('data', isolation_level=None); database.execute('BEGIN IMMEDIATE')"
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "x = 1", begun)
        for number in range(2):
            await wait_for_clock()
            (tmp_path / f"theirs-{number}").write_text("theirs")
            await wait_for_clock()
            assert (await session.execute(f"import os; os.remove('theirs-{number}')")).not_undoable
        await session.undo(3)
        assert tree(tmp_path) == {"theirs-0": "theirs", "theirs-1": "theirs"}


@pytest.mark.parametrize("make", first_quick([Path.touch, os.mkfifo]))
async def test_what_others_made_long_ago_is_there_after_all_cells_are_undone(
    zygote_host: Host, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """More cells ago than can be undone one by one."""
    async with zygote_host.session(working_dir=tmp_path, recovery=Exact(keep=2)) as session:
        await run(session, CODE, "make('own', 'file', '1')")
        await wait_for_clock()
        make(tmp_path / "theirs")
        await wait_for_clock()
        await run(session, *("make('own', 'file', '2')" for _ in range(4)))
        assert (await session.execute("remove('theirs')")).ok
        await run(session, *(f"make('own-{number}', 'file', '3')" for number in range(4)))
        if make is os.mkfifo:
            with pytest.raises(CheckpointError, match="'theirs' has changed or was removed"):
                await session.undo(11)
        else:
            await session.undo(11)
            assert [*kinds(tmp_path)] == ["theirs"]


async def test_without_the_checkpoint_between_two_cells_both_are_undone(zygote_host: Host, tmp_path: Path) -> None:
    """As when memory was short for the process that held the checkpoint between them."""
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, "x = 1", "x = 2", "x = 3")
        automatic = session._checkpoints.automatic
        await automatic.made()
        await automatic.all()[-2].drop()
        assert len((await session.undo(2)).cells) == 2


# -- in the place of what comes back -----------------------------------------------------------------------------------


async def test_what_others_save_in_a_folder_that_took_the_place_of_a_file_is_not_removed(
    zygote_host: Host, tmp_path: Path
) -> None:
    (tmp_path / "name").write_text("1")
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "remove('name'); make('name/inner', 'folder')")
        await wait_for_clock()
        (tmp_path / "name" / "theirs").touch()
        await wait_for_clock()
        await run(session, "open('name/new', 'w').close()", "remove('name')")
        with pytest.raises(SnapshotError, match="another program"):
            await session.undo(3)
        assert not [*tmp_path.iterdir()]
        await session.undo()
        with pytest.raises(SnapshotError, match="another program"):
            await session.undo(2)
        assert (tmp_path / "name" / "theirs").exists()


async def test_a_folder_is_not_made_in_the_place_of_what_others_have_saved(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "file").touch()
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "remove('name')")
        await wait_for_clock()
        (tmp_path / "name").write_text("theirs")
        with pytest.raises(SnapshotError, match="another program"):
            await session.undo()
        assert tree(tmp_path) == {"name": "theirs"}
        assert "'name'" in (await session.undo(partial=True)).files_left
        assert tree(tmp_path) == {"name": "theirs"}


async def test_modes_that_others_have_set_stay(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / "after").mkdir()
    (tmp_path / "between").mkdir()
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "make('after/file', 'file')")
        await wait_for_clock()
        (tmp_path / "between").chmod(0o700)
        await wait_for_clock()
        await run(session, "os.chmod('between', 0o777)")
        await wait_for_clock()
        (tmp_path / "after").chmod(0o700)
        await session.undo(2)
        assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("after", "between")] == [0o700, 0o700]
        assert kinds(tmp_path) == {"after": "/", "between": "/"}


async def test_all_names_of_a_file_of_others_come_back(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "x = 1")
        await wait_for_clock()
        (tmp_path / "one").write_text("theirs")
        os.link(tmp_path / "one", tmp_path / "two")
        await wait_for_clock()
        await run(session, "remove('one'); remove('two')")
        await session.undo(2)
        assert tree(tmp_path) == {"one": "theirs", "two": "theirs"}


@pytest.mark.parametrize("kind", first_quick(["removed", "changed"]))
async def test_a_large_file_of_others_keeps_no_cell_from_being_undone(zygote_host: Host, tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    big(tmp_path / "folder" / "big")
    await wait_for_clock()
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "make('own', 'file')")
        await wait_for_clock()
        if kind == "removed":
            (tmp_path / "folder" / "big").unlink()
        else:
            (tmp_path / "folder" / "big").write_text("small")
        await wait_for_clock()
        await session.undo()
        assert not (tmp_path / "own").exists()


async def test_what_others_save_is_seen_where_the_system_does_not_tell_of_changes(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Snapshots, "_watched", lambda *_: None)
    async with zygote_host.session(working_dir=tmp_path) as session:
        await run(session, CODE, "make('file', 'file', 'cell')")
        await wait_for_clock()
        (tmp_path / "file").write_text("theirs")
        await wait_for_clock()
        await run(session, "remove('file')")
        await session.undo()
        assert tree(tmp_path) == {"file": "theirs"}


def shared_changes() -> dict[str, Any]:
    """Changes that cells and others make to a directory."""

    def remove(top: Path, name: str) -> None:
        path = top / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()

    def make(top: Path, name: str, kind: str, text: str = "") -> None:
        path = top / name
        if path.parent.is_symlink() or path.parent.is_file():
            path.parent.unlink()
        remove(top, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text(text)
        elif kind == "link":
            path.symlink_to(text)
        else:
            path.mkdir()

    def move(top: Path, old: str, new: str) -> None:
        make(top, new, "file", "")
        (top / new).unlink()
        (top / old).rename(top / new)

    return {"make": make, "move": move, "remove": remove}


CHANGE: dict[str, Callable[..., None]] = shared_changes()
CODE = f"""import contextlib, functools, os, pathlib, shutil
from pathlib import Path
from typing import Any
{inspect.getsource(shared_changes)}
make, move, remove = (functools.partial(change, pathlib.Path()) for change in shared_changes().values())
"""


def kinds(top: Path) -> dict[str, str]:
    """Return the content of files, the targets of links and ``/`` for folders, by path."""
    found = {}
    for path in sorted(top.rglob("*")):
        if not path.relative_to(top).parts[0].startswith(".cellblock-"):
            text = os.readlink(path) if path.is_symlink() else "/" if path.is_dir() else path.read_text()
            found[str(path.relative_to(top))] = text
    return found
