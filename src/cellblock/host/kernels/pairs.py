"""Pairs of file snapshots before and after each state change of a session, from which an undo is computed."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

_MOST = 200
"""Maximum number of pairs. An undo over older ones is refused."""

_MOST_SPANS = 50
"""Maximum number of spans of a pair. More are joined."""

_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
"""Linux's CLOCK_REALTIME_COARSE, which Python does not name. Some file systems use this clock, which advances in steps of
milliseconds; others use the usual one, which is ahead of it."""

_APART = 50_000_000
"""Nanoseconds by which two clocks may differ at the end of a span that they measure together; more is a clock that was set."""

_STEP = 10_000_000
"""Nanoseconds of the longest step of the clock of files."""


class Instant(NamedTuple):
    """A time on two clocks, in nanoseconds.

    Attributes:
        files: By the clock of file systems, which can be set.
        steady: By the monotonic clock.
    """

    files: int
    steady: int

    @classmethod
    def now(cls) -> Instant:
        """Return the current time, with no file change later."""
        return cls(time.time_ns(), time.monotonic_ns())

    @classmethod
    def before_changes(cls) -> Instant:
        """Return the current time, with no file change earlier from now on."""
        return cls(files_time(), time.monotonic_ns())

    def after_changes(self) -> Instant:
        """Return an upper bound of the times of files that changed before this instant, which `before_changes` made.

        Since Linux 6.13, a file whose times were read gets a finer time than the coarse clock's (multigrain timestamps).
        """
        return self._replace(files=self.files + _STEP)


class Span(NamedTuple):
    """The time interval in which code ran; the end may be unknown."""

    began: Instant
    ended: Instant | None = None

    def times(self) -> list[tuple[int, int]]:
        """Return the intervals of file changes: two on the files' clock if that was set meanwhile.

        Changes before the clock was set are measured forward from the start on the old clock. Later changes are measured
        backward from the end on the new clock.
        """
        until = self.ended or Instant.now()
        took = until.steady - self.began.steady
        last = sys.maxsize if self.ended is None else self.ended.files
        if abs(until.files - self.began.files - took) < _APART:
            return [(self.began.files, last)]
        return [(self.began.files, self.began.files + took + _STEP), (until.files - took - _STEP, last)]


class Pair(NamedTuple):
    """One state change of a session, usually by a cell.

    Attributes:
        state: The resulting state.
        before: The files before it, if known.
        after: The files after it, if known.
        spans: When it took place.
    """

    state: int
    before: Any
    after: Any = None
    spans: tuple[Span, ...] = ()


@dataclass
class Pairs:
    """The pairs that led to the current state. Each `before` is the previous `after` plus external changes.

    Snapshots are this host's, or descriptions of an earlier host's.

    Attributes:
        origin: The state before the first pair.
        pairs: The pairs, oldest first.
        latest: The current state's files at the last look, if known.
        release: Called with a snapshot that is no longer needed.
    """

    origin: int = 0
    pairs: list[Pair] = field(default_factory=list)
    latest: Any = None
    release: Callable[[Any], None] = lambda _: None

    def __reduce__(self) -> tuple[Any, ...]:
        return Pairs, (self.origin, self.pairs, self.latest)

    @property
    def held(self) -> Iterator[Any]:
        """All snapshots, each as often as it is referenced."""
        found = (one for pair in self.pairs for one in (pair.before, pair.after))
        return (one for one in (*found, self.latest) if one is not None)

    def begin(self, state: int, at: Instant) -> None:
        """Begin a change to another state."""
        self.pairs.append(Pair(state, self.latest, None, (Span(at),)))
        self.latest = None
        if len(self.pairs) > _MOST:
            oldest = self.pairs.pop(0)
            self.origin = oldest.state
            self._release([oldest.before, oldest.after])

    def unbegin(self) -> None:
        """Revert `begin`."""
        pair = self.pairs.pop()
        self.latest = pair.before

    def end(self, at: Instant) -> None:
        """Record the end of the last change, unless recorded."""
        if self.pairs and (span := self.pairs[-1].spans[-1]).ended is None:
            self.pairs[-1] = self.pairs[-1]._replace(spans=(*self.pairs[-1].spans[:-1], span._replace(ended=at)))

    def go_on(self) -> None:
        """Record that tasks continue the last change."""
        if self.pairs:
            *spans, last = self.pairs[-1].spans
            self.pairs[-1] = self.pairs[-1]._replace(spans=(*spans, last._replace(ended=None)))

    def look(self, files: Any, *, tasks: bool = False) -> None:
        """Record the current state's files, and take ownership of them.

        Args:
            files: The snapshot; None if the last one is outdated.
            tasks: Whether tasks may have changed files since the last look. Such changes belong to the last state change.
        """
        old = [self.latest]
        if files is not None and self.pairs and (tasks or self.pairs[-1].after is None):
            old.append(self.pairs[-1].after)
            self.pairs[-1] = self.pairs[-1]._replace(after=files)
        self.latest = files
        self._release(old)

    def after(self, state: int) -> list[Pair] | None:
        """Return the pairs since a state; None if unknown.

        States are found by position, not by number: a restored state can follow a newer fresh one.
        """
        for place in (place for place in range(len(self.pairs), 0, -1) if self.pairs[place - 1].state == state):
            return self.pairs[place:]
        return [*self.pairs] if state == self.origin else None

    def clear(self, state: int) -> None:
        """Start in a state without pairs."""
        self.origin, self.latest, old = state, None, [*self.held]
        self.pairs = []
        self._release(old)

    def go_to(self, state: int, cut: int, at: Instant, branch: Iterable[Pair] = (), *, tasks: bool = False) -> None:
        """Switch to another state, with or without a restore of files.

        Args:
            state: The state.
            cut: The last common state.
            at: When the switch began.
            branch: The pairs from there to the state, if another session's. Their snapshots change owner.
            tasks: Whether tasks run in that state, and may change files before the next look.
        """
        old, known = [*self.held], self.knows(state)
        left = [*takewhile(lambda pair: pair.state > cut, reversed(self.pairs))][::-1]
        self.pairs = self.pairs[: len(self.pairs) - len(left)]
        if branch := [*branch]:
            if (last := branch[-1]).after is None:  # the current files count as `after`, including changes by the switch
                branch[-1] = last._replace(spans=(*last.spans, Span(at)))
            self.pairs += branch
            self.origin = min(self.origin, cut)
        elif not (known or self.pairs or self.latest):
            self.origin = state  # nothing is known of the previous state
            if tasks:
                self.pairs.append(Pair(state, None, None, (Span(at),)))
        elif state != cut or tasks or not known:
            self.pairs.append(Pair(state, left[0].before if left else self.latest, None, (Span(at),)))
        self.latest = None
        self._release(old)

    def knows(self, state: int) -> bool:
        """Return whether the pairs lead from or to a state."""
        return state == self.origin or any(pair.state == state for pair in self.pairs)

    def become(self, other: Pairs) -> None:
        """Continue with other pairs, and take ownership of their snapshots. The current files must be looked at next."""
        old, self.origin, self.pairs, self.latest = [*self.held], other.origin, [*other.pairs], None
        self._release([*old, other.latest])

    def idle(self, needed: Container[int]) -> list[int]:
        """Return the states between two pairs without external changes, except the needed ones."""
        return [
            one.state
            for one, two in itertools.pairwise(self.pairs)
            if one.state not in needed and one.after is not None and is_same(one.after, two.before)
        ]

    def merge(self, states: Container[int]) -> None:
        """Join the pairs before and after some states."""
        joined, old = list[Pair](), [*self.held]
        for pair in self.pairs:
            if joined and joined[-1].state in states:
                one = joined.pop()
                spans = (*one.spans, *pair.spans)
                if len(spans) > _MOST_SPANS:
                    spans = (Span(spans[0].began, spans[-1].ended),)
                joined.append(Pair(pair.state, one.before, pair.after, spans))
            else:
                joined.append(pair)
        self.pairs = joined
        self._release(old)

    def _release(self, old: Iterable[Any]) -> None:
        """Release old snapshots that are no longer needed."""
        needed = {id(one) for one in self.held}
        for one in {id(one): one for one in old if one is not None}.values():
            if id(one) not in needed:
                self.release(one)

    def copied(self, change: Callable[[Any], Any]) -> Pairs:
        """Return a copy with other snapshots, such as descriptions."""
        known: dict[int, Any] = {}

        def changed(one: Any) -> Any:
            if one is None:
                return None
            if id(one) not in known:
                known[id(one)] = change(one)
            return known[id(one)]

        pairs = [pair._replace(before=changed(pair.before), after=changed(pair.after)) for pair in self.pairs]
        return replace(self, pairs=pairs, latest=changed(self.latest), release=lambda _: None)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two snapshots have the same content, by a quick check."""
    if one is other or one is None or other is None:
        return one is other
    root = getattr(one, "root", None)
    return one == other if root is None else root is other.root


def files_time() -> int:
    """Return a time in nanoseconds, not later than any file change from now on."""
    return time.clock_gettime_ns(_COARSE)
