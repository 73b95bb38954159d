"""Facts about sockets that the kernel tells."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from cellblock.launch.init import sockets


def test_ports_that_127_0_0_1_reaches_are_listed_and_no_others() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_server(("127.0.0.2", 0)) as other,
        socket.create_connection(own.getsockname()) as connection,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        found = sockets.listening()
        assert own.getsockname()[1] in found
        assert not {one.getsockname()[1] for one in (other, connection, datagrams)} & {*found}


def test_a_server_of_version_6_counts_if_it_accepts_version_4() -> None:
    try:
        made = [socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=both) for both in (True, False)]
    except OSError:
        pytest.skip("there is no IPv6 here")
    both, only = (one.getsockname()[1] for one in made)
    found = sockets.listening()
    for one in made:
        one.close()
    assert both in found
    assert only not in found


def test_a_kernel_that_refuses_is_no_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SOCK_DIAG_BY_FAMILY", 4711)
    with pytest.raises(OSError, match="Invalid argument"):
        sockets.listening()
    assert sockets.buffered() == 0


def test_buffers_are_never_larger_than_the_estimate() -> None:
    before = sockets.at_most()
    pairs = [socket.socketpair() for _ in range(20)]
    try:
        for one, _ in pairs:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)  # the system takes what it allows
            one.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    one.send(bytes(2**16))
        held = sockets.buffered()
        assert held > 20 * 2**16
        assert sockets.at_most() - before >= held * 0.9
    finally:
        for pair in pairs:
            for one in pair:
                one.close()
