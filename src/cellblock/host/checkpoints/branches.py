"""The directories of branches, inside the workspace of the forked session.

The location has two reasons: a branch shares that session's sandbox, which can write nowhere else, and files in one file
system can share blocks. Each directory is recorded where no session can write, so that the next host removes the directories
of a killed host.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import CheckpointError, SnapshotError
from cellblock.host.files.info import BRANCHES
from cellblock.host.place import NO_PLACES, Places, SessionPlace
from cellblock.launch import leftovers

if TYPE_CHECKING:
    from cellblock.host.snapshots import Snapshot

_log = logging.getLogger("cellblock.sessions")

_RECORD = "branch.json"


def check_whole(snapshot: Snapshot, what: str) -> None:
    """Check that nothing was too large for a snapshot.

    Raises:
        SnapshotError: Files are missing. The message names some of them, and ends with `what`.
    """
    if not snapshot.whole:
        named = ", ".join(f"{path or 'the workspace'} ({reason})" for path, reason in snapshot.left_out[:3])
        raise SnapshotError(f"the files of the workspace cannot be {what}. They are too large or too many: {named}")


class BranchDirectory(SessionPlace):
    """The directory of a branch's files, reference-counted by its sessions. The last one removes it.

    Attributes:
        root: The workspace that contains it, which is the sandbox's workspace.
        files: The directory.
    """

    def __init__(self, root: str, number: str, places: Places = NO_PLACES) -> None:
        """Set the paths without creating anything. `number` is the unique part of the names."""
        super().__init__(str(_records() / number), places)
        self.root = root
        self.number = number
        self.files = os.path.join(root, f"{BRANCHES}{number}")
        self._users = 0
        self._removed = False

    @classmethod
    def new(cls, root: str) -> BranchDirectory:
        """Return a new path that does not exist."""
        return cls(os.path.realpath(root), secrets.token_hex(8))

    def enter(self, places: Places) -> None:
        """Add a session to the directory. The first one creates it.

        Raises:
            CheckpointError: The directory was removed.
            SnapshotError: The directory cannot be created.
        """
        if self._removed:
            raise CheckpointError("the branch of the checkpoint is closed, and its files were removed")
        self._users += 1
        if not self.made:
            self._places = places
            try:
                _records().mkdir(mode=0o700, parents=True, exist_ok=True)
                self.make()
            except OSError as error:
                raise SnapshotError(f"cannot make a directory for a branch in {self.root}: {error.strerror}") from error

    def make(self) -> None:
        """Create the directory if it is missing. It is recorded both before and after, in case the host is killed between."""
        if self.made:
            return
        super().make()
        self._write(None)
        os.mkdir(self.files, 0o700)
        above, info = os.stat(self.root), os.lstat(self.files)
        self._write((info.st_dev, info.st_ino))
        with contextlib.suppress(OSError):  # only root can change the owner
            os.chown(self.files, above.st_uid, above.st_gid, follow_symlinks=False)

    def _write(self, identity: tuple[int, int] | None) -> None:
        new = Path(self.path, "new")
        new.write_text(json.dumps({"path": self.files, "identity": identity}))
        os.replace(new, Path(self.path, _RECORD))

    async def leave(self) -> None:
        """Remove a session from the directory. The last one deletes it."""
        self._users -= 1
        if self._users <= 0:
            self._removed = True
            await self.remove()

    def delete(self, held: int | None) -> None:
        """Delete the recorded directory and the record."""
        _remove(self.path)
        super().delete(held)


def branch_recorded_at(path: str, places: Places) -> BranchDirectory | None:
    """Return the branch directory whose record has this path; None if the path is no such record."""
    return BranchDirectory("", Path(path).name, places) if Path(path).parent == _records() else None


def is_branch(directory: str) -> bool:
    """Return whether a directory is, or was, a branch's."""
    return os.path.basename(directory).startswith(BRANCHES)


def _records() -> Path:
    return config.state_directory() / "branches"


def remove_branches_of_the_dead() -> None:
    """Remove the branch directories of killed hosts."""
    with contextlib.suppress(OSError):  # no branches exist
        for name in os.listdir(_records()):
            record = str(_records() / name)
            leftovers.remove_abandoned(record, lambda record=record: _remove(record))  # type: ignore[misc]


def _remove(record: str) -> None:
    """Remove the recorded directory, after an identity check: the session's code can move other directories there."""
    try:
        said = json.loads(Path(record, _RECORD).read_text())
    except (OSError, ValueError):
        return  # killed before recording: nothing was created
    from cellblock.host.snapshots.journal import Journal  # rarely used

    path, identity = said["path"], said["identity"]
    try:
        if identity is None:
            os.rmdir(path)  # killed before recording the identity: it is empty
        else:
            leftovers.remove_place(path, tuple(identity))
        Journal(config.state_directory() / "restores", Path(path)).forget()  # a killed host was restoring files there
    except OSError as error:
        _log.info("%s cannot be removed: %s", path, error)
