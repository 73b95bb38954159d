"""Changes a workspace as a plan says: all of it or nothing, even if the process is killed meanwhile.

Everything new is first made in a staging folder in the workspace, and everything that is to go is moved there, so that each
step is one rename. The journal has the steps before the first is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence

from cellblock import leftovers
from cellblock.errors import SnapshotError
from cellblock.snapshots import content
from cellblock.snapshots.beneath import CHANGED, create_file, open_folder, open_parent, set_mode, status
from cellblock.snapshots.file import File, Link, Owner, facts
from cellblock.snapshots.journal import Journal
from cellblock.snapshots.plan import Plan, Step
from cellblock.snapshots.store import Store

_LOG = logging.getLogger("cellblock.snapshots")
_PASSES = 3  # somebody may still write there


class UnsettledError(Exception):
    """Something in the workspace was changed since the plan was made. Nothing was done."""


def restore(top: int, plan: Plan, store: Store, journal: Journal, then: Callable[[], object]) -> None:
    """Carry out a plan.

    Args:
        top: The workspace, opened.
        plan: The plan.
        store: Where the content of files is.
        journal: The journal, held.
        then: Called when all is in its place. If it fails, everything is taken back.

    Raises:
        UnsettledError: The workspace has changed since; it is as if this had not been called.
        SnapshotError: Something failed. Nothing was done either, unless the message says more.
        OSError: Likewise.
    """
    name = f".cellblock-restore-{secrets.token_hex(8)}"
    info = os.fstat(top)
    journal.write(name, info, ())
    staging = _make_staging(top, name, journal)
    try:
        for number, entry in plan.staged.items():
            _stage(staging, number, entry, store)
        steps = [*_with_identities(top, plan.steps)]
        journal.write(name, info, steps)
        _apply(top, staging, steps)
        _complete(top, staging, steps, then)
    except _HalfDoneError:
        os.close(staging)
        raise
    except BaseException:  # whatever stopped it: remove what was staged
        _finish(top, name, staging, journal)
        raise
    _finish(top, name, staging, journal)


def recover(top: int, journal: Journal) -> bool:
    """Finish what a process has begun that was killed. What was changed since stays as it is.

    Args:
        top: The workspace, opened.
        journal: The journal, held.

    Returns:
        Whether there was anything to finish.

    Raises:
        OSError: It cannot be finished. The next call tries again.
    """
    found = journal.read(os.fstat(top))
    if found is None:
        journal.clear()
        return False
    name, steps = found
    try:
        staging = open_folder(name, top)
    except OSError as error:
        if error.errno not in CHANGED:
            raise
        journal.clear()  # it was removed last, or not made yet
        return False
    try:
        for step in steps:
            try:
                _do(top, staging, step)
            except UnsettledError:
                continue
            except OSError as error:
                if error.errno not in CHANGED:
                    raise
    except BaseException:  # also an interrupt: nobody else closes it
        os.close(staging)
        raise
    _finish(top, name, staging, journal)
    return bool(steps)


def _make_staging(top: int, name: str, journal: Journal) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=top)
        return open_folder(name, top)
    except BaseException:  # also an interrupt: nothing was done yet
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)
        journal.clear()
        raise


class _HalfDoneError(SnapshotError):
    """Neither all nor nothing. The journal stays."""


def _stage(staging: int, number: int, entry: File | Link, store: Store) -> None:
    name = f"new-{number}"
    if isinstance(entry, Link):
        os.symlink(entry.target, name, dir_fd=staging)
        _set_owner(name, staging, entry.owner)
        return
    file = facts(entry)
    source = store.open(file.digest)
    try:
        target = create_file(name, staging)
        try:
            content.copy_out(source, target)
            with contextlib.suppress(OSError):
                os.fchown(target, *file.owner)
            os.fchmod(target, file.mode)
            os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _set_owner(name: str, directory: int, owner: Owner) -> None:
    with contextlib.suppress(OSError):  # only root gives files away; a step is done as a whole, whether or not this works
        os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)


def _with_identities(top: int, steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        if step.do != "remove":
            yield step
            continue
        try:
            with open_parent(top, step.path) as (parent, name):
                yield step._replace(was=_identity(os.lstat(name, dir_fd=parent)))
        except OSError as error:
            if error.errno in CHANGED:
                raise UnsettledError from error
            raise


def _identity(info: os.stat_result) -> tuple[int, ...]:
    """Return what identifies a file or folder. The times of a folder are left out: they change with its content."""
    folder = stat.S_ISDIR(info.st_mode)
    return (info.st_ino,) if folder else (info.st_ino, info.st_mtime_ns, info.st_size)


def _apply(top: int, staging: int, steps: Sequence[Step]) -> None:
    done = 0
    try:
        for step in steps:
            _do(top, staging, step)
            done += 1
    except BaseException as error:
        _take_back(top, staging, steps[:done])
        if isinstance(error, OSError) and error.errno in CHANGED:
            raise UnsettledError from error
        raise


def _complete(top: int, staging: int, steps: Sequence[Step], then: Callable[[], object]) -> None:
    try:
        then()
    except BaseException:  # whatever it is, nobody wants these files now
        _take_back(top, staging, steps)
        raise


def _take_back(top: int, staging: int, steps: Sequence[Step]) -> None:
    try:
        for step in reversed(steps):
            _undo(top, staging, step)
    except (OSError, UnsettledError) as error:
        raise _HalfDoneError(
            "only some files were restored, because something else changed the workspace meanwhile: stop what writes to it. "
            "The next session that starts in this workspace finishes the restore"
        ) from error


def _do(top: int, staging: int, step: Step) -> None:
    with open_parent(top, step.path) as (parent, name):
        if step.do == "mode":
            set_mode(name, parent, step.mode)
        elif step.do == "make":
            os.mkdir(name, 0o700, dir_fd=parent)
            _set_owner(name, parent, step.owner)
        elif step.do == "remove":
            info = status(name, parent)
            if info is None or _identity(info) != step.was:
                raise UnsettledError
            os.rename(name, f"old-{step.number}", src_dir_fd=parent, dst_dir_fd=staging)
        elif status(name, parent) is None:
            os.rename(f"new-{step.number}", name, src_dir_fd=staging, dst_dir_fd=parent)
        else:
            raise UnsettledError


def _undo(top: int, staging: int, step: Step) -> None:
    with open_parent(top, step.path) as (parent, name):
        if step.do == "mode":
            set_mode(name, parent, step.before)
        elif step.do == "make":
            os.rmdir(name, dir_fd=parent)
        elif step.do == "place":
            os.rename(name, f"new-{step.number}", src_dir_fd=parent, dst_dir_fd=staging)
        elif status(name, parent) is None:
            os.rename(f"old-{step.number}", name, src_dir_fd=staging, dst_dir_fd=parent)
        else:
            raise UnsettledError


def _finish(top: int, name: str, staging: int, journal: Journal) -> None:
    """Remove the staging folder, and then the journal. What is done is done, whether or not this works."""
    try:
        try:
            journal.write(name, os.fstat(top), ())
        except OSError:
            journal.clear()  # the steps must not be done again
        for _ in range(_PASSES):
            try:
                leftovers.empty(staging)
                os.rmdir(name, dir_fd=top)
            except FileNotFoundError:
                pass  # the code in the session has moved it: it is its own now
            except OSError:
                continue
            journal.clear()
            return
        _LOG.warning("%s in a workspace cannot be removed; the next session there tries again", name)
    except OSError as error:
        _LOG.warning("the record of a restore cannot be removed: %s", error)
    finally:
        os.close(staging)
