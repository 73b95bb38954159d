"""Applies a plan to a workspace atomically, even if the process is killed meanwhile.

Everything new is first created in a staging folder in the workspace. Everything to be removed is moved there. So each step is
one rename. The journal lists the steps before the first one is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Self

from cellblock.common.open_flags import held
from cellblock.common.whole_file import sync, sync_file
from cellblock.errors import SnapshotError
from cellblock.host.snapshots import content
from cellblock.host.snapshots.beneath import (
    CHANGED,
    create_file,
    made_folders,
    open_file,
    open_folder,
    open_parent,
    rename_to_free_name,
    set_mode,
    status,
)
from cellblock.host.snapshots.entries import Trashed
from cellblock.host.snapshots.file import File, Link, Owner, facts
from cellblock.host.snapshots.ignored import OURS
from cellblock.host.snapshots.journal import Journal
from cellblock.host.snapshots.plan import Plan, Step
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.trash import Entry
from cellblock.launch import leftovers
from cellblock.wire.copies import REPLACED

_LOG = logging.getLogger("cellblock.snapshots")
_PASSES = 3  # code may still write there
_AT_ONCE = 8
"""Maximum number of threads that wait for the disk at once."""
_RESCUED = f"{OURS}before-restore-"


class UnsettledError(Exception):
    """The workspace changed after the plan was made. Nothing was done."""


class Rescued:
    """Files that could not be moved to the trash, and are saved in a folder of the workspace instead.

    Attributes:
        files: The original and the new path of each file, in the workspace.
    """

    def __init__(self, top: int) -> None:
        """Start without files."""
        self._top = top
        self.files: dict[str, str] = {}

    def add(self, staging: str, old: Sequence[Step]) -> None:
        """Save a staging folder that contains only files that could not be moved, with the steps that moved them there."""
        name = staging.replace(REPLACED, _RESCUED, 1)
        try:
            os.rename(staging, name, src_dir_fd=self._top, dst_dir_fd=self._top)
        except OSError:
            name = staging
        with held(open_folder(name, self._top)) as folder:
            self.files |= {step.path: f"{name}/{_lay_out(folder, step)}" for step in old}


def _lay_out(folder: int, step: Step) -> str:
    """Move a file from its number to its path in a folder. Return its new path, or its number if that fails."""
    *above, name = step.path.split("/")
    try:
        with made_folders(folder, above) as parent:
            rename_to_free_name(folder, _old(step), parent, name)
    except OSError:
        return _old(step)
    return step.path


def restore(
    top: int,
    plan: Plan,
    store: Store,
    journal: Journal,
    then: Callable[[], object],
    rescued: Rescued,
    entry: Entry,
    source: Entry | None = None,
    until: int | None = None,
) -> None:
    """Carry out a plan.

    Args:
        top: The open workspace.
        plan: The plan.
        store: The store with the contents of files.
        journal: The locked journal.
        then: Called when everything is in place. If it fails, everything is rolled back.
        rescued: Takes what the trash does not.
        entry: The trash entry for replaced and removed files, and for files that cannot be restored.
        source: The entry with the plan's files that are in the trash.
        until: As for `Journal.write`.

    Raises:
        UnsettledError: The workspace changed after the plan was made. Nothing was done.
        SnapshotError: A step failed. Nothing was done, unless the message says otherwise.
        OSError: Likewise.
    """
    name = f"{REPLACED}{secrets.token_hex(8)}"
    info = os.fstat(top)
    journal.write_without_steps(name, info)
    left: list[Step] = []
    with held(_make_staging(top, name, journal)) as staging:
        try:
            for number, content_of in plan.staged.items():
                _stage(staging, number, content_of, store, source)
            steps = [*_with_identities(top, staging, plan.steps)]
            journal.write(name, info, steps, entry.described, until)
            _sync_staged(staging, plan.staged, journal)
            journal.commit()  # everything is on the disk: the next process can finish the restore from here on
            _apply(top, staging, steps, then, left)
        except _HalfDoneError:
            raise
        except BaseException:  # of any kind: remove the staged files
            _finish(top, name, staging, journal, left, rescued, entry)
            raise
        _finish(top, name, staging, journal, [step for step in steps if step.do == "remove"], rescued, entry)


def recover(top: int, journal: Journal, kernel: int | None = None) -> bool:
    """Finish the restore of a killed process, or roll it back. Later changes are kept.

    `kernel` is the number of the kernel of the session that began the restore, if it is known.

    Returns:
        Whether there was a restore to finish.

    Raises:
        OSError: It cannot be finished. The next call tries again.
    """
    found = journal.read(os.fstat(top))
    if found is None:
        journal.clear()
        return False
    name, steps, entry, until = found
    try:
        staging = open_folder(name, top)
    except OSError as error:
        if error.errno not in CHANGED:
            raise
        journal.clear()  # removed last, or not yet created
        return False
    back = until is not None and kernel in (None, until)
    with held(staging):
        for step in reversed(steps) if back else steps:
            try:
                (_undo if back else _do)(top, staging, step)
            except UnsettledError:
                continue
            except OSError as error:
                if error.errno not in CHANGED:
                    raise
        there = {*os.listdir(staging)}
        left = [step for step in steps if step.do == "remove" and _old(step) in there]
        _finish(top, name, staging, journal, left, Rescued(top), entry)
    return bool(steps)


def _make_staging(top: int, name: str, journal: Journal) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=top)
        return open_folder(name, top)
    except BaseException:  # includes interrupts: nothing was done yet
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)
        journal.clear()
        raise


class _HalfDoneError(SnapshotError):
    """The restore is incomplete, because the system refused to undo a step. The journal is kept."""


def _remove_staged(staging: int) -> None:
    for name in os.listdir(staging):
        if name.startswith("new-"):
            with contextlib.suppress(OSError):  # a folder: it is a copy
                os.unlink(name, dir_fd=staging)


def _stage(staging: int, number: int, entry: File | Link | Trashed, store: Store, trashed: Entry | None) -> None:
    name = f"new-{number}"
    if isinstance(entry, Trashed):
        assert trashed is not None
        trashed.bring(entry.path, staging, name)
        return
    if isinstance(entry, Link):
        os.symlink(entry.target, name, dir_fd=staging)
        _set_owner(name, staging, entry.owner)
        return
    file = facts(entry)
    with held(store.open(file.digest)) as source, held(create_file(name, staging)) as target:
        content.copy_out(source, target)
        with contextlib.suppress(OSError):
            os.fchown(target, *file.owner)
        os.fchmod(target, file.mode)
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
        if hasattr(os, "posix_fadvise"):  # starts writing it, so that `_sync_staged` waits for all files together
            os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_staged(staging: int, staged: Mapping[int, File | Link | Trashed], journal: Journal) -> None:
    """Wait until all staged files and the new journal are on the disk: a rename can get there before a file's content."""

    def sync_one(number: int) -> None:
        with held(open_file(f"new-{number}", staging)) as target:
            sync(target)

    with _Syncing() as syncing:
        for number, content_of in staged.items():
            if isinstance(content_of, File):
                syncing.begin(partial(sync_one, number))
        syncing.begin(partial(sync, staging))
        syncing.begin(partial(sync_file, journal.new))


