"""Messages between a host and its turnkeys: their largest size, and what a turnkey says."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from cellblock.errors import ProtocolError
from cellblock.model.overview import RequestRecord
from cellblock.model.untrusted import parse_json
from cellblock.wire.codec import Most, decoder

MESSAGE = 128 * 1024
"""The largest message in bytes."""
REPORTED = 50
"""Requests in one report: a message has room for more."""
SHOWN = 500
"""Characters of a method or path in a report."""
_HEAD = 64 * 1024  # as EgressLimits.header_bytes


@dataclass(frozen=True, slots=True)
class Reported:
    """A request in a report: as `RequestRecord`, with limits.

    Attributes:
        ms: Time in milliseconds since the epoch.
    """

    ms: Annotated[int, Most(2**47)]  # before the year 9999
    method: Annotated[str, Most(SHOWN)]
    host: str
    path: Annotated[str, Most(SHOWN)]
    status: Annotated[int, Most(999)]
    bytes: Annotated[int, Most(2**62)]
    secrets: tuple[str, ...]
    decision: Literal["allowed", "refused"]


@dataclass(frozen=True, slots=True)
class Log:
    """A report about requests."""

    log: Annotated[tuple[Reported, ...], Most(REPORTED)]

    @property
    def records(self) -> list[RequestRecord]:
        """The requests as records."""
        return [
            RequestRecord(one.ms / 1000, one.method, one.host, one.path, one.status, one.bytes, one.secrets, one.decision)
            for one in self.log
        ]


@dataclass(frozen=True, slots=True)
class Ended:
    """A report about an end.

    Attributes:
        ended: The number of a connection that has ended, or of a change that was made.
    """

    ended: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the present request of a connection.

    Attributes:
        id: The number of the connection.
        url: The target, with placeholders.
        secrets: The names of the secrets that the request would contain.
    """

    id: int
    method: Annotated[str, Most(_HEAD)]
    url: Annotated[str, Most(_HEAD)]
    secrets: tuple[str, ...]


Report: TypeAlias = Log | Ended | Question
"""A message of a turnkey."""

_KINDS: dict[str, type[Report]] = {"log": Log, "ended": Ended, "method": Question}
"""The kind of message by a field that no other kind has."""


def parse_report(data: bytes, hosts: Set[str], names: Set[str]) -> Report:
    """Parse a message of a turnkey. A server may control the turnkey.

    Args:
        data: The message.
        hosts: The hosts of the session's secrets and opened connections as ``host:port``.
        names: The names of the secrets.

    Raises:
        InvalidInputError: The message is not JSON.
        ProtocolError: A value has the wrong type, or is unknown or too long.
    """
    said = parse_json(data, what="a message of a turnkey")
    kind = next((kind for field, kind in _KINDS.items() if field in said), None) if isinstance(said, dict) else None
    if kind is None:
        raise ProtocolError("a turnkey sent an unknown message")
    report: Report = decoder(kind)(said)
    if isinstance(report, Log):
        for one in report.log:
            _check(one.method, one.path, one.secrets, names)
            if one.host not in hosts:
                raise ProtocolError("a turnkey reported a host that the session does not have")
    elif isinstance(report, Question):
        _check(report.method, report.url, report.secrets, names)
    return report


def _check(method: str, path: str, secrets: tuple[str, ...], names: Set[str]) -> None:
    if len(set(secrets)) < len(secrets) or not set(secrets) <= names:
        raise ProtocolError("a turnkey reported a secret that the session does not have")
    if not all(text.isascii() and text.isprintable() for text in (method, path)):
        raise ProtocolError("a turnkey reported a request that no HTTP parser accepts")
