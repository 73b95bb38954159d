"""Leases on the names of durable sessions at a URL: one daemon at a time continues a session.

A name has a folder. Each owner has a number there, the epoch, and a record that only the owner writes,
``lease-EPOCH.json``. The owner renews the record regularly. A lease expires when its record is `LASTS` seconds old by the
store's clock, or says that the session was released.

- A daemon acquires a name by creating the record of the next epoch. If the store has exclusive creation
  (`Folder.exclusive`), only one daemon succeeds. The daemon then reads the previous record again. A changed record means a
  live owner, and the daemon removes its new record.
- An owner counts from the start of its write, on a clock that includes sleep, and stops before the lease expires for
  others. It must then acquire the name again.
- An owner that sees a later epoch has lost the name. Files written meanwhile carry the old epoch in their names, and are
  not read.

All calls block: `RemoteSaves` runs them in threads.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from cellblock.common.url_folder import Folder, age
from cellblock.errors import BusyError, ConflictError, ProtocolError, StoreError
from cellblock.wire.codec import Most
from cellblock.wire.record import record
from cellblock.wire.saved import MAX_STATE, read, write

LASTS = 60.0
"""Seconds after which a name is free, if its holder does not renew the lease."""

BEAT = 20.0
"""Seconds between two renewals."""

_MARGIN = 5.0  # of the owner's clock: stores round times to seconds
MOST_RAN, MOST_TEXT = 5, 200
"""How many cells that ran since the last save a record shows, and how many characters of each."""

_FORMAT = 1
_Text = Annotated[str, Most(MOST_TEXT)]
_Count = Annotated[int, Most(2**53)]
_NAME = re.compile(r"lease-(\d{8})\.json")


@record
class LeaseRecord:
    """An owner's record of a session.

    Attributes:
        format: As `_FORMAT`.
        session: The id of the session there.
        host: The name of the owner's machine.
        beat: The number of writes.
        at: The time of the write by the owner's clock, in milliseconds since 1970.
        released: Whether the owner ended the session cleanly, so that nothing ran after this record.
        save: The file of the last save; empty if none.
        saved_at: When that save was made, in milliseconds since 1970; 0 if none.
        after: The id of the execution after which the save was made.
        ran: The first lines of the first cells that ran since the save.
        lost: How many cells ran since the save.
    """

    format: int
    session: _Text
    host: _Text
    beat: _Count
    at: _Count
    released: bool
    save: _Text
    saved_at: _Count
    after: _Text
    ran: Annotated[tuple[_Text, ...], Most(MOST_RAN)]
    lost: _Count


class Lease:
    """The lease of one session on its name.

    Attributes:
        session: The id of the session here.
        epoch: The lease's number; 0 before `take`.
        record: The last record written by this lease.
        taken_by: The machine that acquired the name from this lease; empty if none did.
    """

    record: LeaseRecord

    def __init__(self, folder: Folder, session: str, host: str, clock: Callable[[], float] | None = None) -> None:
        """Set up without acquiring the name.

        Args:
            folder: The folder of the name.
            session: The id of the session here.
            host: The name of this machine, for others.
            clock: A clock in seconds that never stops.
        """
        self.epoch = 0
        self.taken_by = ""
        self._folder = folder
        self.session, self._host = session, host[:MOST_TEXT]
        self._clock = clock or _always_running
        self._until = float("-inf")
        self._one_at_a_time = threading.RLock()

    @property
    def held(self) -> bool:
        """Whether no other daemon can own the name now."""
        return not self.taken_by and self._clock() < self._until

    def take(self, *, from_others: bool) -> LeaseRecord | None:
        """Acquire the name, again if the lease has expired.

        Args:
            from_others: Whether to continue a session of another owner. Pass False if a kernel of the session lives here,
                because its state would be older.

        Returns:
            The last owner's record, possibly of this session; None if there was none.

        Raises:
            BusyError: Another daemon owns the name; the error says when to retry.
            ConflictError: Another daemon has just acquired the name, or acquired it from this session.
            StoreError: The store cannot be used.
        """
        with self._one_at_a_time:
            epoch, data = self._last()
            last = None if data is None else _read(data)
            others = last is not None and last.session != self.session
            if last is not None and others:
                self._check_free(epoch, last, from_others)
            started, now = self._clock(), _now()
            fresh = LeaseRecord(_FORMAT, "", "", 0, now, False, "", 0, "", (), 0) if last is None else last
            mine = replace(fresh, session=self.session, host=self._host, beat=0, at=now, released=False)
            written = write(mine)
            if (
                not self._folder.create(_name(epoch + 1), written)
                and self._folder.read(_name(epoch + 1), MAX_STATE) != written
            ):
                raise ConflictError("another daemon has just acquired the session's name")
            if data is not None and self._folder.read(_name(epoch), MAX_STATE) != data:
                self._folder.remove(_name(epoch + 1))
                raise ConflictError(f"the session's name is held by {fresh.host}, which renewed its lease late")
            self.epoch, self.record, self._until = epoch + 1, mine, started + LASTS - _MARGIN
            self._remove_records(epoch + 1)
            return last

    def _check_free(self, epoch: int, last: LeaseRecord, from_others: bool) -> None:
        """Raise unless the name can be acquired from another owner."""
        if not from_others:
            self.taken_by = last.host
            raise ConflictError(f"the session was taken over by {last.host}")
        if not last.released and (passed := age(self._folder, _name(epoch))) <= LASTS:
            raise BusyError(
                f"the session's name is held by {last.host}. If that host is down, its lease ends in {LASTS - passed:.0f} s",
                LASTS - passed,
            )

    def renew(self, **changes: object) -> None:
        """Write the record again.

        Args:
            changes: Fields that change.

        Raises:
            ConflictError: Another daemon owns the name.
            StoreError: The store cannot be used.
        """
        with self._one_at_a_time:
            if not self.held:
                self.take(from_others=False)
            started = self._clock()
            fresh = replace(self.record, beat=self.record.beat + 1, at=_now(), **changes)  # type: ignore[arg-type]
            if fresh.released:
                self._until = started = float("-inf")  # before others can read it
            self._folder.write(_name(self.epoch), write(fresh))
            epoch, data = self._last()
            if epoch > self.epoch and data is not None:
                self._until = float("-inf")
                self.taken_by = _read(data).host
                raise ConflictError(f"the session was taken over by {self.taken_by}")
            self.record, self._until = fresh, started + LASTS - _MARGIN

    def release(self, **changes: object) -> None:
        """Release the name at once, if it is owned. Raises as `renew`."""
        with self._one_at_a_time:
            if self.held:
                self.renew(released=True, **changes)

    def is_ours(self) -> bool:
        """Return whether this session was the last owner of the name. Raises `StoreError`."""
        with self._one_at_a_time:
            data = self._last()[1]
            return data is not None and _read(data).session == self.session

    def _last(self) -> tuple[int, bytes | None]:
        """Return the latest epoch and its record; 0 and None if missing."""
        for _ in range(3):
            numbers = self._numbers()
            if not numbers:
                return 0, None
            if (data := self._folder.read(_name(numbers[-1]), MAX_STATE)) is not None:
                return numbers[-1], data
        raise StoreError(f"the lease of the session keeps changing: {self._folder.url}")

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for name in self._folder.names() if (match := _NAME.fullmatch(name)))

    def _remove_records(self, before: int) -> None:
        for number in self._numbers():
            if number < before:
                self._folder.remove(_name(number))


def _name(epoch: int) -> str:
    return f"lease-{epoch:08}.json"


def _read(data: bytes) -> LeaseRecord:
    try:
        found = read(LeaseRecord, data)
    except ProtocolError as error:
        raise StoreError(f"the lease of the session is damaged, so the session cannot continue: {error}") from error
    if found.format != _FORMAT:
        raise StoreError(f"the lease of the session has format {found.format}, and this version supports only {_FORMAT}")
    return found


def _now() -> int:
    return int(time.time() * 1000)


def _always_running() -> float:
    """Return the seconds since boot, including sleep if the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
