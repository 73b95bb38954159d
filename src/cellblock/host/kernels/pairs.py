"""The files of a session before and after each change of its state: pairs of snapshots, from which an undo is computed."""

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
    """A moment by two clocks, in nanoseconds.

    Attributes:
        files: By the clock of file systems, which can be set while the session lives.
        steady: By a clock that nobody can set.
    """

    files: int
    steady: int

    @classmethod
    def now(cls) -> Instant:
        """Return the present moment: no file was changed later."""
        return cls(time.time_ns(), time.monotonic_ns())

    @classmethod
    def before_changes(cls) -> Instant:
        """Return the present moment: no file is changed earlier from now on."""
        return cls(files_time(), time.monotonic_ns())


class Span(NamedTuple):
    """When code ran: start, and end if it is known."""

    began: Instant
    ended: Instant | None = None

    def times(self) -> list[tuple[int, int]]:
        """Return when files were changed in it: two spans of the files' clock if that was set in between.

        Changes before the clock was set have times of the old clock, counted from the beginning; later ones have times of the
        new clock, counted back from the end.
        """
        until = self.ended or Instant.now()
        took = until.steady - self.began.steady
        last = sys.maxsize if self.ended is None else self.ended.files
        if abs(until.files - self.began.files - took) < _APART:
            return [(self.began.files, last)]
        return [(self.began.files, self.began.files + took + _STEP), (until.files - took - _STEP, last)]


class Pair(NamedTuple):
    """One change of a session's state, mostly by a cell.

    Attributes:
        state: The state that it led to.
        before: The files before it; None if they are not known.
        after: The files after it; None if they are not known.
        spans: When it took place.
    """

    state: int
    before: Any
    after: Any = None
    spans: tuple[Span, ...] = ()


@dataclass
class Pairs:
    """The pairs that led to the present state. `before` of each is `after` of the last one, and what others have saved since.

    Snapshots are those of this host, or descriptions of an earlier one's.

    Attributes:
        origin: The state before the first one.
        pairs: The pairs, oldest first.
        latest: The files of the present state when they were last looked at; None if that is not known.
        release: Called with a snapshot that is no longer needed.
    """

    origin: int = 0
    pairs: list[Pair] = field(default_factory=list)
    latest: Any = None
    release: Callable[[Any], None] = lambda _: None

    @property
    def held(self) -> Iterator[Any]:
        """All snapshots, each as often as it is needed."""
        found = (one for pair in self.pairs for one in (pair.before, pair.after))
        return (one for one in (*found, self.latest) if one is not None)

    def begin(self, state: int, at: Instant) -> None:
        """Begin a change that leads to another state."""
        self.pairs.append(Pair(state, self.latest, None, (Span(at),)))
        self.latest = None
        if len(self.pairs) > _MOST:
            oldest = self.pairs.pop(0)
            self.origin = oldest.state
            self._release([oldest.before, oldest.after])

    def unbegin(self) -> None:
        """Undo `begin`."""
        pair = self.pairs.pop()
        self.latest = pair.before

    def end(self, at: Instant) -> None:
        """Record that the last change is over, if that is not recorded."""
        if self.pairs and (span := self.pairs[-1].spans[-1]).ended is None:
            self.pairs[-1] = self.pairs[-1]._replace(spans=(*self.pairs[-1].spans[:-1], span._replace(ended=at)))

    def go_on(self) -> None:
        """Record that the last change goes on, by tasks."""
        if self.pairs:
            *spans, last = self.pairs[-1].spans
            self.pairs[-1] = self.pairs[-1]._replace(spans=(*spans, last._replace(ended=None)))

    def look(self, files: Any, *, tasks: bool = False) -> None:
        """Record the files of the present state, which this owns from now on.

        Args:
            files: The snapshot; None if the last one is no longer that of the present state.
            tasks: Whether tasks may have changed them since the last look: then that is the last change's work.
        """
        old = [self.latest]
        if files is not None and self.pairs and (tasks or self.pairs[-1].after is None):
            old.append(self.pairs[-1].after)
            self.pairs[-1] = self.pairs[-1]._replace(after=files)
        self.latest = files
        self._release(old)

    def after(self, state: int) -> list[Pair] | None:
        """Return the pairs since a state; None if they are not known.

        States are found by their place, not by their number: a restored one can come after a fresh one that is newer.
        """
        for place in (place for place in range(len(self.pairs), 0, -1) if self.pairs[place - 1].state == state):
            return self.pairs[place:]
        return [*self.pairs] if state == self.origin else None

    def clear(self, state: int) -> None:
        """Start anew in a state."""
        self.origin, self.latest, old = state, None, [*self.held]
        self.pairs = []
        self._release(old)

    def go_to(self, state: int, cut: int, at: Instant, branch: Iterable[Pair] = (), *, tasks: bool = False) -> None:
        """Go to another state, whose files were brought back or not.

        Args:
            state: The state.
            cut: The last state that both have in common.
            at: When this began.
            branch: The pairs from there to the state, if they are another session's; this owns their snapshots.
            tasks: Whether tasks go on there, and change files before these are looked at.
        """
        old, known = [*self.held], self.knows(state)
        left = [*takewhile(lambda pair: pair.state > cut, reversed(self.pairs))][::-1]
        self.pairs = self.pairs[: len(self.pairs) - len(left)]
        if branch := [*branch]:
            if (last := branch[-1]).after is None:  # the present files count as those after it, also what going there writes
                branch[-1] = last._replace(spans=(*last.spans, Span(at)))
            self.pairs += branch
            self.origin = min(self.origin, cut)
        elif not (known or self.pairs or self.latest):
            self.origin = state  # nothing is known of the state before
            if tasks:
                self.pairs.append(Pair(state, None, None, (Span(at),)))
        elif state != cut or tasks or not known:
            self.pairs.append(Pair(state, left[0].before if left else self.latest, None, (Span(at),)))
        self.latest = None
        self._release(old)

    def knows(self, state: int) -> bool:
        """Whether the pairs lead from or to a state."""
        return state == self.origin or any(pair.state == state for pair in self.pairs)

    def become(self, other: Pairs) -> None:
        """Continue with other pairs, whose snapshots this owns from now on. The present files are to be looked at."""
        old, self.origin, self.pairs, self.latest = [*self.held], other.origin, [*other.pairs], None
        self._release([*old, other.latest])

    def idle(self, needed: Container[int]) -> list[int]:
        """Return the states between two pairs in which nobody has saved anything, except some that are needed."""
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
        """Release snapshots that this has held and that are no longer needed."""
        needed = {id(one) for one in self.held}
        for one in {id(one): one for one in old if one is not None}.values():
            if id(one) not in needed:
                self.release(one)

    def copied(self, change: Callable[[Any], Any]) -> Pairs:
        """Return the same with other snapshots, such as their descriptions."""
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
    """Whether two snapshots have the same content, as far as that shows at once."""
    if one is other or one is None or other is None:
        return one is other
    root = getattr(one, "root", None)
    return one == other if root is None else root is other.root


def files_time() -> int:
    """Return a time, in nanoseconds, not later than the time of any file that is changed from now on."""
    return time.clock_gettime_ns(_COARSE)
