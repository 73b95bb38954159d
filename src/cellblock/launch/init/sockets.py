"""Memory in the socket buffers of a network namespace, from the kernel itself (sock_diag, netlink).

These buffers belong to no process, and are not counted elsewhere without a control group.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLMSG_DONE = 20, 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_ALL_STATES = 0xFFFFFFFF
_UDIAG_SHOW_MEMINFO, _UNIX_DIAG_MEMINFO = 0x20, 5
_INET_DIAG_SKMEMINFO = 7
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


def _sizes(diag: socket.socket, request: bytes, head: int, wanted: int) -> Iterator[int]:
    """Yield the bytes in the buffers of each socket of one family and protocol."""
    diag.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 0, 0) + request)
    while True:
        data = memoryview(diag.recv(1 << 17))
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                return
            yield _size(data[16 + head : length], wanted)
            data = data[(length + 3) & ~3 :]


def _size(attributes: memoryview, wanted: int) -> int:
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == wanted:
            values = struct.unpack_from(f"={(length - 4) // 4}I", attributes, 4)
            return int(values[_RECEIVED] + max(values[_SENT], values[_QUEUED]))
        attributes = attributes[(max(length, 4) + 3) & ~3 :]
    return 0
