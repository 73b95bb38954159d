"""Watches a session's memory, and its Linux kernel objects that no limit of Linux covers.

Control groups enforce the memory limit themselves. With them, this module only reports the excess, and watches the objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cellblock.errors import SandboxError
from cellblock.host.kernels import advice
from cellblock.host.launch.control import Control
from cellblock.walls.sandbox.cgroups import Group
from cellblock.walls.sandbox.policy import Resources

_BUSY, _IDLE = 0.25, 5.0  # seconds between measurements of a session's memory
_WITHOUT_COPIES, _ROOM = 10.0, 0.75
"""Seconds without new copies after some were dropped, and the share of the limit below which one may be made again: otherwise
a session with many short cells would exceed its limit again at each measurement, with new copies."""
_FIRST_LOOKS = 4
"""Measurements of a replacement kernel, until memory from before it counts as the culprit."""
_ANY = 1 << 62
"""Bytes that no session uses: the measurement of memory need not be exact."""
_SHARE_AGE = 1.0
"""Minimum seconds between two exact measurements of an idle session: each takes init milliseconds."""
_CHANGED = 4 << 20
_LEAST = 1 << 20
"""Bytes that every kernel uses. Init answers less while it creates another kernel."""
_PATIENCE = 30.0
"""Seconds to wait for a measurement: memory that is not measured has no limit."""


class Relief:
    """What frees memory of a session before its kernel must end. By default, there is nothing to free."""

    def relieve(self) -> bool:
        """Drop copies of the session's kernels. Return whether there were any."""
        return False

    def end_programs(self, why: str) -> bool:
        """End the session's background programs with a reason. Return whether there were any."""
        return False


class MemoryWatch:
    """The memory of all processes of one kernel, and its limit.

    Attributes:
        limit: The limit in bytes, if any.
        relief: Frees memory of the kernel's session.
        hopeless: Whether a replacement exceeded the limit from its start, because something outlives kernels, such as files in
            /tmp.
    """

    def __init__(
        self,
        limit: int | None,
        group: Group | None,
        control: Control,
        is_busy: Callable[[], bool],
        on_excess: Callable[[str], None],
    ) -> None:
        """Store the arguments without measuring.

        Args:
            limit: The limit in bytes, if any.
            group: The control group, if any, by which Linux enforces the limit.
            control: The connection to init, which measures.
            is_busy: Returns whether a cell runs, for which measurements are more frequent.
            on_excess: Called with the reason why the session must end, so that no other session suffers.
        """
        self.limit = limit
        self._group = group
        self._control = control
        self._is_busy = is_busy
        self._on_excess = on_excess
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: asyncio.TimerHandle | None = None
        self._last = 0
        self._share: int | None = None
        self._at_share = 0
        """The estimate at the time of the last exact measurement."""
        self._exact_at = 0.0
        self._asked_exactly = False
        self._no_copies_until = 0.0
        self._first_looks = 0
        self.hopeless = False
        self.relief = Relief()

    def set_limits(self, resources: Resources) -> None:
        """Set the limits of the control group, if any.

        Raises:
            SandboxError: The limits cannot be set.
        """
        try:
            if self._group is not None:
                self._group.limit(resources)
        except OSError as error:
            raise SandboxError(f"the memory of a kernel cannot be limited: {error}") from error

    def look_soon(self) -> None:
        """Measure soon, and then periodically."""
        if self.limit is not None:
            self._look_in(_BUSY)

    def look_first(self) -> None:
        """Measure a dead kernel's replacement now: the memory may have been taken before it."""
        if self.limit is not None and self._group is None:
            self._first_looks = _FIRST_LOOKS
            self._look()

    @property
    def used(self) -> int:
        """Memory use in bytes, as last measured; 0 without measurements. Pages that processes share count once."""
        if self._group is not None:
            return self._group.used()
        if self._share is None:
            return self._last
        return self._share + (max(self._last - self._at_share, 0) if self._is_busy() else 0)

    @property
    def _share_is_old(self) -> bool:
        """Whether the memory has changed since the last exact measurement. Estimates count shared pages repeatedly."""
        return self._share is None or abs(self._last - self._at_share) > _CHANGED

    @property
    def short(self) -> bool:
        """Whether memory is too short for another copy: copies were dropped recently, or that was not enough."""
        if self.limit is None or not self._no_copies_until:
            return False
        return self._loop.time() < self._no_copies_until or self._last > _ROOM * self.limit

    def stop(self) -> None:
        for timer in (self._timer, self._unanswered):
            if timer is not None:
                timer.cancel()

    def cause_of_death(self) -> str | None:
        """Return a cause of death that only the control group knows: the memory limit."""
        if self.limit is None or self._group is None or not self._group.ran_out_of_memory():
            return None
        return f"out of memory: the session may use {self.limit >> 20:,} MiB; {advice.more_memory(self.limit)}"

    def _look_in(self, seconds: float) -> None:
        """Schedule a measurement, unless an earlier one is due.

        A later time never replaces an earlier one, because many short cells would postpone it forever.
        """
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        assert self.limit is not None
        self._asked_exactly = self._wants_share()
        least = 0 if self._asked_exactly else self.limit
        self._control.measure(least if self._group is None else _ANY)
        self._expect_answer()

    def _wants_share(self) -> bool:
        if self._group is not None or not self._last or self._first_looks or not self._share_is_old:
            return False
        return self._share is None or (not self._is_busy() and self._loop.time() >= self._exact_at + _SHARE_AGE)

    def _expect_answer(self) -> None:
        if self._unanswered is None:
            why = f"its memory could not be measured for {_PATIENCE:g} s, so it may have exceeded its limit"
            self._unanswered = self._loop.call_later(_PATIENCE, self._on_excess, why)

    def check(self, used: int, copies: int, excess: str = "") -> None:
        """Handle a measurement.

        Args:
            used: Bytes in use.
            copies: Upper limit of the bytes that dropping copies frees. If that is not enough, they stay for recovery.
            excess: A sentence about another exceeded limit; empty if none.
        """
        if not self._asked_exactly or (self.limit is not None and used > self.limit):
            self._last = used
        elif used >= _LEAST:
            self._share, self._at_share, self._exact_at = used, self._last, self._loop.time()
        self._asked_exactly = False
        if self._unanswered is not None:
            self._unanswered.cancel()
            self._unanswered = None
        first, self._first_looks = self._first_looks, 0
        if excess:
            if self.relief.end_programs(excess):
                self._look_in(_BUSY)
            else:
                self._on_excess(excess)
        elif self.limit is not None and self._group is None and used > self.limit:
            if first > 1:  # processes of the dead kernel may still be ending
                self._first_looks = first - 1
                self._look_in(_BUSY)
                return
            if used - copies <= self.limit and self.relief.relieve():
                self._no_copies_until = self._loop.time() + _WITHOUT_COPIES
                self._look_in(_BUSY)
                return
            most = f"may use {self.limit >> 20:,} MiB; {advice.more_memory(self.limit)}"
            why = f"out of memory: its processes used {used >> 20:,} MiB, and {most}"
            if self.relief.end_programs(why):  # programs have no state that a session could lose
                self._look_in(_BUSY)
                return
            self.hopeless = first == 1
            self._on_excess(why)
        elif self._is_busy() or (self._group is None and self._share is None):
            self._look_in(_BUSY)
        else:
            self._look_in(_SHARE_AGE if self._group is None and self._share_is_old else _IDLE)
