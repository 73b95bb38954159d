"""A workspace beside a folder that nobody in it may reach, snapshots of it, and what it looks like."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellblock.host.snapshots import Snapshot, SnapshotLimits, Snapshots, Store, beneath
from cellblock.launch.leftovers import remove_place

SECRET = b"the caller's own secret"
CALLS = (
    *("open", "rename", "replace", "mkdir", "rmdir", "symlink", "unlink", "chmod", "fchmod", "chown", "fchown", "utime"),
    *("write", "ftruncate", "scandir", "lstat", "readlink"),
)
"""The system calls by which snapshots are taken and restored."""

Look = dict[str, tuple[object, ...]]
Make = Callable[..., Snapshots]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, if there is one: some tests make the same files a hundred times."""
    # Not TemporaryDirectory: if something cannot be removed, that changes modes, and follows links to do so (CVE-2023-6597).
    path = tempfile.mkdtemp(dir=memory())
    yield Path(path)
    remove_place(path)


def memory() -> str | None:
    """Return where directories are in memory, if there is such a place."""
    place = "/dev/shm"
    return place if os.access(place, os.W_OK) else None


@pytest.fixture
def workspace(place: Path) -> Path:
    path = place / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with Store(place / "store") as store:
        yield store


@pytest.fixture
def make(workspace: Path, store: Store, place: Path) -> Iterator[Make]:
    """Make snapshots of the workspace, or of another, with limits."""
    made: list[Snapshots] = []

    def make(directory: Path = workspace, **limits: object) -> Snapshots:
        made.append(Snapshots(directory, store, place / "journals", SnapshotLimits(**limits)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for snapshots in made:
        snapshots.close()


@pytest.fixture
def snapshots(make: Make) -> Snapshots:
    return make()


@pytest.fixture
def outside(place: Path) -> Iterator[Path]:
    """A folder of the caller's, of which nothing may be read, and which must be as it was when the test is over."""
    path = place / "outside"
    (path / "folder").mkdir(parents=True)
    (path / "data").write_bytes(SECRET)
    (path / "folder" / "data").write_bytes(SECRET)
    path.chmod(0o751)
    before = look(path)
    yield path
    assert look(path) == before


def trashed(snapshots: Snapshots) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file in the trash."""
    for entry in snapshots.trash.entries():
        for path, info in entry.files():
            if stat.S_ISREG(info.st_mode):
                with entry.open(path) as (folder, name), os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder)) as file:
                    yield path, file.read()


def look(folder: Path) -> Look:
    """Return everything in a folder: kinds, permissions, contents, and times of files."""
    found: Look = {}
    for path in sorted(folder.rglob("*")):
        info, name = path.lstat(), str(path.relative_to(folder))
        mode = stat.S_IMODE(info.st_mode)
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("folder", mode)
        elif path.is_file():
            found[name] = ("file", mode, info.st_mtime_ns, path.read_bytes())
        else:
            found[name] = ("other", mode)
    return found


@contextmanager
def before_call(number: int, action: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Do something before the nth system call of this thread.

    Yields:
        Whether there were as many.
    """
    places = [*((os, name) for name in CALLS), (beneath, "_renameat2")]
    originals = {name: getattr(place, name) for place, name in places}
    count = 0

    def wrapped(name: str) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                for place, name_ in places:
                    setattr(place, name_, originals[name_])
                action()
            return originals[name](*args, **named)

        return call

    try:
        for place, name in places:
            setattr(place, name, wrapped(name))
        yield lambda: count >= number
    finally:
        for place, name in places:
            setattr(place, name, originals[name])


Spoiled = tuple[Snapshot, Look, Look]


def fill(workspace: Path) -> None:
    empty(workspace)
    (workspace / "old" / "inner").mkdir(parents=True)
    (workspace / "old" / "inner" / "data").write_text("old")
    (workspace / "changes").write_text("before")
    (workspace / "link").symlink_to("changes")
    (workspace / "file or folder").write_text("a file")
    (workspace / "mode").mkdir(0o700)


def spoil(workspace: Path) -> None:
    empty(workspace)
    (workspace / "new" / "inner").mkdir(parents=True)
    (workspace / "new" / "inner" / "data").write_text("new")
    (workspace / "changes").write_text("after")
    (workspace / "file or folder").mkdir()
    (workspace / "mode").mkdir(0o755)
    for path in workspace.rglob("*"):
        os.utime(path, (2, 2))


def empty(workspace: Path) -> None:
    for path in workspace.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.fixture
def spoiled(snapshots: Snapshots, workspace: Path) -> Spoiled:
    """A snapshot, what it looks like, and what the workspace looks like now."""
    fill(workspace)
    taken, before = snapshots.take(), look(workspace)
    spoil(workspace)
    return taken, before, look(workspace)
