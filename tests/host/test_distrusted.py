"""Links that sessions made, also those of other programs, and the records by which they are known."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError
from cellblock.host import distrusted

_OTHER_PROGRAM = """
import asyncio, sys
from cellblock import Host

async def main():
    async with Host(isolate="native") as host, host.session(working_dir=sys.argv[1], images_dir=sys.argv[2]) as session:
        result = await session.execute(f"import os; os.symlink({sys.argv[3]!r}, 'task')")
        assert result.ok, result

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_link_of_another_programs_session_is_not_followed(tmp_path: Path) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    workspace.mkdir()
    elsewhere.mkdir()
    arguments = [str(workspace), str(tmp_path / "images"), str(elsewhere)]
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", _OTHER_PROGRAM, *arguments)
    assert await program.wait() == 0
    (tmp_path / "ours").symlink_to(workspace)
    async with Host(isolate="native") as host:
        for path in (workspace / "task", tmp_path / "ours" / "task"):
            with pytest.raises(InvalidInputError, match="is a symbolic link in a directory that a session can write"):
                host.session(working_dir=path, images_dir=tmp_path / "images")
        host.session(working_dir=tmp_path / "ours", images_dir=tmp_path / "images")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(distrusted, "_recorded", 0)
    monkeypatch.setattr(distrusted, "places", set())
    return tmp_path / "state" / "writable"


def test_records_are_this_users_and_made_once(state: Path, tmp_path: Path) -> None:
    distrusted.add([str(tmp_path)])
    distrusted.places.clear()
    distrusted.add([str(tmp_path)])
    (record,) = state.iterdir()
    assert os.readlink(record) == str(tmp_path)
    assert state.stat().st_mode & 0o777 == 0o700


def test_records_of_removed_directories_go_first(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distrusted, "_MOST_RECORDS", 3)
    monkeypatch.setattr(distrusted, "_BETWEEN_LOOKS", 1)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    distrusted.add([str(tmp_path / "a")])
    distrusted.add([str(tmp_path / name) for name in "bcd"])
    (tmp_path / "b").rmdir()
    distrusted.add([str(tmp_path / "e")])
    assert {os.path.basename(os.readlink(record)) for record in state.iterdir()} == {"a", "c", "d", "e"}
    distrusted.add([str(tmp_path / "f")])
    assert len([*state.iterdir()]) == 4  # the oldest has gone


def test_without_a_place_for_records_sessions_go_on(state: Path, tmp_path: Path) -> None:
    state.parent.write_text("not a directory")
    distrusted.add([str(tmp_path)])
    assert distrusted.places == {str(tmp_path)}
