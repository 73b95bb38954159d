"""Allow and deny rules: patterns, refusals, and decisions about canonical names and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from cellblock.errors import InvalidInputError, allowing
from cellblock.walls.egress.addresses import Objection
from cellblock.walls.egress.names import BadNameError, Host, Target, canonical_host, host_text, parse_port, split_port

DEFAULT_PORTS = (80, 443)
PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target is refused.

    Attributes:
        reason: The reason, in words.
        rule_needed: The pattern that would allow it, if any.
    """

    reason: str
    rule_needed: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """A refused attempt, as data for an event and the session's log.

    Attributes:
        host: The canonical host, or else the client's text, escaped and shortened.
        port: The port; 0 if unknown.
        reason: The reason.
        rule_needed: The pattern that would allow it; None if the session cannot be given one.
        method: The HTTP method, or ``SOCKS5``.
    """

    host: str
    port: int
    reason: str
    rule_needed: str | None
    method: str

    @property
    def message(self) -> str:
        """One line for a person: what was refused, why, and how to allow it."""
        where = f"{self.host}:{self.port}" if self.port else self.host
        return f"egress to {where} denied: {self.reason}{self.remedy}"

    @property
    def remedy(self) -> str:
        """Advice to append to the reason; empty if no change could allow it."""
        return f"; to allow it: {allowing(self.rule_needed)}" if self.rule_needed else ""


