"""Classifies addresses: special-purpose ones, and this machine's own."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from cellblock.walls.egress.names import Address, unmapped


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an address is refused unless a rule names it.

    Attributes:
        what: The kind of address, to follow the words "which is".
        private: Whether it is for private networks, so that a rule with ``private`` is enough.
    """

    what: str
    private: bool = False


# Our own tables, after IANA's registries of special-purpose addresses: what `ipaddress` calls global or private has changed
# between patch releases of Python, and a policy must not.
_IPV4 = [
    (IPv4Network(network), Objection(what, private))
    for network, what, private in (
        ("0.0.0.0/8", "unspecified", False),
        ("10.0.0.0/8", "private", True),
        ("100.64.0.0/10", "carrier-grade NAT", True),
        ("127.0.0.0/8", "loopback", False),
        ("168.63.129.16/32", "a cloud's metadata service", False),  # Azure's, at a public address
        ("169.254.169.254/32", "a cloud's metadata service", False),
        ("169.254.0.0/16", "link-local", False),
        ("172.16.0.0/12", "private", True),
        ("192.0.0.0/24", "reserved for protocols", False),  # includes Oracle's metadata service
        ("192.0.2.0/24", "reserved for documentation", False),
        ("192.88.99.0/24", "a 6to4 relay", False),
        ("192.168.0.0/16", "private", True),
        ("198.18.0.0/15", "reserved for benchmarks", False),
        ("198.51.100.0/24", "reserved for documentation", False),
        ("203.0.113.0/24", "reserved for documentation", False),
        ("224.0.0.0/4", "multicast", False),
        ("240.0.0.0/4", "reserved", False),
    )
]
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_IPV6 = [
    (IPv6Network(network), Objection(what, private))
    for network, what, private in (
        ("::/128", "unspecified", False),
        ("::1/128", "loopback", False),
        ("fc00::/7", "private", True),  # includes some clouds' metadata services: fd00:ec2::254, fd20:ce::254
        ("fe80::/10", "link-local", False),
        ("ff00::/8", "multicast", False),
        ("2001::/32", "a Teredo tunnel", False),
        ("2001::/23", "reserved for protocols", False),
        ("2001:db8::/32", "reserved for documentation", False),
        ("2002::/16", "a 6to4 tunnel", False),
        ("3fff::/20", "reserved for documentation", False),
    )
]
# Metadata services hold secrets: `private` is not enough, the rule must name the address.
_METADATA = {
    IPv4Address("100.100.100.200"),  # Alibaba, in the range of carriers
    IPv6Address("fd00:ec2::254"),  # Amazon
    IPv6Address("fd20:ce::254"),  # Google
    IPv6Address("fd00:42::42"),  # Scaleway
}
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_NOT_GLOBAL = Objection("reserved")
_OWN = Objection("an address of this machine")


def objection(address: Address) -> Objection | None:
    """Return the objection to an address; None for an ordinary public one.

    IPv6 addresses that contain an IPv4 address (mapped, NAT64, ISATAP) are judged by both. Teredo and 6to4, long obsolete, are
    always refused.
    """
    address = unmapped(address)
    if address in _METADATA:
        return Objection("a cloud's metadata service")
    if isinstance(address, IPv4Address):
        return next((found for network, found in _IPV4 if address in network), None)
    if address in _NAT64:
        return _carried(address, "NAT64")
    for network, found in _IPV6:
        if address in network:
            return found
    if address not in _GLOBAL_IPV6:
        return _NOT_GLOBAL
    return _carried(address, "ISATAP") if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP else None


def objection_to(address: Address) -> Objection | None:
    """Return the objection to an address on this machine; None if it is neither special nor the machine's own.

    Raises:
        OSError: This could not be determined.
    """
    found = objection(address)
    return own(address) or found if found is None or found.private else found


def own(address: Address) -> Objection | None:
    """Return an objection if an address is this machine's own.

    Linux is asked each time, by binding to the address, because a list of interfaces can become outdated. If the machine
    allows binding to foreign addresses (ip_nonlocal_bind), all count as its own, and are refused.
    """
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise
    return _OWN


def _carried(address: IPv6Address, how: str) -> Objection | None:
    inside = IPv4Address(int(address) & 0xFFFF_FFFF)
    found = objection(inside)
    # Never private: a rule about a name cannot know where a translator sends it.
    return Objection(f"{how} for {inside}, {found.what}") if found else None
