"""Messages between a host and its turnkeys: their largest size, and the reports of a turnkey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

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
class Report:
    """A message of a turnkey.

    Attributes:
        log: Requests.
        ended: The number of a connection that has ended, or of a change that was made; or None.
    """

    log: Annotated[tuple[Reported, ...], Most(REPORTED)] = ()
    ended: int | None = None


def parse_report(data: bytes, hosts: frozenset[str], names: set[str]) -> tuple[list[RequestRecord], int | None]:
    """Parse a message of a turnkey. A server may control the turnkey.

    Args:
        data: The message.
        hosts: The hosts of the session's secrets as ``host:port``.
        names: The names of the secrets.

    Returns:
        The reported requests, and the number of a connection or change.

    Raises:
        InvalidInputError: The message is not JSON.
        ProtocolError: A value has the wrong type, or is unknown or too long.
    """
    report: Report = decoder(Report)(parse_json(data, what="a message of a turnkey"))
    for one in report.log:
        if one.host not in hosts or len(set(one.secrets)) < len(one.secrets) or not names.issuperset(one.secrets):
            raise ProtocolError("a turnkey reported a host or secret that the session does not have")
        if not all(text.isascii() and text.isprintable() for text in (one.method, one.path)):
            raise ProtocolError("a turnkey reported a request that no HTTP parser accepts")
    return [_record(one) for one in report.log], report.ended


def _record(one: Reported) -> RequestRecord:
    return RequestRecord(one.ms / 1000, one.method, one.host, one.path, one.status, one.bytes, one.secrets, one.decision)