class _Syncing:
    """Waits for the disk several times at once: file systems write what is waited for together, in a few milliseconds."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._begun: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def begin(self, wait: Callable[[], None]) -> None:
        """Begin to wait, or wait now if no thread can be started."""
        try:
            self._begun.append(self._pool.submit(wait))
        except RuntimeError:  # the user's limit of processes is reached, or Python is about to end
            wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the rest, and raise its first error, unless something failed already."""
        self._pool.shutdown()
        for one in self._begun if kind is None else ():
            one.result()


def _sync_folders(top: int, steps: Sequence[Step], syncing: _Syncing) -> None:
    """Begin to wait until the names that the steps changed are on the disk."""
    for path in {step.path.rpartition("/")[0]: step.path for step in steps}.values():
        syncing.begin(partial(_sync_folder_of, top, path))


def _sync_folder_of(top: int, path: str) -> None:
    try:
        with open_parent(top, path) as (parent, _):
            folder = open_folder(".", parent)
    except OSError:
        return  # a later step removed or closed it
    with held(folder):
        sync(folder)


def _set_owner(name: str, directory: int, owner: Owner) -> None:
    with contextlib.suppress(OSError):  # only root can change owners; this never makes a step fail
        os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)


def _with_identities(top: int, staging: int, steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        if step.do == "place":
            yield step._replace(was=_identity(os.lstat(_new(step), dir_fd=staging)))
        elif step.do == "remove":
            try:
                with open_parent(top, step.path) as (parent, name):
                    yield step._replace(was=_identity(os.lstat(name, dir_fd=parent)))
            except OSError as error:
                if error.errno in CHANGED:
                    raise UnsettledError from error
                raise
        else:
            yield step


def _identity(info: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file or folder. It excludes a folder's times, which change with the content."""
    folder = stat.S_ISDIR(info.st_mode)
    return (info.st_ino,) if folder else (info.st_ino, info.st_mtime_ns, info.st_size)


def _apply(top: int, staging: int, steps: Sequence[Step], then: Callable[[], object], left: list[Step]) -> None:
    """Do the steps and call `then`, or undo the steps that were done.

    `left` collects the steps whose removed files could not be restored.
    """
    done = 0
    try:
        for step in steps:
            _do(top, staging, step)
            done += 1
        with _Syncing() as syncing:
            _sync_folders(top, steps, syncing)
            then()
    except BaseException as error:  # of any kind: the restore failed
        left += _take_back(top, staging, steps[:done])
        if done < len(steps) and isinstance(error, OSError) and error.errno in CHANGED:
            raise UnsettledError from error
        raise


def _take_back(top: int, staging: int, steps: Sequence[Step]) -> Iterator[Step]:
    """Undo steps, but keep later changes by others: written files stay, and removed files stay removed.

    Yields:
        Steps whose removed files cannot be restored.
    """
    theirs = set()
    for step in reversed(steps):
        try:
            if step.path in theirs:
                raise UnsettledError
            _undo(top, staging, step)
        except OSError as error:
            if error.errno not in CHANGED:
                raise _HalfDoneError(
                    f"only some files were restored, because the system refused to undo a step ({error}). The next session "
                    "in this workspace finishes the restore"
                ) from error
        except UnsettledError:
            pass
        else:
            continue
        theirs.add(step.path)
        if step.do == "remove":
            yield step


def _do(top: int, staging: int, step: Step) -> None:
    with open_parent(top, step.path) as (parent, name):
        if step.do == "mode":
            set_mode(name, parent, step.mode)
        elif step.do == "make":
            os.mkdir(name, 0o700, dir_fd=parent)
            _set_owner(name, parent, step.owner)
        elif step.do == "remove":
            _move(parent, name, staging, _old(step), step.was)
        else:
            rename_to_free_name(staging, _new(step), parent, name)


def _undo(top: int, staging: int, step: Step) -> None:
    with open_parent(top, step.path) as (parent, name):
        if step.do == "mode":
            set_mode(name, parent, step.before)
        elif step.do == "make":
            os.rmdir(name, dir_fd=parent)
        elif step.do == "place":
            _move(parent, name, staging, _new(step), step.was)
        else:
            rename_to_free_name(staging, _old(step), parent, name)


def _move(parent: int, name: str, staging: int, to: str, was: tuple[int, ...]) -> None:
    """Move something to the staging folder, if it is unchanged."""
    info = status(name, parent)
    if info is None or _identity(info) != was:
        raise UnsettledError
    os.rename(name, to, src_dir_fd=parent, dst_dir_fd=staging)
    expected = False
    try:
        expected = _identity(os.lstat(to, dir_fd=staging)) == was
    finally:
        if not expected:  # something else was created there meanwhile
            rename_to_free_name(staging, to, parent, name)
    if not expected:
        raise UnsettledError


def _new(step: Step) -> str:
    """Return the staging name of something to be placed."""
    return f"new-{step.number}"


def _old(step: Step) -> str:
    """Return the staging name of something that was moved away."""
    return f"old-{step.number}"


def _finish(
    top: int, name: str, staging: int, journal: Journal, left: Sequence[Step], rescued: Rescued, entry: Entry | None
) -> None:
    """Move removed files to the trash, then remove the staging folder, then the journal. The restore counts as done anyway.

    `left` are the steps that moved something away. `rescued` takes what the trash does not. Without a trash entry, an older
    version began the restore.
    """
    try:
        if entry is not None:
            left = [step for step in left if not entry.take(staging, _old(step), step.path)]
        if left:
            journal.clear()
            _remove_staged(staging)
            rescued.add(name, left)
        else:
            _remove(top, name, staging, journal)
    except OSError as error:
        _LOG.warning("the record of a restore cannot be removed: %s", error)


def _remove(top: int, name: str, staging: int, journal: Journal) -> None:
    try:
        if not journal.is_on(os.fstat(top).st_dev):
            sync(staging)  # before the journal forgets the steps: what was moved to the trash must have left this folder
        journal.write_without_steps(name, os.fstat(top))
    except OSError:
        journal.clear()  # the steps must not be done again
    for _ in range(_PASSES):
        try:
            leftovers.empty(staging)
            os.rmdir(name, dir_fd=top)
        except FileNotFoundError:
            pass  # the session's code has moved it, and owns it now
        except OSError:
            continue
        journal.clear()
        return
    _LOG.warning("%s in a workspace cannot be removed; the next session there tries again", name)
