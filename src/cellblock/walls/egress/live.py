"""The rules about hosts of a running sandbox, which all of its sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from cellblock.errors import ConflictError, InvalidInputError, StateError, did_you_mean
from cellblock.walls.egress.lines import Lines
from cellblock.walls.egress.rules import Rule, Rules
from cellblock.walls.sandbox.narrowing import Hosts

if TYPE_CHECKING:
    from cellblock.walls.sandbox.policy import Network

JudgeAgain: TypeAlias = Callable[[bool], list[asyncio.Task[Any]]]
"""Applies changed rules to the connections and questions of one proxy, or resets all connections (True). Returns the tasks of
the reset connections, which end soon."""

OnChange: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Records a change of the rules, before it takes effect."""

MAX_LINES = 1000
"""Lines that a changed network may have: each connection is compared with all of them."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The rules about hosts between two changes. A decision uses one object, so it never mixes two states.

    Attributes:
        allow: The allowed hosts, as canonical patterns.
        deny: The denied hosts, likewise.
        revision: The number of changes before.
        rules: These lists, parsed.
        ask: Whether a person is asked about other hosts.
        closed: Whether hosts can no longer be added (`LiveNetwork.close_to`).
        lines: The request lines.
    """

    allow: tuple[str, ...]
    deny: tuple[str, ...]
    revision: int
    rules: Rules
    ask: bool = False
    closed: bool = False
    lines: Lines = field(default_factory=Lines)

    @property
    def http(self) -> tuple[str, ...]:
        """The request lines as canonical texts."""
        return tuple(map(str, self.lines.lines))

    def stored(self) -> dict[str, Any]:
        """Return the arguments for `LiveNetwork.resume`."""
        lists = {"allow": [*self.allow], "deny": [*self.deny], "http": [*self.http]}
        return {**lists, "revision": self.revision, "closed": self.closed}


