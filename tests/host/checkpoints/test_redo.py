"""Undo loses nothing of a person's, and redo takes it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock.errors import CheckpointError
from cellblock.host import Host
from checkpoint_sessions import value
from processes import eventually


async def test_what_a_person_saves_while_a_cell_runs_is_in_the_trash_after_an_undo(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / "edited").write_text("1")
    async with zygote_host.session(working_dir=tmp_path) as session:
        await session.execute("import time, os")
        code = "open('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"
        running = asyncio.create_task(session.execute(code))
        await eventually((tmp_path / "begun").exists)
        (tmp_path / "notes").write_text("mine")
        (tmp_path / "edited").write_text("mine, too")
        (tmp_path / "go").touch()
        await running
        undone = await session.undo()
        done = {file.path: (file.action, file.restorable) for file in undone.files}
        assert done["notes"] == ("removed", True)
        assert done["edited"] == ("reverted", True)
        await session.restore_trash("notes")
        assert (tmp_path / "notes").read_text() == "mine"
        assert {file.path for file in (await session.trash())[-1].files} >= {"notes", "edited"}


async def test_redo_takes_undos_back_one_after_the_other(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path) as session:
        for number in range(3):
            await session.execute(f"x = {number}; open('f', 'w').write('{number}'); import random; random.seed({number})")
        await session.undo()
        assert (await session.undo(2)).redoable == 2
        assert not (tmp_path / "f").exists()
        assert len((await session.redo()).cells) == 2
        assert (tmp_path / "f").read_text() == "1"
        assert (await session.redo()).execution_count == 3
        assert (await value(session, "x"), (tmp_path / "f").read_text()) == ("2", "2")
        with pytest.raises(CheckpointError, match="no undo to reverse"):
            await session.redo()
        assert len((await session.undo(2)).cells) == 2  # what is undone now is as it was


async def test_the_next_cell_ends_redo(zygote_host: Host) -> None:
    async with zygote_host.session() as session:
        await session.execute("x = 0")
        await session.execute("x = 1")
        await session.undo()
        await session.variables()  # only looks, and is followed by another checkpoint
        await session.redo()
        await session.undo()
        await session.execute("y = 1")
        with pytest.raises(CheckpointError, match="no undo to reverse"):
            await session.redo()


async def test_the_files_of_a_database_are_undone_and_redone(zygote_host: Host, tmp_path: Path) -> None:
    """With a write-ahead log: a connection that is opened again must not change the restored files."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    async with zygote_host.session(working_dir=tmp_path) as session:
        await session.execute("import sqlite3; db = sqlite3.connect('db', isolation_level=None)")
        await session.execute("db.execute('PRAGMA journal_mode=WAL'); db.execute('CREATE TABLE rows (n)')")
        made = files()
        await session.execute("db.execute('INSERT INTO rows VALUES (1)')")
        inserted = files()
        for _ in range(2):
            await session.undo()
            assert files() == made
            await session.redo()
            assert files() == inserted
        assert await value(session, "db.execute('SELECT n FROM rows').fetchall()") == "[(1,)]"
        await session.undo(3)
        assert files() == {"db": b""}
