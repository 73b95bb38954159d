"""Request lines: which HTTP requests a host gets. Pure data, and decisions about canonical hosts and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from cellblock.common.glob import MAX_PATTERN, Glob
from cellblock.errors import InvalidInputError, shown
from cellblock.walls.egress.names import BadNameError, Host, Target, canonical_host, host_text, parse_port, split_port
from cellblock.walls.egress.paths import loosely
from cellblock.walls.egress.rules import DEFAULT_PORTS

Outcome = Literal["allow", "ask", "deny"]

WEBSOCKET = "WEBSOCKET"
"""The method of a line, and of a request that opens a WebSocket."""
MOST = 200
"""Lines of one session."""
METHOD = re.compile(r"[A-Z][A-Z-]{0,30}", re.ASCII)
_NEVER = ("CONNECT", "TRACE")
_SHOWN = 8
_EXAMPLE = "'GET api.example.org/repos/**', 'ask POST api.example.org/issues' or 'deny * api.example.org/admin/**'"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The part of a request that lines decide about.

    Attributes:
        target: The host and the port.
        method: The method in capitals; `WEBSOCKET` for a request that opens one.
        paths: The readings of the path (`paths.readings`).
    """

    target: Target
    method: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A line such as ``ask POST api.example.org/repos/*/issues``.

    Attributes:
        outcome: The decision about requests that match.
        method: The method; ``*`` for all but `WEBSOCKET`. ``GET`` includes ``HEAD``.
        host: The host, in canonical form.
        port: The port; None for 80 and 443.
        path: A pattern of paths; ``*`` stops at a slash, ``**`` does not.
    """

    outcome: Outcome
    method: str
    host: Host
    port: int | None
    path: str

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse a line.

        Args:
            text: ``METHOD host[:port]/path``, perhaps after ``ask`` or ``deny``.

        Raises:
            InvalidInputError: The line is invalid. The message repeats it.
        """
        try:
            if not isinstance(text, str) or len(text) > MAX_PATTERN:
                raise BadNameError("it is not a text, or too long")
            return cls._parse(text)
        except BadNameError as error:
            raise InvalidInputError(f"The request line {shown(text)} is wrong: {error}. Write {_EXAMPLE}.") from None

    @classmethod
    def _parse(cls, text: str) -> Self:
        outcome: Outcome = "allow"
        first, _, rest = text.strip().partition(" ")
        if first in ("ask", "deny"):
            outcome = "ask" if first == "ask" else "deny"
            text = rest
        method, _, place = text.strip().partition(" ")
        place = place.lstrip()  # its path can contain blanks
        if not place or " " in place.partition("/")[0]:
            raise BadNameError("it needs a method and a host with a path")
        if method != "*" and not METHOD.fullmatch(method):
            raise BadNameError("the method must be in capitals, or *")
        if method in _NEVER:
            raise BadNameError(f"the method {method} is never possible")
        if "://" in place:
            raise BadNameError("write a host and a path, not a URL")
        authority, slash, rest = place.partition("/")
        if not slash:
            raise BadNameError("the path is missing; /** means every path")
        if "*" in authority:
            raise BadNameError("the host must be an exact name, without *")
        path = slash + rest
        if any(sign in path.replace("**", "*").replace("?", "") for sign in ("\\", "//", "#", "%")) or not path.isprintable():
            raise BadNameError("the path is a pattern of decoded paths, without //, \\, # and %")
        host, port = split_port(authority)
        return cls(outcome, method, canonical_host(host), None if port is None else parse_port(port), path)

    def covers(self, head: RequestHead) -> bool:
        """Return whether this line applies to a request. Lines that deny or ask apply to similar paths, too."""
        if self.host != head.target.host or not self._covers_port(head.target.port):
            return False
        glob = Glob.of(self.path, paths=True)
        if self.outcome == "allow":
            return self._covers_method(head.method) and all(glob.matches(path) for path in head.paths)
        if not self._covers_method(head.method) and not (head.method == WEBSOCKET and self.method in ("*", "GET")):
            return False
        similar = Glob.of(self.path.lower().rstrip("/") or "/", paths=True)
        return any(glob.matches(path) or similar.matches(loosely(path)) for path in head.paths)

    def _covers_port(self, port: int) -> bool:
        return port == self.port if self.port is not None else port in DEFAULT_PORTS

    def _covers_method(self, method: str) -> bool:
        if self.method == "*":
            return method != WEBSOCKET
        return self.method == method or (self.method, method) == ("GET", "HEAD")

    @property
    def authority(self) -> str:
        """The host, with its port if the line has one."""
        return host_text(self.host) if self.port is None else f"{host_text(self.host)}:{self.port}"

    def __str__(self) -> str:
        return f"{'' if self.outcome == 'allow' else f'{self.outcome} '}{self.method} {self.authority}{self.path}"


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a session. ``deny`` overrides ``ask``, which overrides the others."""

    lines: tuple[RequestLine, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Parse lines.

        Raises:
            InvalidInputError: A line is invalid, or there are too many.
        """
        if isinstance(texts, str):
            raise InvalidInputError(f"Request lines are a list; write [{texts!r}].")
        if len(texts) > MOST:
            raise InvalidInputError(f"A session can have {MOST} request lines, not {len(texts)}.")
        return cls(tuple(dict.fromkeys(RequestLine.parse(text) for text in texts)))

    def names(self, host: Host) -> bool:
        """Return whether a line is about a host: then other requests to it are not allowed."""
        return any(line.host == host for line in self.lines)

    def judge(self, head: RequestHead) -> Outcome | None:
        """Return the decision about a request; None if no line applies."""
        found = {line.outcome for line in self.lines if line.covers(head)}
        outcomes: tuple[Outcome, ...] = ("deny", "ask", "allow")
        return next((outcome for outcome in outcomes if outcome in found), None)

    def allowed(self, target: Target) -> str:
        """Describe the requests that are allowed to a target; empty if none."""
        about = [line for line in self.lines if line.host == target.host and line.outcome != "deny"]
        texts = [f"{line.method} {line.path}{' (after a question)' * (line.outcome == 'ask')}" for line in about]
        return ", ".join(texts[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")

    @property
    def authorities(self) -> tuple[str, ...]:
        """The hosts that lines are about, as ``host:port`` for each port."""
        return tuple(dict.fromkeys(at for line in self.lines for at in authorities(line.host, line.port)))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns that allow the hosts of lines that do not deny."""
        return tuple(dict.fromkeys(line.authority for line in self.lines if line.outcome != "deny"))


def authorities(host: Host, port: int | None) -> Iterable[str]:
    """Return a host as ``host:port``, once for each port that is meant."""
    return [str(Target(host, one)) for one in (DEFAULT_PORTS if port is None else (port,))]
