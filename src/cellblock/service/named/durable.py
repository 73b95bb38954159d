"""Saves of durable sessions between cells, so that the sessions survive a reboot or move to another machine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.common.threads import run_aside
from cellblock.common.whole_file import WholeFile, sync_directory
from cellblock.errors import CellblockError, CheckpointError
from cellblock.service.named.kernel_types import kernel_of
from cellblock.service.named.remote_saves import RemoteSaves

if TYPE_CHECKING:
    from cellblock.host import Session
    from cellblock.model import Recovery
    from cellblock.model.saving import LoadReport

_log = logging.getLogger("cellblock.named")

EVERY = 30.0
"""Seconds between two saves, by default"""

_SUFFIX = ".cellblock"
_UNLOADED = "unloaded-"
_LEFT = "left-"
"""The beginning of the name, before the time, of a file that records the restore of a state from before the save."""

WENT_BACK = "undo, restore, adopt or load"
"""What counts as a cell that ran after the last save, if the session has gone to another state since."""

_LABEL, _CELLS, _UNREPORTED = "session.json", "cells.jsonl", "unreported.json"
_ENDED, ASIDE = "ended-", "saves-aside"
_DISK = 10.0  # seconds that a result waits for the disk

_TIMEOUT = 120.0  # seconds for pickling
_MOST, _SHOWN, _KEPT = 10, 80, 400  # names shown; characters of code shown; characters of code stored for that
_LAST = 10.0  # seconds for the last save when the daemon ends


class Durable:
    """The saves of one named session, in a directory of their own. Only the last save is kept.

    The name of a save contains the id of the execution after which it was made. The directory is independent of the
    journal: it also holds the session's label and the cells that began after the save. Everything is on disk before an
    answer relies on it.

    Attributes:
        directory: The directory of the local saves.
        remote: The saves at a URL, if the session has one.
    """

    def __init__(
        self,
        directory: Path,
        every: float,
        ran: Callable[[str], str],
        label: Callable[[], str],
        remote: RemoteSaves | None = None,
    ) -> None:
        """Set up without saving.

        Args:
            directory: The directory of the saves. No session can write there.
            every: The minimum time between two saves, in seconds.
            ran: Returns the id of the last execution that ran, except the one given by id; empty if none ran.
            label: Returns the session's label (`labels.label_of`).
            remote: The destination to which each save is copied.
        """
        self.remote = remote
        self._label = label
        self._cells = threading.Lock()
        self._problem = ""
        self.directory = directory
        self._every = every
        self._ran = ran
        self._saved = -1
        """The state that was saved last."""
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None
        self._removed = False
        self._gone_back = 0
        self._unreported = False

    @property
    def problem(self) -> str:
        """Why the last save or the renewal of the lease at the URL failed; empty if neither did."""
        return self._problem or ("" if self.remote is None else self.remote.problem)

    # -- the cells since the last save ---------------------------------------------------------------------------------

    async def note_begun(self, execution: str, code: str) -> None:
        """Record on disk that a cell has begun. If the disk does not respond, wait only briefly."""
        line = json.dumps([execution, code.strip()[:_KEPT]]).encode() + b"\n"
        try:
            async with asyncio.timeout(_DISK):
                await asyncio.to_thread(self._add_cell, line)
        except (OSError, TimeoutError) as error:
            why = "the disk does not answer" if isinstance(error, TimeoutError) else error.strerror
            self._problem = f"a power failure could lose its last cells without a message: {why}"
            _log.warning("a durable session: %s", self._problem)

    def _add_cell(self, line: bytes) -> None:
        with self._cells:
            self._make()
            with open(self.directory / _CELLS, "ab", opener=_private) as file:
                fresh = not file.tell()
                file.write(line)
                file.flush()
                os.fdatasync(file.fileno())
            if fresh:
                sync_directory(self.directory)

    def run_after(self, execution: str, most: int) -> tuple[list[str], int] | None:
        """Return the start of the first cells that began after an execution, and their number; None if unknown.

        Args:
            execution: The execution's id; empty: all count.
            most: How many to return.
        """
        with self._cells:
            try:
                data = (self.directory / _CELLS).read_bytes()
            except OSError:
                return None
        after = {number: code for number, code in _read_cells(data) if number > execution}
        return [*after.values()][:most], len(after)

    def _forget_cells(self, until: str) -> None:
        with self._cells:
            try:
                data = (self.directory / _CELLS).read_bytes()
            except OSError:
                data = b""
            with WholeFile(self.directory / _CELLS) as file:
                file.writelines(json.dumps(cell).encode() + b"\n" for cell in _read_cells(data) if cell[0] > until)

    def _make(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
            sync_directory(self.directory.parent.parent)

    # -- saving --------------------------------------------------------------------------------------------------------

    def look(self, session: Session) -> None:
        """Start a save if the session's state has changed and the minimum time has passed."""
        if self.remote is not None:
            self.remote.begin()
        if self._removed or (self._task is not None and not self._task.done()):
            return
        # If the last kernel may have died, the last save is worth more than the state of a fresh kernel.
        if time.monotonic() >= self._next and session.saving.last_state.number not in (0, self._saved):
            self._task = asyncio.create_task(self._save(session))

    async def went_back(self, session: Session) -> None:
        """Schedule a save after the session has moved to another state.

        Until that save, mark the last one as outdated. Otherwise an undone cell would silently return after a power
        failure.
        """
        self._gone_back = time.time_ns()
        state = session.saving.last_state.number
        try:
            if state == 0 and not session.succession.all_lost:  # an undo of all cells leaves nothing to continue from
                await self.forget()
            elif state == self._saved and (self._task is None or self._task.done()):
                await asyncio.to_thread(self._remove_notes, self._gone_back)
            else:
                await asyncio.to_thread(self._note_going_back)
        except (CellblockError, OSError) as error:
            self._problem = f"the restore of the session cannot be recorded: {error}"
            _log.warning("a durable session: %s", self._problem)
        if self.remote is not None:
            self.remote.tell_soon()
        self._next = 0.0
        self.look(session)

    def _note_going_back(self) -> None:
        self._make()
        (self.directory / f"{_LEFT}{self._gone_back}").touch()
        sync_directory(self.directory)

    def _remove_notes(self, until: int) -> None:
        for note in self.directory.glob(f"{_LEFT}*"):
            if int(note.name.removeprefix(_LEFT)) <= until:
                note.unlink(missing_ok=True)

    @property
    def left(self) -> bool:
        """Whether the session has left the state that was saved last."""
        return any(self.directory.glob(f"{_LEFT}*"))

    async def _save(self, session: Session) -> None:
        self._next = time.monotonic() + self._every
        began = time.time_ns()
        state = session.saving.last_state
        last = self._ran(state.running)
        path = self.directory / f"{last or '0'}{_SUFFIX}"
        try:
            await asyncio.to_thread(self._write, _LABEL, self._label())
            try:
                await session.saving.save_aside(state.number, path, timeout=_TIMEOUT)
            except CheckpointError:
                if state.busy:  # may be possible in a moment
                    self._next = 0.0
                    return
                if not await self._save_in_turn(session, path):
                    return
                saved = session.saving.last_state  # cells did that, too
                state = state if saved.busy else saved
            await asyncio.to_thread(self._keep_only, path, began, last)
            if self.remote is not None:
                await self.remote.keep(path, last)
        except (CellblockError, OSError) as error:
            self._problem = str(error)
            _log.warning("a durable session cannot be saved: %s", error)
        else:
            self._saved, self._problem = state.number, ""
            if self._gone_back > began:  # meanwhile: the saved state was left
                self._next = 0.0

    async def _save_in_turn(self, session: Session, path: Path) -> bool:
        """Save a session without a checkpoint, in its own kernel. Return whether that kernel is still the session's.

        If the kernel died meanwhile, the save would contain a fresh kernel.
        """
        kernel = kernel_of(session.position)
        if not kernel or not await session.has_kernel():
            return False
        pending = path.with_name("pending")
        await session.save(pending, workspace=True, timeout=_TIMEOUT)
        whole = kernel_of(session.position) in ("", kernel) and await session.has_kernel()
        await asyncio.to_thread(os.replace if whole else _discard, pending, path)
        return whole

    def _write(self, name: str, text: str) -> None:
        self._make()
        with WholeFile(self.directory / name) as file:
            file.write(text.encode())

    def _keep_only(self, path: Path, began: int, last: str) -> None:
        """Remove earlier saves, once the new one is on disk.

        Args:
            path: The new save.
            began: When the new save began. Marks made since then concern it, too.
            last: The execution after which it was made.
        """
        sync_directory(self.directory)
        self._forget_cells(last)
        for other in self.directory.iterdir():
            if other != path and not other.name.startswith((_UNLOADED, _LEFT, _LABEL, _CELLS, _UNREPORTED)):
                other.unlink(missing_ok=True)
        self._remove_notes(began)

    # -- continuing ---------------------------------------------------------------------------------------------------

    @property
    def last(self) -> Path | None:
        """The path of the last save, if there is one."""
        found = [path for path in self.directory.glob(f"*{_SUFFIX}") if not path.name.startswith((".", _UNLOADED))]
        return max(found, default=None)

    @staticmethod
    def execution_of(save: Path) -> str:
        """Return the id of the execution after which a save was made; empty if before the first execution."""
        return save.name.removesuffix(_SUFFIX).removeprefix("0" if save.name == f"0{_SUFFIX}" else "")

    async def load(self, session: Session, save: Path, *, workspace: bool) -> list[str]:
        """Continue a session from a save (`Session.load_missing`). If that fails, set the save aside.

        Raises:
            CellblockError: The save cannot be loaded. The message contains its path.
        """
        try:
            changed = await session.saving.load_missing(save, workspace=workspace, timeout=_TIMEOUT)
        except (CellblockError, OSError, tarfile.TarError) as error:
            apart = save.with_name(f"{_UNLOADED}{save.name}")
            await asyncio.to_thread(os.replace, save, apart)
            raise CellblockError(f"{error}. The save is kept in {apart}") from error
        self._saved = session.saving.last_state.number
        return changed

    async def forget(self) -> None:
        """Remove the saves, because the session was restarted with a fresh kernel."""
        await self.close()
        self._saved = -1
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)
        if self.remote is not None:
            await self.remote.forget()

    async def note_loss(self, loss: Recovery, lines: Sequence[str]) -> None:
        """Record a loss that no result has reported yet, because this process may be killed first."""
        self._unreported = True
        try:
            await asyncio.to_thread(self._write, _UNREPORTED, json.dumps([loss, [*lines]]))
        except OSError as error:
            _log.warning("a durable session: its loss cannot be recorded: %s", error)

    def unreported(self) -> tuple[Recovery, list[str]] | None:
        """Return the loss that no result has reported yet, if any."""
        try:
            loss, lines = json.loads((self.directory / _UNREPORTED).read_bytes())
        except (OSError, ValueError):
            return None
        self._unreported = True
        return ("restored" if loss == "restored" else "restored_earlier"), [str(line) for line in lines]

    def reported(self) -> None:
        """Mark the loss as reported by a result."""
        if self._unreported:
            self._unreported = False
            with suppress(OSError):
                (self.directory / _UNREPORTED).unlink()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def save_last(self, session: Session) -> None:
        """Save a changed state before the session's kernel ends, within a time limit."""
        self._next = 0.0
        try:
            async with asyncio.timeout(_LAST):
                if self._task is not None and not self._task.done():
                    await asyncio.wait([self._task])
                self._next = 0.0
                self.look(session)
                if self._task is not None:
                    await asyncio.wait([self._task])
        except TimeoutError:
            self._problem = f"it is not saved yet, after {_LAST:g} s"
            _log.warning("a durable session: %s", self._problem)

    async def close(self) -> None:
        """Stop saving. The operation is idempotent."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def remove(self) -> None:
        """Remove the saves of an ended session, in a thread because they can be large."""
        self._removed = True
        remove_saves(self.directory)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._task.add_done_callback(lambda _: remove_saves(self.directory))  # it may have recreated the directory


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read_cells(data: bytes) -> list[tuple[str, str]]:
    """Parse the cells in a file, up to a line that a power failure cut."""
    found = []
    for line in data.splitlines():
        try:
            number, code = json.loads(line)
        except ValueError:
            break
        found.append((str(number), str(code)))
    return found


def _discard(path: Path, _: Path) -> None:
    path.unlink(missing_ok=True)


def told(
    at: str,
    codes: Sequence[str],
    lost: int,
    changed: Sequence[str],
    loaded: LoadReport | None,
    *,
    host: str = "",
    known_until: str = "",
    clone: bool = False,
) -> list[str]:
    """Return the message about a session that continues from a save.

    Args:
        at: When the save was made.
        codes: The code of the first cells whose effects are lost.
        lost: The number of lost cells.
        changed: Files that have changed since.
        loaded: The report of the restored state.
        host: The machine that ran the session before; empty if it was this one.
        known_until: The last time for which the cells on that machine are known; empty if all are known.
        clone: Whether the session works in a clone, which continues from the save, too.
    """
    where = "in memory and in the clone" if clone else "in memory"
    ran = f"The session ran on {host}, which ended or released it." if host else "The session's kernel ended."
    lines = [f"{ran} The session continues from the save of {at}."]
    if WENT_BACK in codes:
        codes, lost = [code for code in codes if code != WENT_BACK], lost - 1
        lines.append(f"It had restored another state since ({WENT_BACK}). That is lost: undone cells count again.")
    if lost:
        shown = "; ".join(_in_short(code) for code in codes)
        more = f"; and {lost - len(codes)} more" if lost > len(codes) else ""
        lines.append(
            f"What {'one later cell' if lost == 1 else f'{lost} later cells'} changed {where} is lost: {shown}{more}."
        )
    if known_until:
        lines.append(f"It is unknown which cells ran after {known_until}; what they changed {where} is lost, too.")
    if changed:
        more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
        lines.append(f"Files changed since then stay unchanged: {', '.join(changed[:_MOST])}{more}.")
    left_out = [] if loaded is None else loaded.left_out
    if left_out:
        more = f", and {len(left_out) - _MOST} more" if len(left_out) > _MOST else ""
        lines.append(f"Not restored: {', '.join(f'{one.name} ({one.reason})' for one in left_out[:_MOST])}{more}.")
    return lines


def _in_short(code: str) -> str:
    first, _, rest = code.strip().partition("\n")
    return f"`{first[:_SHOWN]}{'…' if rest or len(first) > _SHOWN else ''}`"


def remove_saves(directory: Path) -> None:
    """Remove the saves of an ended session in a thread. From now on, no process adopts them."""
    ended = directory.with_name(f"{_ENDED}{directory.name}-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):  # it was never saved
        os.replace(directory, ended)
        run_aside(lambda: shutil.rmtree(ended, ignore_errors=True), "cellblock-saves")


def sort_out(saves: Path, sessions: Collection[str]) -> list[str]:
    """Return the labels of sessions that can continue from their saves although the journal lacks them.

    Remove the saves of ended sessions, and set other saves aside.

    Args:
        saves: The directory with the directories of all sessions.
        sessions: The ids of the sessions in the journal.

    Raises:
        OSError: The directory cannot be read.
    """
    labels = []
    for directory in saves.iterdir() if saves.is_dir() else ():
        if directory.name.startswith(_ENDED):
            run_aside(partial(shutil.rmtree, directory, ignore_errors=True), "cellblock-saves")
        elif directory.name not in sessions and (label := _adoptable(directory)):
            labels.append(label)
        elif directory.name not in sessions and not any(directory.glob(f"*{_SUFFIX}")):
            shutil.rmtree(directory, ignore_errors=True)  # contains no save
        elif directory.name not in sessions:
            aside = saves.with_name(ASIDE)
            aside.mkdir(0o700, exist_ok=True)
            os.replace(directory, aside / f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    return labels


def _adoptable(directory: Path) -> str:
    """Return the label in a directory of saves; empty if the save or the label is missing."""
    try:
        return (directory / _LABEL).read_text() if any(directory.glob(f"[!.u]*{_SUFFIX}")) else ""
    except (OSError, ValueError):
        return ""
