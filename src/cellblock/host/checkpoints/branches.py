"""The directories that branches have for their files, in the workspace of the session that they come from.

There, because a branch shares that session's sandbox, which can write nowhere else, and because files of one file system can
share their blocks. Each is recorded where no session can write: what a killed host has left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellblock import config, leftovers
from cellblock.errors import CheckpointError, InvalidInputError, SnapshotError
from cellblock.host.place import Places, SessionPlace

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.model.checkpoints import FilesMode
    from cellblock.snapshots import Snapshot

_log = logging.getLogger("cellblock.sessions")
PREFIX = ".cellblock-branch-"
"""What the names of these directories begin with. Snapshots leave them out."""

_RECORD = "branch.json"


class Beginning(NamedTuple):
    """What a session begins with that is made of a checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        files: ``copy`` if the session gets a directory of its own with the checkpoint's files; ``shared`` if it works where
            the checkpoint's session did.
        seed: What its random generators begin with; None: something new. If they go on, those without a state begin with it.
        same_random_state: Whether they go on where those of the checkpoint were.
    """

    checkpoint: Checkpoint
    files: FilesMode = "shared"
    seed: int | None = None
    same_random_state: bool = False

    def directory(self) -> BranchDirectory | None:
        """Return the directory for the session's files, if that is not the one that its options name.

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
    """The files of a branch, and of all sessions that share them. The last one removes them.

    Attributes:
        root: The workspace that contains it: that of the sandbox.
        files: The directory.
    """

    def __init__(self, root: str, number: str, places: Places | None = None) -> None:
        """Take note of it, and make nothing yet.

        Args:
            root: The workspace.
            number: What the names begin with.
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

    def enter(self, places: Places | None) -> None:
        """Take note of a session that works there. The first one makes it.

        Args:
            places: As for `SessionPlace`.

        Raises:
            CheckpointError: It is gone.
            SnapshotError: It cannot be made.
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
        """Make it, if it is not there. Before and after, it is written down what is made."""
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
        """Take note that a session works there no longer. After the last one, it is removed."""
        self._users -= 1
        if self._users <= 0:
            self._removed = True
            await self.remove()

    def clean(self) -> None:
        """Remove what the record names."""
        _remove(self.path)


def is_branch(directory: str) -> bool:
    """Whether a directory is, or was, one of a branch."""
    return os.path.basename(directory).startswith(PREFIX)


def _records() -> Path:
    return config.state_directory() / "branches"


def remove_branches_of_the_dead() -> None:
    """Remove the directories of branches whose host was killed."""
    with contextlib.suppress(OSError):  # there are none
        for name in os.listdir(_records()):
            record = str(_records() / name)
            leftovers.remove_abandoned(record, lambda record=record: _remove(record))  # type: ignore[misc]


def _forget_restore(path: str) -> None:
    """Remove what a killed host has written down about files that it was copying there."""
    from cellblock.snapshots.journal import Journal

    Journal(config.state_directory() / "restores", Path(path)).forget()


def _remove(record: str) -> None:
    """Remove the directory that a record names, if it is the one that was made: code of the session can move things there."""
    try:
        said = json.loads(Path(record, _RECORD).read_text())
    except (OSError, ValueError):
        return  # killed before it was written down: nothing was made
    path, identity = said["path"], said["identity"]
    try:
        if identity is None:
            os.rmdir(path)  # killed before this was written down: it is empty
        else:
            leftovers.remove_place(path, tuple(identity))
        _forget_restore(path)
    except OSError as error:
        _log.info("%s cannot be removed: %s", path, error)
