"""References that keep git from pruning the commits that clones began with.

Each is recorded in the state directory before it is made, so that a later host removes pins of killed hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from pathlib import Path

from cellblock.common import config
from cellblock.errors import CellblockError, StateError, StoreError
from cellblock.host.clones.project import Project
from cellblock.host.files.steps import in_thread
from cellblock.host.place import Places

_log = logging.getLogger("cellblock.sessions")


class Pin:
    """The reference of one clone. Its record is locked while a session, or a custodian, has the clone.

    Attributes:
        ref: The reference.
        number: The unique part of its name.
    """

    def __init__(self, project: Project, place: str, places: Places) -> None:
        """Take over the lock of an earlier host, if it left one.

        Args:
            project: The user's repository.
            place: The path of the session's directories.
            places: Preserves the lock for the next process.
        """
        self._project, self._places = project, places
        self.number = os.path.basename(place).rpartition("-packages-")[2]
        self.ref = f"refs/cellblock/{self.number}"
        self._lock = f"{place}-pin"
        self._record = _records() / self.number
        self._held = places.take_place(self._lock)
        self._base = ""

    def base(self) -> str:
        """Return the commit that the clone began with. Blocks.

        Raises:
            StateError: It is unknown.
        """
        if not self._base:
            try:
                _, _, ref, *base = map(str, json.loads(self._record.read_bytes()))
            except (OSError, ValueError) as error:
                raise StateError(
                    f"the first commit of the clone is unknown: {self._record} cannot be read: {error}"
                ) from error
            self._base = base[0] if base else self._project.pinned(ref)  # an earlier version recorded the reference only
        return self._base

    async def set(self, commit: str) -> None:
        """Record the commit, and make the reference, if the repository has the commit.

        Raises:
            StoreError: It cannot be recorded.
            StateError: git refuses it.
        """
        new = self._held is None
        try:
            await in_thread(self._write, commit)
        except OSError as error:
            raise StoreError(f"{self._record}, a record of a clone, cannot be written: {error.strerror}") from error
        if new:
            assert self._held is not None
            self._places.place_made(self._lock, self._held)
        self._base = commit
        if await in_thread(self._project.has, commit):
            await in_thread(self._project.pin, self.ref, commit)
        else:
            await in_thread(_unpin, self._project, self.ref)

    def _write(self, commit: str) -> None:
        data = json.dumps([self._project.path, self._project.repository, self.ref, commit]).encode()
        if self._held is not None:
            os.pwrite(self._held, data, 0)
            os.ftruncate(self._held, len(data))
            return
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A name that no sweep removes, until it is locked.
        new = self._record.with_suffix(".new")
        held = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            os.write(held, data)
            os.replace(new, self._record)
        except OSError:
            os.close(held)
            raise
        self._held = held

    async def remove(self) -> None:
        """Remove the reference and its record. Idempotent."""
        await in_thread(self._remove)
        if self._held is not None:
            held, self._held = self._held, None
            self._places.place_gone(self._lock)
            os.close(held)

    def _remove(self) -> None:
        _unpin(self._project, self.ref)
        self._record.unlink(missing_ok=True)


def remove_pins_of_the_dead() -> None:
    """Remove the references that killed hosts left in repositories of the user."""
    for record in _records().glob("*-*[0-9]"):
        with contextlib.suppress(OSError):  # it is in use, or another host removes it
            _remove_abandoned(record)


def _remove_abandoned(record: Path) -> None:
    with record.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            path, repository, ref, *_ = map(str, json.loads(file.read()))
        except ValueError as error:
            _log.info("%s is not a record of a clone: %s", record, error)
        else:
            _unpin(Project(path, repository), ref)
        record.unlink()


def _unpin(project: Project, ref: str) -> None:
    if not project.repository:
        return
    try:
        project.unpin(ref)
    except CellblockError as error:  # the user has removed the project
        _log.info("%s cannot be removed from %s: %s", ref, project.path, error)


def _records() -> Path:
    return config.state_directory() / "clones"
