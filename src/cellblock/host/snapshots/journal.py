"""A journal of workspace changes, from which the next process can finish a restore if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cellblock.common.whole_file import sync_directory, sync_file
from cellblock.errors import SnapshotError
from cellblock.host.snapshots.plan import Step
from cellblock.host.snapshots.trash import Entry


class HeldError(SnapshotError):
    """Another restore of the same workspace is in progress, in this process or another one."""


class Journal:
    """The journal of one workspace. No session can write to it, because it decides which files are moved.

    Attributes:
        new: What `write` writes, and `commit` makes the journal.
    """

    def __init__(self, directory: Path, workspace: Path) -> None:
        """Set the paths without creating anything. The workspace is absolute and without links."""
        self._directory = directory
        self._workspace = str(workspace)
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self._path, self.new, self._lock = (directory / f"{name}.{kind}" for kind in ("json", "new", "lock"))

    @property
    def exists(self) -> bool:
        """Whether the journal has an entry."""
        return self._path.exists()

    def is_on(self, device: int) -> bool:
        """Return whether the journal is on a file system."""
        return os.stat(self._directory).st_dev == device

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the journal's lock for the duration of the context.

        Raises:
            HeldError: Another restore is in progress.
            OSError: The lock cannot be created.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = self._take()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is no longer held, at least
                os.unlink(self._lock)
            os.close(held)

    def _take(self) -> int:
        while True:
            held = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(held), os.lstat(self._lock)):
                    return held
            except FileNotFoundError:
                pass  # removed by its previous holder
            except BaseException as error:
                os.close(held)
                if isinstance(error, BlockingIOError):
                    raise HeldError(
                        f"another program is restoring the files of {self._workspace}: try again when it has finished"
                    ) from None
                raise
            os.close(held)

    def write(
        self,
        staging: str,
        top: os.stat_result,
        steps: Sequence[Step] = (),
        entry: tuple[str, str, dict[str, Any]] | None = None,
        until: int | None = None,
    ) -> None:
        """Write the steps to do to `new`. They count from `commit` on, before which the caller syncs `new`.

        Args:
            staging: The name of the staging folder.
            top: The workspace.
            steps: The steps.
            entry: The trash entry for what they remove or replace (`Entry.described`).
            until: The steps count only if the session has another kernel than the one of this number. By default, always.
        """
        data = {"staging": staging, "top": [top.st_dev, top.st_ino], "steps": steps, "entry": entry, "until": until}
        # Not a `WholeFile`: after a kill, the next process writes to the same name.
        try:
            self.new.write_text(json.dumps(data), encoding="utf-8")
        except BaseException:  # includes interrupts: leave no partial journal
            self.new.unlink(missing_ok=True)
            raise

    def commit(self) -> None:
        """Make `new` the journal, and wait until that is on the disk."""
        os.replace(self.new, self._path)
        sync_directory(self._directory)

    def write_without_steps(self, staging: str, top: os.stat_result) -> None:
        """Record that only the staging folder remains to be removed.

        This waits for the disk only if the workspace is on another file system: on the same one, names get to the disk in the
        order in which they changed.
        """
        self.write(staging, top)
        if self.is_on(top.st_dev):
            os.replace(self.new, self._path)
        else:
            sync_file(self.new)
            self.commit()

    def read(self, top: os.stat_result) -> tuple[str, list[Step], Entry | None, int | None] | None:
        """Return what an earlier process has written, as for `write`; None if missing for this directory."""
        try:
            data = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        if data["top"] != [top.st_dev, top.st_ino]:
            return None
        entry = data.get("entry")
        steps = [Step._make(_tuples(step)) for step in data["steps"]]
        return data["staging"], steps, None if entry is None else Entry.of(entry), data.get("until")

    def clear(self) -> None:
        """Remove the journal's entry."""
        self._path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the journal and its lock, because the workspace was removed and no process holds it."""
        self.clear()
        for left in (self.new, self._lock):
            left.unlink(missing_ok=True)


def _tuples(values: list[object]) -> Iterator[object]:
    return (tuple(value) if isinstance(value, list) else value for value in values)
