"""Only what may have changed is looked at: what the system tells of, what it cannot tell of, and when it is not relied on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.kernels.pairs import files_time
from cellblock.host.snapshots import SnapshotLimits, Store, watch
from cellblock.host.snapshots.walk import Walk

from .conftest import Make
from .watched import LIMITS, Watched, held, watched

MAP = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def map_whole(path):  # nothing is open any more when it returns, which `mmap.mmap` does not promise
    fd = os.open(path, os.O_RDWR)
    address = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0))
    os.close(fd)
    return address
"""


class Other:
    """Another process, which does what it is told."""

    def __init__(self) -> None:
        loop = f"import os, sys\n{MAP}\nfor line in sys.stdin:\n    exec(line)\n    print('done', flush=True)"
        self.process = subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def files(workspace: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # What has just changed is looked at again, which would hide what is missed.
    monkeypatch.setattr("cellblock.host.snapshots.walk._TICK", -(10**12))
    with watched(workspace, place) as files:
        yield files


@pytest.fixture(scope="module")
def one_other() -> Iterator[Other]:
    other = Other()
    yield other
    other.close()


@pytest.fixture
def other(one_other: Other, workspace: Path) -> Other:
    one_other.do(f"os.chdir({str(workspace)!r})")
    return one_other


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is looked at: everything in a folder, with a slash at its end, or one name."""
    found: list[str] = []
    listed, changed = Walk._folder, Walk._changed

    def folder(self: Walk, fd: int, path: str, *args: object) -> object:
        found.append(f"{path}/")
        return listed(self, fd, path, *args)  # type: ignore[arg-type]

    def one(self: Walk, fd: int, path: str, name: str, *args: object) -> object:
        found.append(f"{path}/{name}")
        return changed(self, fd, path, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Walk, "_folder", folder)
    monkeypatch.setattr(Walk, "_changed", one)
    return found


def test_only_what_has_changed_is_looked_at(files: Watched, workspace: Path, other: Other, looked: list[str]) -> None:
    for number in range(300):
        (workspace / f"{number % 3}").mkdir(exist_ok=True)
        (workspace / f"{number % 3}" / f"{number}").write_text("1")
    first = files.take()
    looked.clear()
    assert files.take().root is first.root
    assert looked == []
    other.do("open('1/4', 'a').write('2')")
    second = files.take()
    assert looked == ["/1", "1/4"]
    assert second.root.entries["2"] is first.root.entries["2"]
    other.do("os.rename('2', '1/new')")
    looked.clear()
    files.take()
    assert sorted(looked) == ["/1", "/2", "1/new", "1/new/"]
    looked.clear()
    assert files.take().root is not second.root
    assert looked == []
    files.check()


@pytest.mark.slow
def test_that_something_was_touched_is_known_without_a_look(files: Watched, workspace: Path, other: Other) -> None:
    (workspace / "file").write_text("1")
    files.take()
    assert not files.snapshots.touched()
    for change in (
        "open('file', 'a').write('2')",
        "os.mkdir('folder')",
        "os.rename('file', 'folder/file')",
        "os.unlink('folder/file')",
    ):
        other.do(change)
        assert files.snapshots.touched()
        assert files.snapshots.touched()
        files.take()
        assert not files.snapshots.touched()
    make_many(workspace, 2000)
    assert files.snapshots.touched()
    files.take()
    assert not files.snapshots.touched()


# Each line is followed by a look.
CHANGES = {
    "written by another name": ["open('../other', 'a').write('2')"] * 2,
    "written by a name that is gone": ["fd = os.open('../other', os.O_WRONLY); os.unlink('../other')", "os.write(fd, b'2')"],
    "written by a name that came and went": ["os.link('file', '../x'); open('../x', 'a').write('2'); os.unlink('../x')"],
    "written by an ignored name": ["os.link('file', '.git/file')", "open('.git/file', 'a').write('2')"],
    "made readable by another name": ["os.chmod('../other', 0o604)"],
    "cut off": ["os.truncate('file', 0)"],
    "written and given its old times": [
        "t = os.stat('file'); open('file', 'w').write('2'); os.utime('file', ns=(t.st_atime_ns, t.st_mtime_ns))"
    ],
    "replaced": ["open('../new', 'w').write('2'); os.rename('../new', 'file')"],
    "written while it was in another folder": [
        "os.rename('file', '../file')",
        "open('../file', 'a').write('2')",
        "os.rename('../file', 'file')",
    ],
    "mapped": [
        "where = map_whole('file')",
        "ctypes.memset(where, 50, 1)",
        "ctypes.memset(where, 51, 1)",
        "libc.munmap(ctypes.c_void_p(where), 4096)",
    ],
    "opened before": ["fd = os.open('file', os.O_RDWR)", "os.write(fd, b'2')", "os.pwrite(fd, b'3', 0)", "os.close(fd)"],
    "copied by the system": [
        "a = os.open('../new', os.O_RDWR | os.O_CREAT); os.write(a, b'2'); b = os.open('file', os.O_RDWR)",
        "os.copy_file_range(a, b, 1, 0)",
    ],
    "sent by the system": [
        "a = os.open('../new', os.O_RDWR | os.O_CREAT); os.write(a, b'2'); b = os.open('file', os.O_RDWR)",
        "os.sendfile(b, a, 0, 1)",
    ],
    "spliced": [
        "a, c = os.pipe(); os.write(c, b'2'); b = os.open('file', os.O_RDWR)",
        "libc.splice(a, None, b, None, ctypes.c_size_t(1), 0)",
    ],
    "allocated": ["b = os.open('file', os.O_RDWR)", "os.posix_fallocate(b, 0, 100)"],
    "written where it had no name": [
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)",
        "libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'new', 0x400)",
        "os.write(fd, b'2')",
    ],
    "made readable by all": ["os.chmod('file', 0o604)"],
    "in a folder that is swapped": [
        "os.rename('folder', 'old'); os.symlink('old', 'folder')",
        "open('old/file', 'a').write('2')",
    ],
    "in a folder that is replaced": ["os.rename('folder', '../old'); os.mkdir('folder'); open('folder/file', 'w').write('3')"],
    "in a new folder": [
        "os.makedirs('a/b/c'); open('a/b/c/d', 'w').write('2')",
        "open('a/b/c/d', 'a').write('2')",
        "open('a/b/c/e', 'a')",
    ],
    "in a folder that is gone": ["import shutil; shutil.rmtree('folder')"],
    "in a folder of another mode": ["os.chmod('folder', 0o700)", "os.chmod('.', 0o711)"],
    "with two names here": [
        "os.link('file', 'folder/two')",
        "open('file', 'a').write('2')",
        "open('folder/two', 'a').write('3')",
    ],
    "exchanged": ["libc.renameat2(-100, b'file', -100, b'folder', 2)"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_found(change: str, files: Watched, workspace: Path, other: Other) -> None:
    (workspace / "file").write_text("1" * 10)
    (workspace / ".git").mkdir()
    (workspace / "folder").mkdir()
    (workspace / "folder" / "file").write_text("1")
    files.take()
    os.link(workspace / "file", workspace.parent / "other")
    files.take()
    if "../other" not in CHANGES[change][0]:
        os.unlink(workspace.parent / "other")
        files.take()
    *steps, last = CHANGES[change]
    for step in steps:
        other.do(step)
        files.take()  # `check` reads everything: then everything is looked at the next time
    other.do(last)
    files.check()
    assert files.is_watched


def test_what_is_written_through_memory_changes_its_times(
    files: Watched, workspace: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo goes by them: it leaves alone what has not changed while its cells ran."""
    monkeypatch.setattr(watch, "write_out", lambda _: False)
    (workspace / "file").write_text("1")
    other.do("where = map_whole('file')")
    other.do("ctypes.memset(where, 50, 1)")
    files.take()
    before = (workspace / "file").stat()
    other.do("ctypes.memset(where, 51, 1)")
    assert (workspace / "file").stat().st_ctime_ns == before.st_ctime_ns, "the system says it by itself"
    files.take()
    after = (workspace / "file").stat()
    assert after.st_ctime_ns > before.st_ctime_ns
    assert after.st_mtime_ns == before.st_mtime_ns
    files.take()
    assert (workspace / "file").stat().st_ctime_ns == after.st_ctime_ns


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A workspace of which the system writes to a disk what changes in memory."""
    monkeypatch.setattr("cellblock.host.snapshots.walk._TICK", -(10**12))
    (tmp_path / "workspace").mkdir()
    with open(tmp_path / "probe", "w") as probe:
        if not watch.write_out(probe.fileno()):
            pytest.skip("there is no disk here")
    with watched(tmp_path / "workspace", tmp_path) as files:
        yield files


def test_on_a_disk_a_file_with_a_writer_is_read_only_when_it_has_changed(
    on_disk: Watched, one_other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace" / "file").write_text("1")
    (tmp_path / "workspace" / "large").write_bytes(bytes(LIMITS.max_file_bytes + 1))
    one_other.do(f"os.chdir({str(tmp_path / 'workspace')!r})")
    one_other.do("one, two = map_whole('file'), map_whole('large')")
    on_disk.take()
    read: list[int] = []
    add = Store.add
    monkeypatch.setattr(Store, "add", lambda *args: read.append(1) or add(*args))  # type: ignore[func-returns-value]
    before = on_disk.take()
    for number in range(50, 60):
        began = files_time()
        one_other.do(f"ctypes.memset(one, {number}, 1); ctypes.memset(two, {number}, 1)")
        assert on_disk.snapshots.first_unkept_changed(before, [(began, time.time_ns())]) == "large"
        before = on_disk.take()
        assert on_disk.snapshots.first_unkept_changed(before, []) is None
        on_disk.take()
    assert len(read) == 10
    on_disk.check()


def test_without_a_disk_a_large_file_with_a_writer_counts_as_changed(
    files: Watched, workspace: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "write_out", lambda _: False)
    (workspace / "large").write_bytes(bytes(LIMITS.max_file_bytes + 1))
    snapshot = files.take()
    assert files.snapshots.first_unkept_changed(snapshot, []) is None
    other.do("fd = os.open('large', os.O_RDWR)")
    snapshot = files.take()
    assert files.snapshots.first_unkept_changed(snapshot, []) == "large"
    other.do("os.close(fd)")
    snapshot = files.take()
    assert files.snapshots.first_unkept_changed(snapshot, []) is None


def test_what_has_a_writer_is_looked_at_until_it_has_none(
    files: Watched, workspace: Path, other: Other, looked: list[str]
) -> None:
    (workspace / "file").write_text("1")
    other.do("fd = os.open('file', os.O_RDWR)")
    files.take()
    for _ in range(3):
        looked.clear()
        files.take()
        assert looked == ["/file"]
    other.do("os.close(fd)")
    files.take()
    looked.clear()
    files.take()
    assert looked == []


def test_a_file_that_is_in_a_hurry_is_read_later(files: Watched, workspace: Path) -> None:
    for number in range(10):
        (workspace / str(number)).write_text("1")
    snapshot = files.snapshots.take(LIMITS, lambda: False, lambda: True)
    assert snapshot is not None
    assert snapshot.unkept == 10
    assert files.check().unkept == 0


def make_many(workspace: Path, number: int) -> None:
    for name in range(number):
        (workspace / str(name)).write_text("1")


def overflow(files: Watched, workspace: Path) -> None:
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        most = int(file.read())
    for number in range(most // 2 + 10):
        (workspace / f"x{number}").touch()
        (workspace / f"x{number}").unlink()
    (workspace / "1").write_text("2")
    (workspace / "new").write_text("2")


def few_watches(files: Watched, workspace: Path) -> None:
    watching = files.snapshots._watch
    assert watching is not None
    watching._inotify.most = 10
    (workspace / "1").write_text("2")
    (workspace / "new").write_text("2")


def mounts(files: Watched, workspace: Path) -> None:
    watching = files.snapshots._watch
    assert watching is not None
    watching._poll = AlwaysReady()  # type: ignore[assignment]


class AlwaysReady:
    def poll(self, _: int) -> list[object]:
        return [1]


@pytest.mark.parametrize("lose", [overflow, few_watches])
def test_what_is_missed_is_found_by_looking_at_everything(
    lose: Callable[[Watched, Path], None], files: Watched, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cellblock.snapshots")
    make_many(workspace, 20)
    files.take()
    files.take()
    assert files.is_watched
    lose(files, workspace)
    files.check()
    assert files.watches() == set()
    assert "all files of" in caplog.text
    for _ in range(16):
        (workspace / "2").write_text("3")
        files.take()
    (workspace / "3").write_text("4")
    files.take()
    assert files.is_watched, "it is not tried again"
    (workspace / "4").write_text("5")
    files.check()


def test_what_is_too_much_is_left_out_as_if_nothing_was_watched(files: Watched, workspace: Path, make: Make) -> None:
    limits = SnapshotLimits(max_files=20)
    make_many(workspace, 20)
    assert files.take(limits).whole
    assert files.is_watched
    os.rename(workspace / "1", workspace / "new")
    assert files.take(limits).whole
    (workspace / "more").write_text("1")
    taken = files.take(limits)
    assert files.watches() == set()
    assert not taken.whole
    assert held(taken.root) == held(make(max_files=20).take().root)
    (workspace / "more").unlink()
    assert files.take(limits).whole


def test_if_something_is_mounted_everything_is_looked_at(files: Watched, workspace: Path, looked: list[str]) -> None:
    (workspace / "file").write_text("1")
    files.take()
    mounts(files, workspace)
    looked.clear()
    files.take()
    assert looked == ["/"]
    assert files.is_watched


MOUNTED = """
import contextlib, ctypes, os, sys
from pathlib import Path
from cellblock.walls.linux.syscall import libc, unshare
from host.snapshots.watched import watched
unshare(0x20000)  # CLONE_NEWNS
assert libc.mount(None, b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
place = Path(sys.argv[1])
with watched(place / "workspace", place) as files:
    files.take()
    assert libc.mount(b"tmpfs", bytes(place / "workspace" / "folder"), b"tmpfs", 0, None) == 0
    (place / "workspace" / "folder" / "other").write_text("2")
    files.check()
    assert libc.umount2(bytes(place / "workspace" / "folder"), 0) == 0
    files.check()
    assert libc.mount(bytes(place / "outside"), bytes(place / "workspace" / "folder"), None, 0x1000, None) == 0  # MS_BIND
    files.check()
    (place / "outside" / "data").write_text("3")
    files.check()
    assert libc.mount(bytes(place / "workspace"), bytes(place / "second"), None, 0x1000, None) == 0  # as in a sandbox
    files.take()
    (place / "second" / "file").write_text("4")
    files.check()
    assert files.is_watched
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_is_mounted_in_a_workspace_is_found(workspace: Path, place: Path) -> None:
    (workspace / "folder").mkdir()
    (workspace / "folder" / "file").write_text("1")
    (workspace / "file").write_text("1")
    (place / "outside").mkdir()
    (place / "second").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", MOUNTED, str(place)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("where", ["/proc/self/fd", "/sys"])
def test_a_place_where_not_all_changes_are_told_is_never_watched(where: str, place: Path) -> None:
    top = os.open(where, os.O_RDONLY)
    try:
        with pytest.raises(watch.UnwatchableError, match="file system"):
            watch.Watch(top, 0)
    finally:
        os.close(top)


def test_too_many_sessions_are_not_watched(
    files: Watched, workspace: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.take()
    monkeypatch.setattr(watch, "_limit", {"max_user_watches": 1000, "max_user_instances": 2}.__getitem__)
    with watched(workspace, place) as second:
        (workspace / "file").write_text("1")
        second.check()
        assert not second.is_watched
        assert files.is_watched


@pytest.fixture
def opened() -> Iterator[None]:
    """Nothing may be left open."""
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("opened")
def test_what_is_opened_is_closed_whatever_fails(workspace: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_many(workspace, 3)
    with watched(workspace, place) as files:
        files.take()
        files.snapshots.close()
        files.snapshots.close()
        assert files.check().files == 3  # it can still be asked, and opens nothing that nobody closes
        assert not files.is_watched
    for name in ("check_place", "Inotify"):
        with monkeypatch.context() as patched, watched(workspace, place) as files:
            patched.setattr(watch, name, fail)
            files.check()
            assert not files.is_watched
    with watched(workspace, place) as files:
        with monkeypatch.context() as patched:
            patched.setattr(Walk, "_folder", interrupt)
            with pytest.raises(KeyboardInterrupt):
                files.take()
        files.check()


def fail(*_: object) -> object:
    raise watch.LostError("it is broken")


def full(*_: object) -> object:
    raise SnapshotError("it is full")


def interrupt(*_: object) -> object:
    raise KeyboardInterrupt


def test_a_store_that_is_full_leaves_what_has_changed_to_the_next_look(
    files: Watched, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_many(workspace, 3)
    files.take()
    (workspace / "1").write_text("2")
    (workspace / "2").unlink()
    (workspace / "new").write_text("2")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", full)
        with pytest.raises(SnapshotError):
            files.take()
    files.check()


def test_nobody_waits_while_a_flood_of_events_is_read(files: Watched, workspace: Path) -> None:
    """Code in a session renames as quickly as it can while files are looked at."""
    make_many(workspace, 20)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            os.rename(workspace / "1", workspace / "x")
            os.rename(workspace / "x", workspace / "1")

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(20):
            files.take()
    finally:
        stop.set()
        thread.join()
    files.check()
