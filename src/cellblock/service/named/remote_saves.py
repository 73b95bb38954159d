"""Saves of a durable session at a URL, from which a daemon on any machine can continue.

A save is first a local file (`Durable`), then copied to the folder of the session's name as
``save-EPOCH-NUMBER.cellblock``. The record of the lease names the current save and what ran since. The previous save stays:
a daemon that acquires the name may have read the record before it changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from cellblock.common.threads import in_own_thread
from cellblock.common.url_folder import folder_at
from cellblock.common.urls import check
from cellblock.errors import CellblockError, ConflictError, StoreError
from cellblock.service.named.lease import BEAT, MOST_RAN, MOST_TEXT, Lease, LeaseRecord

_log = logging.getLogger("cellblock.named")
P = ParamSpec("P")
T = TypeVar("T")

_SAVE = re.compile(r"save-\d{8}-\d{8}\.cellblock")
_SOON = 15.0  # seconds that a cell waits for the store
_LEAVING = 5.0  # seconds that the end of a session waits for the store
_AGAIN = 5.0  # seconds between attempts to renew
_LONGEST = 150  # characters of a folder's name


class RemoteSaves:
    """The saves of one named session at a URL, and its lease on the name there.

    Attributes:
        problem: Why the last renewal of the lease failed; empty if it succeeded.
    """

    def __init__(self, url: str, name: str, session: str, ran_after: Callable[[str], tuple[list[str], int]]) -> None:
        """Set up without a request to the store.

        Args:
            url: The parent URL of all sessions.
            name: The session's name.
            session: The session's id.
            ran_after: Returns the code of the first cells that ran after an execution, and their number.

        Raises:
            InvalidInputError: The URL is not supported.
        """
        check(url)
        self.problem = ""
        self._folder = folder_at(f"{url.rstrip('/')}/{folder_name(name)}")
        self._lease = Lease(self._folder, session, socket.gethostname())
        self._name = name
        self._ran_after = ran_after
        self._count = 0
        self._closed = False
        self._beating: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    @property
    def taken_by(self) -> str:
        """The machine that acquired the session; empty if none did."""
        return self._lease.taken_by

    async def take(self, into: Path) -> LeaseRecord | None:
        """Acquire the name. Download the remote save if another daemon had the name since, or if there is no local save.

        Args:
            into: The directory of the local saves. A downloaded save replaces all others in it.

        Returns:
            The last record about the session of the save; None if the session continues from local data.

        Raises:
            BusyError, ConflictError: Another daemon owns the name.
            StoreError: The store cannot be used, or its data is damaged.
        """
        async with self._one_at_a_time:
            last = await self._call(functools.partial(self._lease.take, from_others=True))
        self.begin()
        if last is None:
            return None
        return last if await self._call(self._fetch_if_newer, last, into) else None

    def _fetch_if_newer(self, last: LeaseRecord, into: Path) -> bool:
        if last.session == self._lease.session and (not last.save or any(into.glob("*.cellblock"))):
            return False
        self._fetch(last, into)
        return True

    def _fetch(self, last: LeaseRecord, into: Path) -> None:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(0o700, parents=True)
        if not last.save:
            return
        if not _SAVE.fullmatch(last.save):
            raise StoreError(f"the lease of session {self._name!r} is damaged: it names {last.save!r} as its save")
        fetched = into / "fetched"
        with open(fetched, "xb") as file:
            self._folder.download(last.save, file)
        os.utime(fetched, (last.saved_at / 1000,) * 2)
        fetched.rename(into / "0.cellblock")  # it was made before the first execution of the session here

    async def hold(self) -> None:
        """Ensure that no other daemon continues the session, before code runs in it.

        Raises:
            ConflictError: Another daemon does.
            StoreError: The store cannot be used, and the lease has expired.
        """
        if self._lease.held:
            return
        self.begin()
        if self.taken_by:
            raise ConflictError(self._taken())
        try:
            async with asyncio.timeout(_SOON):
                await self._renew()
        except TimeoutError:
            raise StoreError(
                f"session {self._name!r} may run elsewhere: its lease has expired, and {self._folder.url} does not answer"
            ) from None

    def _taken(self) -> str:
        return f"session {self._name!r} was taken over by {self._lease.taken_by}, and ends here"

    def begin(self) -> None:
        """Renew the lease in the background from now on. Acquire it first for a kernel left by a killed daemon."""
        if (self._beating is None or self._beating.done()) and not self._closed and not self.taken_by:
            self._beating = asyncio.create_task(self._beat())

    def tell_soon(self) -> None:
        """Record what ran since the last save at once, before the next renewal."""
        self._told.set()

    async def _beat(self) -> None:
        while not self.taken_by:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), BEAT if self._lease.held else 0)
            self._told.clear()
            try:
                await self._renew()
            except CellblockError as error:
                self.problem = str(error)
                _log.warning("the lease of session %r cannot be renewed: %s", self._name, error)
                await asyncio.sleep(_AGAIN)

    async def _renew(self) -> None:
        async with self._one_at_a_time:
            if self._lease.epoch:
                codes, lost = self._ran_after(self._lease.record.after)
                await self._call(functools.partial(self._lease.renew, ran=_in_short(codes), lost=lost))
            else:  # a session that the previous daemon left with its kernel
                await self._call(functools.partial(self._lease.take, from_others=False))
            self.problem = ""

    async def keep(self, path: Path, after: str) -> None:
        """Copy a save to the URL.

        Args:
            path: The local file.
            after: The id of the execution after which it was made; empty if before the first.

        Raises:
            ConflictError: Another daemon continues the session.
            StoreError: The save cannot be written. The previous save is the last one.
        """
        await self.hold()
        self._count += 1
        name = f"save-{self._lease.epoch:08}-{self._count:08}.cellblock"
        await self._call(self._folder.upload, name, str(path))  # may take minutes, while the lease is renewed
        saved_at = int((await asyncio.to_thread(path.stat)).st_mtime * 1000)
        async with self._one_at_a_time:
            codes, lost = self._ran_after(after)
            changes = {"save": name, "saved_at": saved_at, "after": after, "ran": _in_short(codes), "lost": lost}
            await self._call(self._point, changes)
            self.problem = ""

    def _point(self, changes: dict[str, Any]) -> None:
        """Point the lease to another save, and remove all but that and the previous one."""
        epoch, before = self._lease.epoch, self._lease.record.save
        self._lease.renew(**changes)
        if self._lease.epoch == epoch:  # otherwise the lease had expired, and the next save removes them
            for other in self._folder.names():
                if _SAVE.fullmatch(other) and other not in (changes["save"], before):
                    self._folder.remove(other)

    async def forget(self) -> None:
        """Remove the saves after a restart with a fresh kernel. Raises as `keep`."""
        await self.hold()
        async with self._one_at_a_time:
            await self._call(self._forget)

    def _forget(self) -> None:
        self._lease.renew(save="", saved_at=0, after="", ran=(), lost=0)
        for name in self._folder.names():
            if _SAVE.fullmatch(name):
                self._folder.remove(name)

    async def release(self) -> None:
        """Release the name at once, if it is owned here. Errors are logged."""
        await self._stop_beating()
        try:
            async with asyncio.timeout(_LEAVING), self._one_at_a_time:
                if self._lease.held:
                    codes, lost = self._ran_after(self._lease.record.after)
                    await self._call(functools.partial(self._lease.release, ran=_in_short(codes), lost=lost))
        except (CellblockError, TimeoutError) as error:
            _log.warning("the lease of session %r could not be released: %s", self._name, str(error) or "no answer")

    async def remove(self) -> None:
        """Remove everything at the URL after the session ended, unless another daemon continues it. Errors are logged."""
        await self._stop_beating()
        try:
            async with asyncio.timeout(_LEAVING), self._one_at_a_time:
                await self._call(self._remove)
        except (CellblockError, TimeoutError) as error:
            left, why = self._folder.url, str(error) or "no answer"
            _log.warning("the saves of session %r could not be removed from %s: %s", self._name, left, why)

    def _remove(self) -> None:
        if not self._lease.taken_by and self._lease.is_ours():
            self._folder.clear()

    async def _stop_beating(self) -> None:
        self._closed = True
        if self._beating is not None and not self._beating.done():
            self._beating.cancel()
            await asyncio.wait([self._beating])

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a daemon thread, because a store may not respond for minutes and must not delay the exit.

        Cancellation does not stop the thread. The lease separates its effects from later calls.
        """

        def start(work: Callable[[], None]) -> None:
            try:
                threading.Thread(target=work, name="cellblock-remote", daemon=True).start()
            except RuntimeError as error:
                raise StoreError(f"no thread can be started to reach {self._folder.url}") from error

        return await in_own_thread(start, functools.partial(function, *args, **kwargs))


def _in_short(codes: list[str]) -> tuple[str, ...]:
    return tuple(code.strip().partition("\n")[0][:MOST_TEXT] for code in codes[:MOST_RAN])


def folder_name(name: str) -> str:
    """Return the folder name of a session: bytes other than letters, digits, ``-`` and ``_`` become ``=XX``."""
    made = re.sub(
        r"[^A-Za-z0-9_-]", lambda found: "".join(f"={byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass")), name
    )
    if len(made) > _LONGEST:
        made = f"{made[:_LONGEST]}={hashlib.sha256(made.encode()).hexdigest()}"
    return made