class LiveNetwork:
    """The rules of one sandbox. Changes apply to all sessions in it at once. Hosts that the policy denies stay denied.

    Attributes:
        state: The current state.
        keep: Stores a state, as the arguments of `resume`, before it is used.
        judged: Whether rules or broader policies decide about requests: then not every host can be allowed, as with lines.
    """

    def __init__(self, rules: Rules, *, ask: bool = True, ceiling: Network | None = None, lines: Lines | None = None) -> None:
        """Begin with the rules of a policy.

        Args:
            rules: The rules.
            ask: Whether a person, if there is one, is asked about other hosts.
            ceiling: The policy that no change can exceed; None without one.
            lines: The request lines.
        """
        allow, deny = _texts(rules.allowed), _texts(rules.denied)
        self.state = NetworkState(allow, deny, 0, rules, ask, lines=lines or Lines())
        self.keep: Callable[[Mapping[str, Any]], object] = lambda _: None
        self.judged = False
        self._fixed = frozenset((*deny, *(str(line) for line in self.state.lines.lines if line.outcome == "deny")))
        self._ceiling = ceiling
        self._proxies: set[JudgeAgain] = set()
        self._turn = asyncio.Lock()

    @classmethod
    def of(cls, policy: Network, ceiling: Network | None = None) -> Self:
        """Return the rules of a policy.

        Raises:
            InvalidInputError: A pattern is invalid. The message names it.
        """
        rules = Rules.parse(policy.allow, policy.deny)
        return cls(rules, ask=policy.ask, ceiling=ceiling, lines=Lines.parse(policy.http))

    def join(self, judge_again: JudgeAgain) -> None:
        """Notify a proxy of changes from now on."""
        self._proxies.add(judge_again)

    def leave(self, judge_again: JudgeAgain) -> None:
        """Stop notifying a proxy. Idempotent."""
        self._proxies.discard(judge_again)

    def why_closed(self) -> str:
        """Return why no person can be asked; empty if one can."""
        return "the session's network was closed" if self.state.closed else ""

    def can_allow(self, pattern: str) -> bool:
        """Return whether a change could allow a pattern."""
        return not self.state.closed and self._is_within(pattern)

    def _is_within(self, pattern: str) -> bool:
        ceiling = self._ceiling
        return ceiling is None or ceiling.ask or Hosts(ceiling.allow).cover(pattern)

    def resume(
        self,
        allow: Sequence[str],
        deny: Sequence[str],
        revision: int,
        *,
        closed: bool = False,
        http: Sequence[str] | None = None,
    ) -> None:
        """Continue from a stored state, within a ceiling that may have changed.

        Args:
            allow: The allowed hosts.
            deny: The denied hosts.
            revision: The revision.
            closed: Whether hosts can no longer be added.
            http: The request lines; None for the policy's, because an earlier version stored the state.

        Raises:
            InvalidInputError: A pattern is invalid.
        """
        began = self.state
        rules = Rules.parse([line for line in allow if self._is_within(line)], [*began.deny, *deny])
        allow, deny = _texts(rules.allowed), _texts(rules.denied)
        rules = replace(rules, within=began.rules if closed else None)
        lines = began.lines if http is None else Lines.parse([*(one for one in began.http if one in self._fixed), *http])
        self.state = NetworkState(allow, deny, revision, rules, began.ask and not closed, closed, lines)

    async def change(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        http: Sequence[str] = (),
        remove: Sequence[str] = (),
        expect: int | None = None,
        record: OnChange | None = None,
    ) -> int:
        """Change the lists.

        Args:
            allow: Patterns to allow.
            deny: Patterns to deny.
            http: Request lines to add. Their hosts become allowed.
            remove: Lines of any list to remove. With the last line about a host, the host is removed, too.
            expect: The revision that the change is based on; None for any.
            record: Records the change before it takes effect.

        Returns:
            The number of connections that the change closed.

        Raises:
            ConflictError: The revision is another one. Nothing has changed.
            InvalidInputError: A pattern is invalid, exceeds the policy, or is not there to be removed.
            StateError: The network was closed, so nothing can be allowed.
        """
        async with self._turn:
            before = self.state
            if expect is not None and expect != before.revision:
                raise ConflictError(f"the network has revision {before.revision}, not {expect}: read it again, then decide")
            after = self._changed(before, Rules.parse(allow, deny), Lines.parse(http), *_removed(remove))
            if after is before:
                return 0
            if record is not None:
                lists = {"allow": allow, "deny": deny, "http": http, "remove": remove}
                await record({name: [*lines] for name, lines in lists.items() if lines} | {"revision": after.revision})
            self.keep(after.stored())
            return await self._use(after)

    async def close_to(self, patterns: Sequence[str]) -> None:
        """Restrict the network irreversibly to some of the allowed hosts. All connections end, and no one is asked.

        Raises:
            InvalidInputError: A pattern is invalid. Nothing has changed.
        """
        async with self._turn:
            before = self.state
            rules = Rules.parse(patterns, before.deny)
            allow = _texts(rules.allowed)
            rules = replace(rules, within=before.rules)
            closed = replace(before, allow=allow, revision=before.revision + 1, rules=rules, ask=False, closed=True)
            self.keep(closed.stored())
            await self._use(closed, all_connections=True)

    async def _use(self, state: NetworkState, *, all_connections: bool = False) -> int:
        self.state = state
        # All proxies of the sandbox are judged in this turn of the loop, so that no connection sees two states.
        cut = [task for judge_again in self._proxies for task in judge_again(all_connections)]
        if cut:
            await asyncio.wait(cut)
        return len(cut)

    def _changed(
        self, before: NetworkState, added: Rules, lines: Lines, removed: tuple[Rule, ...], less: Lines
    ) -> NetworkState:
        gone = {*_texts(removed), *map(str, less.lines)}
        self._check_removed(before, gone)
        allowed = _texts(added.allowed)
        if both := gone & {*allowed, *_texts(added.denied), *map(str, lines.lines)}:
            raise InvalidInputError(f"{min(both)!r} is both added and removed: leave one of them out")
        after = Lines.parse([*(line for line in before.http if line not in gone), *map(str, lines.lines)])
        # As for a session that is made with these lines.
        allowed += tuple(host for host in lines.patterns if not Hosts((*before.allow, *allowed)).cover(host))
        gone |= {*_hosts_without_lines(less, after)} - {*allowed}
        new = [line for line in allowed if line not in before.allow]
        if before.closed and (new or any(line.outcome != "deny" for line in lines.lines)):
            raise StateError("the network was closed permanently (close_egress), so nothing can be allowed")
        for line in new:
            if not self._is_within(line):
                raise InvalidInputError(f"{line!r} is not allowed by the host's policy, which can only be narrowed")
        allow = (*(line for line in before.allow if line not in gone), *new)
        kept = tuple(line for line in before.deny if line not in gone or line in self._fixed)
        deny = kept + tuple(line for line in _texts(added.denied) if line not in kept)
        if (allow, deny, after) == (before.allow, before.deny, before.lines):
            return before
        if self.judged or after.lines:
            check_open_hosts(allow)
        if len(allow) + len(deny) > MAX_LINES:
            raise InvalidInputError(f"a network has at most {MAX_LINES} lines, not {len(allow) + len(deny)}: remove some")
        rules = replace(Rules.parse(allow, deny), within=before.rules.within)
        return replace(before, allow=allow, deny=deny, lines=after, revision=before.revision + 1, rules=rules)

    def _check_removed(self, before: NetworkState, gone: Iterable[str]) -> None:
        known = {*before.allow, *before.deny, *before.http}
        for line in gone:
            if line not in known:
                raise InvalidInputError(f"no line {line[:_SHOWN]!r} is in the network's lists{did_you_mean(line, known)}")
            if line in self._fixed and line not in before.allow:
                raise InvalidInputError(
                    f"the policy denies {line!r}, so it cannot be removed: make a session with another policy"
                )


def _removed(lines: Sequence[str]) -> tuple[tuple[Rule, ...], Lines]:
    """Return the patterns and the request lines to remove. Only request lines contain a slash."""
    if isinstance(lines, str):
        raise InvalidInputError(f"The lines to remove are a list; write [{lines!r}].")
    hosts = [line for line in lines if not (isinstance(line, str) and "/" in line)]
    return Rules.parse(hosts).allowed, Lines.parse([line for line in lines if line not in hosts])


def _hosts_without_lines(removed: Lines, left: Lines) -> tuple[str, ...]:
    """Return the patterns of hosts that lose their last request line: without one, all requests would be allowed."""
    return tuple(line.authority for line in removed.lines if not left.names(line.host))


def _texts(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, rules)))


def check_open_hosts(allow: Iterable[str]) -> None:
    """Check that no pattern allows every host: code could reach a host that lines are about by its address.

    Raises:
        InvalidInputError: One does.
    """
    for pattern in allow:
        if pattern.split(":")[0] == "*":
            raise InvalidInputError(
                f"the host {pattern!r} cannot be combined with request lines or rules of kind 'http': code could reach the "
                "same servers by their addresses. Name the hosts"
            )