class RefusedError(Exception):
    """A request that the proxy answers itself, before it hangs up.

    Attributes:
        status: The status of the answer.
        reason: The reason phrase, which is all that many clients show of a failed CONNECT.
        final: Whether a retry is useless.
    """

    def __init__(self, status: int, text: str, *, reason: str = "", final: bool = True) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason or HTTPStatus(status).phrase
        self.final = final


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of an allowlist or denylist.

    Attributes:
        host: A canonical name or address; None for every host.
        subdomains: Whether it means the subdomains of `host`, and not `host` itself.
        port: The port, or None.
        private: Whether the host may be in a private network.
    """

    host: Host | None
    subdomains: bool = False
    port: int | None = None
    private: bool = False

    @classmethod
    def parse(cls, pattern: str) -> Self:
        """Parse a pattern.

        Args:
            pattern: ``host``, ``*.host`` or ``*``, optionally with ``:port``, optionally followed by the word ``private``.

        Raises:
            InvalidInputError: The pattern is invalid. The message names it.
        """
        if not isinstance(pattern, str):
            raise InvalidInputError(f"An egress rule is text such as 'example.com:8443', not {pattern!r}.")
        try:
            return cls._parse(pattern)
        except BadNameError as error:
            raise InvalidInputError(
                f"The egress rule {pattern!r} is wrong: {error}. "
                "Write a host, not a URL: 'example.com', '*.example.com', 'example.com:8443', '10.0.0.5:5432'."
            ) from error

    @classmethod
    def _parse(cls, pattern: str) -> Self:
        text, *marks = pattern.split() or [""]
        if marks not in ([], [PRIVATE]):
            raise BadNameError(f"only the word '{PRIVATE}' may follow the host")
        if any(sign in text for sign in "/@?#"):
            raise BadNameError("it has more than a host and a port")
        host, port = (text, None) if text.count(":") > 1 and not text.startswith("[") else split_port(text)
        number = None if port is None else parse_port(port)
        if host == "*" or host.startswith("*."):
            if marks:
                raise BadNameError(f"'{PRIVATE}' needs the full name of one host, without a '*'")
            return cls(canonical_name(host[2:]) if host != "*" else None, host != "*", number)
        return cls(canonical_host(host), False, number, bool(marks))

    def names(self, host: Host) -> bool:
        """Return whether this rule applies to a host."""
        if self.subdomains:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return self.host is None or self.host == host

    def __str__(self) -> str:
        host = "*" if self.host is None else host_text(self.host)
        port = "" if self.port is None else f":{self.port}"
        return f"{'*.' if self.subdomains else ''}{host}{port}{f' {PRIVATE}' if self.private else ''}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules about hosts. A host needs a rule that allows it, and no rule that denies it.

    Attributes:
        allowed: A rule without a port means ports 80 and 443.
        denied: A rule without a port means every port.
        within: Rules that must allow it as well.
    """

    allowed: tuple[Rule, ...] = ()
    denied: tuple[Rule, ...] = ()
    within: Rules | None = None

    @classmethod
    def parse(cls, patterns: Sequence[str], denied: Sequence[str] = ()) -> Self:
        """Parse an allowlist and a denylist.

        Args:
            patterns: Allowed hosts: ``index.example``, ``*.example.com`` (its subdomains), ``*`` (every public host),
                ``example.com:8443``, ``10.0.0.5:5432``, ``git.corp.example private``.
            denied: Exceptions from these.

        Raises:
            InvalidInputError: A pattern is invalid. The message names it.
        """
        for given in (patterns, denied):
            if isinstance(given, str):
                raise InvalidInputError(f"Egress rules are a list of patterns; write [{given!r}].")
        rules = cls(_parse_all(patterns), _parse_all(denied))
        for rule in rules.denied:
            if rule.private:
                raise InvalidInputError(f"The egress rule '{rule}' denies: '{PRIVATE}' has no effect in it; leave it out.")
        return rules

    def judge(self, target: Target) -> Refusal | None:
        """Decide by name and port, before any lookup.

        Args:
            target: The target, in canonical form.

        Returns:
            The refusal, or None if the host may be looked up.
        """
        if refusal := self._denied(target) or (self.within and self.within.judge(target)):
            return refusal
        about = [rule for rule in self.allowed if rule.names(target.host)]
        if any(_covers(rule, target.port) for rule in about):
            return None
        if not about:
            return Refusal("no rule names this host", pattern(target))
        return Refusal(f"no rule for this host names port {target.port}", pattern(target))

    def judge_address(self, target: Target, reached: Target, found: Objection | None) -> Refusal | None:
        """Decide about one address of an allowed name.

        Args:
            target: The target as the client named it.
            reached: The candidate address.
            found: The objection to that address, if any.

        Returns:
            The refusal, or None if the address may be used.
        """
        if refusal := self._denied(reached) or (self.within and self.within.judge_address(target, reached, found)):
            return refusal
        if self.within is not None:
            return None  # these decide about addresses: nothing here widens them
        if found is None or any(rule.host == reached.host and _covers(rule, reached.port) for rule in self.allowed):
            return None
        marked = any(rule.private and rule.names(target.host) and _covers(rule, target.port) for rule in self.allowed)
        if found.private and marked:
            return None
        if target == reached:
            return Refusal(f"it is {found.what}", pattern(reached))
        needed = f"{pattern(target)} {PRIVATE}" if found.private else pattern(reached)
        return Refusal(f"it has the address {reached.host}, which is {found.what}", needed)

    def _denied(self, target: Target) -> Refusal | None:
        for rule in self.denied:
            if rule.names(target.host) and rule.port in (None, target.port):
                return Refusal(f"the rule '{rule}' denies it")
        return None


def canonical_name(text: str) -> str:
    """Return a canonical DNS name.

    Raises:
        BadNameError: It is not a valid host name, or it is an address.
    """
    host = canonical_host(text)
    if not isinstance(host, str):
        raise BadNameError("an address has no subdomains")
    return host


def pattern(target: Target) -> str:
    """Return the narrowest pattern that names a target."""
    return host_text(target.host) if target.port in DEFAULT_PORTS else str(target)


def _covers(rule: Rule, port: int) -> bool:
    return port == rule.port if rule.port is not None else port in DEFAULT_PORTS


def _parse_all(patterns: Sequence[str]) -> tuple[Rule, ...]:
    return tuple(Rule.parse(text) for text in patterns)
