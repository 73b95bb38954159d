"""Random histories of a workspace: a look at what may have changed finds what is there, whoever has changed it and how."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from cellblock.host.snapshots import Snapshot
from cellblock.launch.leftovers import remove_place

from .conftest import memory
from .watched import LIMITS, Watched, held, watched

NAMES = st.sampled_from(["a", "b", "c", "\udcff", ".git"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
BYTES = st.binary(min_size=1, max_size=3)


class History(RuleBasedStateMachine):
    """Changes of a workspace and looks at it, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.place = Path(tempfile.mkdtemp(dir=memory()))
        self.stack.callback(remove_place, str(self.place))
        self.workspace, self.outside = self.place / "workspace", self.place / "outside"
        self.workspace.mkdir()
        self.outside.mkdir()
        self.watched: Watched = self.stack.enter_context(watched(self.workspace, self.place))
        self.writers: list[int] = []
        self.maps: list[mmap.mmap] = []
        self.kept: list[tuple[Snapshot, dict[str, object]]] = []
        self.number = 0
        if tells_changes_apart(self.outside / "probe"):
            # What has just changed is looked at again, which would hide what is missed.
            patch = self.stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr("cellblock.host.snapshots.walk._TICK", -(10**12))

    def teardown(self) -> None:
        with self.stack:
            self.stack.callback(self.unmap)
            self.stack.callback(self.close_open_files)
            # Only now: that everything is opened to be read makes the next look find everything.
            self.watched.check()
            self.nothing_kept_has_changed()
            assert self.watched.is_watched, "it fell back, and tested nothing"

    def at(self, path: str) -> Path:
        return self.workspace / path

    @rule()
    def look(self) -> None:
        self.watched.store.drop(self.watched.take())

    @rule(path=PATHS, data=BYTES)
    def write(self, path: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.at(path).parent.mkdir(parents=True, exist_ok=True)
            # A FIFO that nobody reads would make us wait.
            writer = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)
            os.write(writer, data)
            os.close(writer)

    @rule(path=PATHS, data=BYTES)
    def replace(self, path: str, data: bytes) -> None:
        """As editors do."""
        new = self.outside / "new"
        new.write_bytes(data)
        with contextlib.suppress(OSError):
            os.replace(new, self.at(path))

    @rule(path=PATHS, size=st.sampled_from([0, 1, 2, LIMITS.max_file_bytes + 1]))
    def truncate(self, path: str, size: int) -> None:
        with contextlib.suppress(OSError):
            os.truncate(self.at(path), size)

    @rule(path=PATHS)
    def make_folder(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.at(path).mkdir(parents=True)

    @rule(path=PATHS, to=NAMES)
    def make_link(self, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            self.at(path).symlink_to(to)

    @rule(path=PATHS)
    def make_fifo(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.mkfifo(self.at(path))

    @rule(path=PATHS)
    def remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            if self.at(path).is_dir() and not self.at(path).is_symlink():
                shutil.rmtree(self.at(path))
            else:
                self.at(path).unlink()

    @rule(path=PATHS, to=PATHS)
    def rename(self, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            os.rename(self.at(path), self.at(to))

    @rule(path=PATHS, to=PATHS)
    def exchange(self, path: str, to: str) -> None:
        middle = self.outside / "middle"
        with contextlib.suppress(OSError):
            os.rename(self.at(path), middle)
            try:
                os.rename(self.at(to), self.at(path))
            finally:
                with contextlib.suppress(OSError):
                    os.rename(middle, self.at(to))
        if middle.exists() or middle.is_symlink():
            remove_place(str(middle)) if middle.is_dir() and not middle.is_symlink() else middle.unlink()

    @rule(path=PATHS, mode=st.sampled_from([0o600, 0o755, 0o700]))
    def change_mode(self, path: str, mode: int) -> None:
        with contextlib.suppress(OSError):
            if not self.at(path).is_symlink():
                self.at(path).chmod(mode)

    @rule(path=PATHS)
    def set_times(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.at(path), (1, 1), follow_symlinks=False)

    @rule(path=PATHS, to=PATHS)
    def add_name(self, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            os.link(self.at(path), self.at(to), follow_symlinks=False)

    @rule(path=PATHS, data=BYTES, write_later=st.booleans())
    def write_by_another_name(self, path: str, data: bytes, write_later: bool) -> None:
        self.number += 1
        other = self.outside / f"other-{self.number}"
        with contextlib.suppress(OSError):
            os.link(self.at(path), other, follow_symlinks=False)
            writer = os.open(other, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if write_later:
                os.unlink(other)
                self.writers.append(writer)
            else:
                os.write(writer, data)
                os.close(writer)

    @rule(data=BYTES)
    def write_to_other_names(self, data: bytes) -> None:
        for other in self.outside.glob("other-*"):
            if not other.is_symlink() and other.is_file():
                other.write_bytes(data)

    @rule(path=PATHS)
    def open_for_writing(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.writers.append(os.open(self.at(path), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK))

    @rule(path=PATHS)
    def make_unnamed(self, path: str) -> None:
        with contextlib.suppress(OSError):
            writer = os.open(self.at(path).parent, os.O_TMPFILE | os.O_RDWR, 0o600)
            self.writers.append(writer)
            ctypes.CDLL(None).linkat(-100, b"/proc/self/fd/%d" % writer, -100, os.fsencode(self.at(path)), 0x400)

    @rule(data=BYTES)
    def write_to_open_files(self, data: bytes) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                os.pwrite(writer, data, 0)

    @rule()
    def close_open_files(self) -> None:
        while self.writers:
            os.close(self.writers.pop())

    @rule()
    def map_open_files(self) -> None:
        while self.writers:
            writer = self.writers.pop()
            with contextlib.suppress(OSError, ValueError):
                self.maps.append(mmap.mmap(writer, 1))
            os.close(writer)

    @rule(data=BYTES)
    def write_to_memory(self, data: bytes) -> None:
        for mapped in self.maps:
            if mapped.size() > 0:  # otherwise it was cut off, and writing there is a SIGBUS
                mapped[0] = data[0]

    @rule()
    def unmap(self) -> None:
        while self.maps:
            self.maps.pop().close()

    @rule()
    def read_everything(self) -> None:
        for path in self.workspace.rglob("*"):
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    @rule()
    def keep(self) -> None:
        snapshot = self.watched.take()
        self.kept.append((snapshot, held(snapshot.root)))

    @rule()
    def take_another_kind(self) -> None:
        self.watched.store.drop(self.watched.snapshots.take())

    @rule()
    def restore(self) -> None:
        if self.kept and not self.maps:
            with contextlib.suppress(Exception):
                self.watched.snapshots.restore(self.kept[-1][0])

    @rule()
    def nothing_kept_has_changed(self) -> None:
        for snapshot, was in self.kept:
            assert held(snapshot.root) == was

    @rule()
    def give_up_half_way(self) -> None:
        asked = 0

        def stopped() -> bool:
            nonlocal asked
            asked += 1
            return asked > 2

        if (taken := self.watched.snapshots.take(LIMITS, stopped, lambda: False)) is not None:
            self.watched.store.drop(taken)


def tells_changes_apart(path: Path) -> bool:
    """Whether two changes have different times, however quickly one follows the other."""
    times = set()
    for _ in range(20):
        path.write_bytes(b"1")
        times.add(path.stat().st_ctime_ns)
    return len(times) == 20


@pytest.mark.slow
def test_what_is_found_is_what_is_there() -> None:
    run_state_machine_as_test(History, settings=settings(max_examples=400, stateful_step_count=40, deadline=None))


def test_what_is_found_is_what_is_there_in_short_histories() -> None:
    run_state_machine_as_test(History, settings=settings(max_examples=12, stateful_step_count=15, deadline=None))
