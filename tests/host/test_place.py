"""Directories of sessions are made when they are needed, and removed whatever is in them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cellblock.host.place import PrivateDirectories, SessionPlace, new_workspace
from processes import eventually


async def test_a_place_is_made_once_and_removed_once(tmp_path: Path) -> None:
    place = SessionPlace(str(tmp_path / "place"))
    await place.remove()
    place.make()
    place.make()
    assert os.path.isdir(place.path)
    await place.remove()
    await place.remove()
    assert not os.path.exists(place.path)


async def test_private_directories_are_removed_with_what_is_in_them(tmp_path: Path) -> None:
    private = PrivateDirectories(str(tmp_path / "place"))
    private.make()
    assert {os.stat(path).st_mode & 0o777 for path in (private.path, private.home, private.tmp)} == {0o700}
    assert private.environment == {"HOME": private.home, "TMPDIR": private.tmp, "GIT_CONFIG_NOSYSTEM": "1"}
    os.makedirs(f"{private.home}/deep/er")
    os.chmod(f"{private.home}/deep", 0o500)
    await private.remove(0)
    await eventually(lambda: not os.path.exists(private.path))


async def test_empty_private_directories_are_removed_at_once(tmp_path: Path) -> None:
    private = PrivateDirectories(str(tmp_path / "place"))
    private.make()
    await private.remove(0)
    assert not os.path.exists(private.path)


async def test_a_workspace_is_new_and_those_of_killed_programs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    killed = os.fork()
    if not killed:
        place = new_workspace()
        Path(place.path, "left").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(killed, 0)
    (abandoned,) = tmp_path.iterdir()
    first, second = new_workspace(), new_workspace()
    assert {*tmp_path.iterdir()} == {Path(first.path), Path(second.path)}
    assert not abandoned.exists()
    for place in (first, second):
        await place.remove()
    assert [*tmp_path.iterdir()] == []
