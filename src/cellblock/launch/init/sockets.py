"""Facts about the sockets of a network namespace, from the kernel itself (sock_diag, netlink): memory, and open ports.

The memory of buffers belongs to no process, and is not counted elsewhere without a control group.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLMSG_DONE = 20, 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_ALL_STATES = 0xFFFFFFFF
_UDIAG_SHOW_MEMINFO, _UNIX_DIAG_MEMINFO = 0x20, 5
_INET_DIAG_SKMEMINFO, _INET_DIAG_SKV6ONLY = 7, 11
_TCP_LISTEN = 10
_MOST_PORTS = 1000
_ADDRESSES = (bytes(4), bytes((127, 0, 0, 1)))
"""The addresses of listeners that a connection to 127.0.0.1 reaches."""
_MAPPED = bytes(10) + b"\xff\xff"
"""How an address of version 4 begins in version 6."""
_RECEIVED, _SENT, _QUEUED = 0, 2, 5  # of SK_MEMINFO


_UNKNOWN = 64 << 20
"""Assumed bytes of a buffer if the kernel does not tell: enough that the buffers are measured."""

_ONE_MORE = 1 << 17
"""Bytes by which a buffer can exceed its limit: what was sent at once."""


def at_most() -> int:
    """Return an upper bound of the bytes in the buffers of this network namespace, at almost no cost."""
    sockets = connections = 0
    try:
        with open("/proc/self/net/sockstat") as file:
            for line in file:
                words = line.split()
                if words[0] == "sockets:":
                    sockets = int(words[2])
                elif words[0] == "TCP:":
                    connections = int(words[2]) + int(words[4])  # in use, and orphaned
    except OSError:
        return 0
    if not sockets:
        return 0
    # The kernel doubles what a program requests (socket(7)). TCP's buffers also grow automatically, up to their own limits.
    received, sent = (2 * _limit(f"core/{name}_max") + _ONE_MORE for name in ("rmem", "wmem"))
    grown = sum(_limit(f"ipv4/tcp_{name}") + _ONE_MORE for name in ("rmem", "wmem"))
    return sockets * (received + sent) + connections * grown


def _limit(name: str) -> int:
    """Return a system limit: the last number of its setting."""
    try:
        with open(f"/proc/sys/net/{name}") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return _UNKNOWN


def buffered() -> int:
    """Return the bytes in the buffers of all sockets of this network namespace; 0 if unknown."""
    requests = [
        (struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _UDIAG_SHOW_MEMINFO, 0, 0), 16, _UNIX_DIAG_MEMINFO)
    ]
    for family in (socket.AF_INET, socket.AF_INET6):
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            head = struct.pack("=BBBBI", family, protocol, 1 << (_INET_DIAG_SKMEMINFO - 1), 0, _ALL_STATES)
            requests.append((head + bytes(48), 72, _INET_DIAG_SKMEMINFO))
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
            return sum(sum(_sizes(diag, *request)) for request in requests)
    except OSError:
        return 0


def listening() -> list[int]:
    """Return the TCP ports of this network namespace that accept connections to 127.0.0.1, in order, up to a limit.

    Raises:
        OSError: The kernel does not tell.
    """
    found: set[int] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN) + bytes(48)
            for one in _each(diag, request):
                port, address = int.from_bytes(one[4:6], "big"), bytes(one[8:24])
                if family == socket.AF_INET:
                    reached = address[:4] in _ADDRESSES
                else:
                    both = bytes(_attribute(one[72:], _INET_DIAG_SKV6ONLY)[:1]) == b"\0"
                    reached = both and address in (bytes(16), *(_MAPPED + known for known in _ADDRESSES))
                if reached:
                    found.add(port)
    return sorted(found)[:_MOST_PORTS]


def _sizes(diag: socket.socket, request: bytes, head: int, wanted: int) -> Iterator[int]:
    """Yield the bytes in the buffers of each socket of one family and protocol."""
    with suppress(OSError):  # this family or protocol is missing
        for one in _each(diag, request):
            values = _attribute(one[head:], wanted)
            if len(values) > 4 * max(_RECEIVED, _SENT, _QUEUED):
                words = struct.unpack_from(f"={len(values) // 4}I", values)
                yield int(words[_RECEIVED] + max(words[_SENT], words[_QUEUED]))


def _each(diag: socket.socket, request: bytes) -> Iterator[memoryview]:
    """Yield the description of each socket that a request is about.

    Raises:
        OSError: The kernel refuses the request.
    """
    diag.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0) + request)
    while True:
        data = memoryview(diag.recv(1 << 17))
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", data, 16)[0]
                raise OSError(code, os.strerror(code))
            if kind == _NLMSG_DONE:
                return
            yield data[16:length]
            data = data[(length + 3) & ~3 :]


def _attribute(attributes: memoryview, wanted: int) -> memoryview:
    """Return the value of an attribute; empty if none."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == wanted:
            return attributes[4:length]
        attributes = attributes[(max(length, 4) + 3) & ~3 :]
    return attributes[:0]
