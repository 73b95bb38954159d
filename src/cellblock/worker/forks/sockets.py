"""Sockets that a fork shares with its original, and their replacement in a copy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import sys
import termios
from typing import Any

from cellblock.worker.forks.pools import instances
from cellblock.worker.replaced import replace

_DEAF = b"\0cellblock-listens-to-nobody-"
_MANY = 2048

_ends: dict[int, int] = {}
"""For each end of a pair of sockets, the inode of the other one. The system does not tell which belong together."""


def note_pairs() -> None:
    """Start recording pairs from `socket.socketpair`."""
    make = socket.socketpair

    def socketpair(*args: Any, **options: Any) -> tuple[socket.socket, socket.socket]:
        pair = make(*args, **options)
        one, other = (os.fstat(end.fileno()).st_ino for end in pair)
        if len(_ends) > _MANY:
            _forget_closed()
        _ends[one], _ends[other] = other, one
        return pair

    replace(socket, "socketpair", socketpair)


def _forget_closed() -> None:
    """Forget pairs without an open end here; if that is unknown, the oldest ones."""
    there = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one used for listing them
                there.add(os.fstat(int(name)).st_ino)
    gone = [end for end, other in [*_ends.items()] if end not in there and other not in there]
    for end in gone or [*_ends][: _MANY // 2]:
        _ends.pop(end, None)


def part_sockets(sockets: dict[int, int]) -> list[str]:
    """Stop sharing sockets with the original, in a copy.

    Connections look closed by the other side, so that clients with connection pools reconnect. Servers no longer get
    connections. A pair within this process becomes a new pair.

    Args:
        sockets: The inodes of the descriptors that are sockets, except the wakeup sockets of event loops.

    Returns:
        What was lost, in sentences.
    """
    descriptors: dict[int, list[int]] = {}
    for descriptor, inode in sockets.items():
        descriptors.setdefault(inode, []).append(descriptor)
    kept = _kept_connections()
    told: list[str | None] = []
    for inode, same in descriptors.items():
        other = _ends.get(inode)
        if other is None:
            for descriptor in same:
                with contextlib.suppress(OSError):  # closed meanwhile
                    sentence = _cut(descriptor)
                    told.append(None if descriptor in kept else sentence)
            continue
        with contextlib.suppress(OSError):  # likewise
            if other not in descriptors:
                told.append(_cut_end(same))
            elif inode < other:
                told.append(_renew_pair(same, descriptors[other]))
    return [sentence for sentence in told if sentence]


def _kept_connections() -> set[int]:
    """Return the connections to the session's tool port, which are hidden from code: the next call creates another."""
    pool: Any = sys.modules.get("cellblock.tools.calling.pool")
    found: set[int] = set() if pool is None else pool.idle()
    return found


def waking_sockets() -> set[int]:
    """Return the wakeup sockets of event loops. They are handled with the loops' epoll objects."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None:
        return set()
    loops = [loop for loop in instances(asyncio.SelectorEventLoop) if not loop.is_closed()]
    return set().union(*map(sockets_of, loops))


def sockets_of(loop: Any) -> set[int]:
    """Return the wakeup sockets of an event loop. Loops of other libraries, and None, have none."""
    ends = (getattr(loop, name, None) for name in ("_ssock", "_csock"))
    return {end.fileno() for end in ends if end is not None}


def _renew_pair(one: list[int], other: list[int]) -> str | None:
    """Replace a pair, given the descriptors of each end. Return a sentence if data in it is lost."""
    with socket.socket(fileno=os.dup(one[0])) as shared:
        family, kind = shared.family, shared.type
    held = any(unread(end[0]) for end in (one, other))
    for new, descriptors in zip(socket.socketpair(family, kind), (one, other), strict=True):
        with new:
            new.setblocking(os.get_blocking(descriptors[0]))
            for descriptor in descriptors:
                replace_descriptor(descriptor, new.fileno())
    return "A socket pair lost unread data: send it again." if held else None


def _cut_end(descriptors: list[int]) -> str | None:
    """Replace an end whose other end is not in this process by one that looks closed by the other side."""
    ended = select.poll()
    ended.register(descriptors[0], 0)
    hung_up = bool(ended.poll(0))
    with socket.socket(fileno=os.dup(descriptors[0])) as shared, _dead(shared, listens=False) as dead:
        dead.setblocking(os.get_blocking(descriptors[0]))
        for descriptor in descriptors:
            replace_descriptor(descriptor, dead.fileno())
    return None if hung_up else "A socket connected to another process was closed: connect it again."


def unread(descriptor: int) -> int:
    """Return the number of unread bytes of a pipe or socket; for datagrams, the size of the first one."""
    count = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def replace_descriptor(descriptor: int, new: int) -> None:
    """Replace the file of a descriptor."""
    os.dup2(new, descriptor, inheritable=os.get_inheritable(descriptor))


def _cut(descriptor: int) -> str | None:
    shared = socket.socket(fileno=descriptor)
    try:
        here, there = shared.getsockname(), _peer(shared)
        listens = bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if not (here or there) or shared.type not in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            return None  # one of a pair that was not recorded, such as from a library in C
        with _dead(shared, listens) as dead:
            dead.setblocking(os.get_blocking(descriptor))
            replace_descriptor(descriptor, dead.fileno())
    finally:
        shared.detach()
    if _is_deaf(here):
        return None
    if listens:
        return f"No server listens on {_address(here)} now: start it again."
    return f"The connection to {_address(there)} was closed: connect again." if there else None


def _is_deaf(name: Any) -> bool:
    return isinstance(name, bytes) and name.startswith(_DEAF)


def _peer(shared: socket.socket) -> Any:
    try:
        return shared.getpeername()
    except OSError:
        return None


def _dead(shared: socket.socket, listens: bool) -> socket.socket:
    if shared.type == socket.SOCK_DGRAM:
        return socket.socket(shared.family, shared.type)
    if listens:  # never connected: code that waits for a connection keeps waiting
        deaf = socket.socket(socket.AF_UNIX)
        deaf.bind(_DEAF + os.urandom(8).hex().encode())
        deaf.listen(1)
        return deaf
    near, far = socket.socketpair()
    far.close()
    return near


def _address(name: Any) -> str:
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return repr(os.fsdecode(name))
