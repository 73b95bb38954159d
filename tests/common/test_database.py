"""Database files: private, whole, and shared by processes."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock import StoreError
from cellblock.common.database import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, n INTEGER); INSERT OR IGNORE INTO counts VALUES ('a', 0)"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here that is not waited for, so that there is nothing to watch."""


def count(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute("SELECT n FROM counts").fetchone()[0])


def test_directory_and_file_are_for_this_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    Database(directory, "x.db", SCHEMA)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "x.db").stat().st_mode) == 0o600


def test_a_directory_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Database(tmp_path, "x.db", SCHEMA)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match=f"others can write to {tmp_path}"):
        Database(tmp_path, "x.db", SCHEMA)
    assert not os.listdir(tmp_path)


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    other = Path("/") if os.geteuid() else tmp_path
    if not os.geteuid():
        os.chown(tmp_path, 65534, 65534)
    with pytest.raises(StoreError, match="belongs to another user"):
        Database(other, "x.db", SCHEMA)


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file cannot be used"):
        Database(tmp_path / "file", "x.db", SCHEMA)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "x.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"x\.db cannot be used"):
        Database(tmp_path, "x.db", SCHEMA)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is text, and long enough to be looked at by SQLite as a header\n" * 20)
    with pytest.raises(StoreError, match=r"x\.db cannot be used: file is not a database"):
        Database(tmp_path, "x.db", SCHEMA)


def test_a_transaction_happens_wholly_or_not_at_all(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", SCHEMA)

    def set_and(fail: Callable[[sqlite3.Connection], object]) -> None:
        with database.transaction() as connection:
            connection.execute("UPDATE counts SET n = 5")
            fail(connection)

    with pytest.raises(ZeroDivisionError):
        set_and(lambda _: 1 / 0)
    assert count(database) == 0
    with pytest.raises(StoreError):
        set_and(lambda connection: connection.execute("UPDATE nothing SET n = 5"))
    assert count(database) == 0
    with database.transaction() as connection:
        connection.execute("UPDATE counts SET n = 5")
    assert count(Database(tmp_path, "x.db", SCHEMA)) == 5


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Four of them read and write in one transaction, and none loses what another has written."""
    program = f"""
from pathlib import Path
from cellblock.common.database import Database
for _ in range(50):
    database = Database(Path({str(tmp_path / "new")!r}), "x.db", {SCHEMA!r})
    with database.transaction() as connection:
        n = connection.execute("SELECT n FROM counts").fetchone()[0]
        connection.execute("UPDATE counts SET n = ?", (n + 1,))
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[1] for process in running] == [""] * 4
    assert count(Database(tmp_path / "new", "x.db", SCHEMA)) == 200


def test_a_writer_that_is_killed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    database = Database(tmp_path, "x.db", SCHEMA)
    program = f"""
import os, signal
from pathlib import Path
from cellblock.common.database import Database
with Database(Path({str(tmp_path)!r}), "x.db", {SCHEMA!r}).transaction() as connection:
    connection.execute("UPDATE counts SET n = 5")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert count(database) == 0
    with database.transaction() as connection:
        connection.execute("UPDATE counts SET n = 1")
    assert count(database) == 1
