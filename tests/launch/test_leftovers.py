"""What sessions leave in directories of the host's is removed, whatever it is, and nothing else is."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.common.open_flags import held
from cellblock.launch import leftovers
from cellblock.launch.leftovers import (
    find_places,
    make_place,
    remove_abandoned,
    remove_after,
    remove_place,
    remove_places,
)

_CLOSED = """
import os, sys
from cellblock.launch.leftovers import remove_place
place = sys.argv[1] + "/place"
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setuid(65534)
os.makedirs(place + "/a/b/c")
open(place + "/a/b/c/file", "w").close()
for mode, path in ((0, "a/b/c"), (0o555, "a/b"), (0, "a"), (0o500, "")):
    os.chmod(f"{place}/{path}", mode)
remove_place(place)
sys.exit(os.path.lexists(place))
"""


def deepen(place: Path, depth: int) -> None:
    """Make directories in directories, deeper than any path may be long."""
    opened = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=opened)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)


def test_links_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o750)
    (other / "file").write_text("x")
    place = tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    (place / "link").symlink_to(other)
    (place / "inner" / "link").symlink_to(other)
    (place / "loop").symlink_to(place)
    os.mkfifo(place / "inner" / "pipe")
    remove_place(str(place))
    assert not place.exists()
    assert (other / "file").read_text() == "x"
    assert other.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("remove", [remove_place, remove_abandoned])
def test_a_link_in_the_place_of_a_directory_is_left(tmp_path: Path, remove: Callable[[str], None]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    (tmp_path / "place").symlink_to(tmp_path / "other")
    remove(str(tmp_path / "place"))
    assert (tmp_path / "other" / "file").exists()


@pytest.mark.slow
def test_no_depth_is_in_the_way(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    deepen(place, 1050)
    remove_place(str(place))
    assert not place.exists()


def test_modes_are_not_in_the_way() -> None:
    """As an ordinary user: to root they mean nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        assert subprocess.run([sys.executable, "-c", _CLOSED, directory], cwd="/", check=False).returncode == 0


def test_only_what_begins_that_way_is_removed(tmp_path: Path) -> None:
    for name in ("mine-1", "mine-2", "other"):
        (tmp_path / name / "lib").mkdir(parents=True)
    assert sorted(find_places(f"{tmp_path}/mine-")) == [f"{tmp_path}/mine-1", f"{tmp_path}/mine-2"]
    remove_places(f"{tmp_path}/mine-")
    assert os.listdir(tmp_path) == ["other"]
    assert find_places(f"{tmp_path}/nowhere/x") == []


Program = tuple[subprocess.Popen[bytes], int, socket.socket, int]


@pytest.fixture
def program() -> Iterator[Program]:
    """A process that continues until it is killed, its pidfd, its end of a connection, and the other one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ours, theirs = socket.socketpair()
        with ours, theirs, held(os.pidfd_open(process.pid)) as host:
            yield process, host, theirs, ours.fileno()
        process.kill()


def test_a_living_host_keeps_what_it_has_and_a_dead_one_does_not(tmp_path: Path, program: Program) -> None:
    (tmp_path / "mine-1").mkdir()
    process, host, theirs, ours = program
    remove_after(host, f"{tmp_path}/mine-", ours)
    assert os.listdir(tmp_path) == ["mine-1"]
    process.send_signal(signal.SIGKILL)  # it may end a moment after its connections
    theirs.close()
    remove_after(host, f"{tmp_path}/mine-", ours)
    assert os.listdir(tmp_path) == []


def test_a_host_that_closes_a_connection_and_lives_is_not_waited_for_longer_than_it_has_something(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, host, theirs, ours = program
    theirs.close()
    monkeypatch.setattr(leftovers, "_PATIENCE", 1000)
    remove_after(host, f"{tmp_path}/mine-", ours)
    monkeypatch.setattr(leftovers, "_PATIENCE", 0.01)
    (tmp_path / "mine-1").mkdir()
    remove_after(host, f"{tmp_path}/mine-", ours)
    assert os.listdir(tmp_path) == ["mine-1"]


def test_what_somebody_holds_is_not_abandoned(tmp_path: Path) -> None:
    place = tmp_path / "place"
    kept = make_place(str(place))
    (place / "file").touch()
    remove_abandoned(str(place))
    assert [*place.iterdir()] == [place / "file"]
    os.close(kept)
    remove_abandoned(str(place))
    assert not place.exists()


def test_what_is_another_users_is_not_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    remove_abandoned(str(place))
    assert place.is_dir()


def test_a_place_that_is_removed_before_it_is_held_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, real = tmp_path / "place", fcntl.flock
    calls: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            place.rmdir()
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(make_place(str(place))) as made:
        assert os.path.samestat(os.fstat(made), place.stat())
    assert len(calls) == 2
