"""Canonical names: one form for each host, for every protocol and spelling.

Every decision uses only the result of these functions. Ambiguous names are refused here, so that the rules and the resolver
can never disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address
Host = str | Address
"""A DNS name in lower case, in ASCII, without a trailing dot; or an address."""

_MAX_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*", re.ASCII)
# A last label by which a host "ends in a number" (URL standard): it is an IPv4 address or invalid. No top-level domain is one.
_NUMERIC = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class BadNameError(ValueError):
    """A host or port that is invalid or ambiguous. The message says why."""


class BadTargetError(BadNameError):
    """A requested host without a canonical form.

    Attributes:
        named: The host as the client sent it, with undecoded bytes escaped.
    """

    def __init__(self, message: str, named: str) -> None:
        super().__init__(message)
        self.named = named


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a connection, in canonical form.

    Attributes:
        host: A canonical name, or an address.
        port: Its TCP port.
    """

    host: Host
    port: int

    def __str__(self) -> str:
        return f"{host_text(self.host)}:{self.port}"


def canonical_host(text: str) -> Host:
    """Return the canonical form of a host.

    International names become ASCII by UTS 46 and IDNA 2008 (`idna`; the standard library only has IDNA 2003, which maps some
    names to other hosts than today's clients do). IPv4 addresses are read as in the C library, in one to four parts, decimal,
    octal or hexadecimal. An IPv4-mapped IPv6 address is the IPv4 address that it reaches.

    Args:
        text: A name or an address; IPv6 with or without brackets.

    Returns:
        A name or an address. The function is idempotent.

    Raises:
        BadNameError: It is not a host, or is ambiguous.
    """
    if len(text) > _MAX_NAME + 3:
        raise BadNameError("the host name is too long")
    if text.startswith("[") and text.endswith("]"):
        return _ipv6(text[1:-1])
    if ":" in text:
        return _ipv6(text)
    name = _folded(text).removesuffix(".")
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return _ipv4(labels)
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadNameError("it is not a valid host name")
    return name


def unmapped(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, and any other address unchanged, without its zone."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address


def parse_port(text: str) -> int:
    """Parse a port number.

    Raises:
        BadNameError: It is not a valid port.
    """
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise BadNameError("the port is not a number from 1 to 65535")
    return int(text)


def parse_authority(text: str, default_port: int | None = None) -> Target:
    """Parse the ``host:port`` of a request.

    Args:
        text: The text from a request line or a Host header.
        default_port: The default port; without it, a port is required.

    Returns:
        The target in canonical form.

    Raises:
        BadNameError: It is not a host and a port, or is ambiguous.
    """
    if "@" in text:
        raise BadNameError("user information before a host name is not allowed")
    host, port = split_port(text)
    if port is None:
        if default_port is None:
            raise BadNameError("the port is missing")
        return Target(canonical_host(host), default_port)
    return Target(canonical_host(host), parse_port(port))


def split_port(text: str) -> tuple[str, str | None]:
    """Split ``host:port`` without validation. An IPv6 address must be in brackets."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadNameError("the brackets of the IPv6 address do not match")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = text.partition(":")
    if ":" in port:
        raise BadNameError("it has more than one colon (an IPv6 address needs brackets)")
    return host, port if colon else None


def host_text(host: Host) -> str:
    """Return a host in the form that precedes a port: IPv6 in brackets."""
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host)


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else _ascii(text)


def _ascii(text: str) -> str:
    import idna  # its tables are large, and most sessions never name such a host

    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise BadNameError("it is not a valid international host name") from error


def _ipv4(labels: list[str]) -> IPv4Address:
    if len(labels) > 4 or not all(_NUMBER.fullmatch(label) for label in labels):
        raise BadNameError("it is not a valid IPv4 address")
    *leading, last = (_number(label) for label in labels)
    # The last part fills all remaining bytes: 127.1 is 127.0.0.1.
    if any(part > 255 for part in leading) or last >= 256 ** (4 - len(leading)):
        raise BadNameError("it is not a valid IPv4 address")
    return IPv4Address(last + sum(part << 8 * (3 - index) for index, part in enumerate(leading)))


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    return int(text, 8) if text.startswith("0") else int(text)


def _ipv6(text: str) -> Address:
    if "%" in text:
        raise BadNameError("an IPv6 zone is not allowed")
    try:
        return unmapped(IPv6Address(text))
    except ValueError as error:
        raise BadNameError("it is not a valid IPv6 address") from error
