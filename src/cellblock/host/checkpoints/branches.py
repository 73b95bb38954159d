"""The directories for the files of branches, inside the workspace of the session that was forked.

A branch shares that session's sandbox, which can write nowhere else, and files of one file system can share their blocks. Each
directory is recorded where no session can write, so that the next host removes what a killed host has left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellblock.common import config
from cellblock.errors import CheckpointError, InvalidInputError, SnapshotError
from cellblock.host.place import NO_PLACES, Places, SessionPlace
from cellblock.launch import leftovers

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.snapshots import Snapshot
    from cellblock.model.checkpoints import FilesMode

_log = logging.getLogger("cellblock.sessions")
PREFIX = ".cellblock-branch-"
"""Prefix of these directories' names. Snapshots leave them out."""

_RECORD = "branch.json"


class Beginning(NamedTuple):
    """How a session begins that is made from a checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        files: ``copy`` if the session gets a directory of its own with the checkpoint's files; ``shared`` if it works in the
            directory of the checkpoint's session.
        seed: Seed of the random generators; None: a new one. If they keep their state, it seeds those without one.
        same_random_state: Whether they continue from where those of the checkpoint were.
    """

    checkpoint: Checkpoint
    files: FilesMode = "shared"
    seed: int | None = None
    same_random_state: bool = False

    def directory(self) -> BranchDirectory | None:
        """Return the directory for the session's files, if it is not the one in its options.

        Raises:
            InvalidInputError: The checkpoint holds no files.
            SnapshotError: It does not hold all of them.
        """
        if self.files != "copy":
            return self.checkpoint.moment.branch
        if self.checkpoint.snapshot is None:
            raise InvalidInputError("files='copy' needs a checkpoint that was made with files='copy'")
        check_whole(self.checkpoint.snapshot, "copied for a branch: fork with files='shared', or move some elsewhere")
        return BranchDirectory.new(self.checkpoint.moment.root)


def check_whole(snapshot: Snapshot, what: str) -> None:
    """Check that nothing was too large for a snapshot.

    Raises:
        SnapshotError: Something was. The message names some of it, and ends with `what`.
    """
    if not snapshot.whole:
        named = ", ".join(f"{path or 'the workspace'} ({reason})" for path, reason in snapshot.left_out[:3])
        raise SnapshotError(f"the files of the workspace cannot be {what}. They are too large or too many: {named}")


class BranchDirectory(SessionPlace):
    """The directory of a branch's files, shared by all sessions that work there. The last one removes it.

    Attributes:
        root: The workspace that contains it: the sandbox's workspace.
        files: The directory.
    """

    def __init__(self, root: str, number: str, places: Places = NO_PLACES) -> None:
        """Set the paths; nothing is created yet.

        Args:
            root: The workspace.
            number: The unique part of the names.
            places: As for `SessionPlace`.
        """
        super().__init__(str(_records() / number), places)
        self.root = root
        self.number = number
        self.files = os.path.join(root, f"{PREFIX}{number}")
        self._users = 0
        self._removed = False

    @classmethod
    def new(cls, root: str) -> BranchDirectory:
        """Return one that does not exist yet."""
        return cls(os.path.realpath(root), secrets.token_hex(8))

    def enter(self, places: Places) -> None:
        """Add a session that works there. The first one creates the directory.

        Args:
            places: As for `SessionPlace`.

        Raises:
            CheckpointError: The directory was removed.
            SnapshotError: It cannot be created.
        """
        if self._removed:
            raise CheckpointError("the branch that the checkpoint was made in is closed, and its files are gone")
        self._users += 1
        if not self.made:
            self._places = places
            try:
                _records().mkdir(mode=0o700, parents=True, exist_ok=True)
                self.make()
            except OSError as error:
                raise SnapshotError(f"cannot make a directory for a branch in {self.root}: {error.strerror}") from error

    def make(self) -> None:
        """Create it, if it does not exist. It is recorded both before and after its creation."""
        if self.made:
            return
        super().make()
        self._write(None)
        os.mkdir(self.files, 0o700)
        above, info = os.stat(self.root), os.lstat(self.files)
        self._write((info.st_dev, info.st_ino))
        with contextlib.suppress(OSError):  # only root gives directories away
            os.chown(self.files, above.st_uid, above.st_gid, follow_symlinks=False)

    def _write(self, identity: tuple[int, int] | None) -> None:
        new = Path(self.path, "new")
        new.write_text(json.dumps({"path": self.files, "identity": identity}))
        os.replace(new, Path(self.path, _RECORD))

    async def leave(self) -> None:
        """Remove a session that worked there. The last one removes the directory."""
        self._users -= 1
        if self._users <= 0:
            self._removed = True
            await self.remove()

    def clean(self) -> None:
        """Remove the recorded directory."""
        _remove(self.path)


def branch_recorded_at(path: str, places: Places) -> BranchDirectory | None:
    """Return the directory of a branch whose record has this path; None if it is not one."""
    return BranchDirectory("", Path(path).name, places) if Path(path).parent == _records() else None


def is_branch(directory: str) -> bool:
    """Whether a directory is, or was, one of a branch."""
    return os.path.basename(directory).startswith(PREFIX)


def _records() -> Path:
    return config.state_directory() / "branches"


def remove_branches_of_the_dead() -> None:
    """Remove the branch directories of killed hosts."""
    with contextlib.suppress(OSError):  # there are none
        for name in os.listdir(_records()):
            record = str(_records() / name)
            leftovers.remove_abandoned(record, lambda record=record: _remove(record))  # type: ignore[misc]


def _forget_restore(path: str) -> None:
    """Remove a killed host's journal of a restore in that directory."""
    from cellblock.host.snapshots.journal import Journal

    Journal(config.state_directory() / "restores", Path(path)).forget()


def _remove(record: str) -> None:
    """Remove the recorded directory, if it is the one that was created: code of the session can move others there."""
    try:
        said = json.loads(Path(record, _RECORD).read_text())
    except (OSError, ValueError):
        return  # killed before it was recorded: nothing was created
    path, identity = said["path"], said["identity"]
    try:
        if identity is None:
            os.rmdir(path)  # killed before the identity was recorded: it is empty
        else:
            leftovers.remove_place(path, tuple(identity))
        _forget_restore(path)
    except OSError as error:
        _log.info("%s cannot be removed: %s", path, error)
