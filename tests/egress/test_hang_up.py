"""A client that waits for an answer: when it counts as gone, and when it does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from cellblock.egress import hang_up
from cellblock.egress.hang_up import HangUp
from cellblock.egress.tunnel import reset

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A client of a proxy, and the proxy's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        served, _ = listener.accept()
        with served:
            yield client, served


def _half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


def _send(client: socket.socket) -> None:
    client.sendall(b"early")


async def test_a_client_that_breaks_off_has_hung_up_whatever_it_sent(pair: Pair) -> None:
    client, served = pair
    client.sendall(b"early")
    called = asyncio.Event()
    with HangUp(served, called.set) as watch:
        reset(client)
        await asyncio.wait_for(called.wait(), 10)
        assert await watch.is_certain()


async def test_a_break_is_seen_before_the_loop_reports_it(pair: Pair) -> None:
    client, served = pair
    with HangUp(served, lambda: None) as watch:
        reset(client)
        assert await watch.is_certain()


@pytest.mark.parametrize("act", [_half_close, _send])
async def test_a_client_that_only_sends_no_more_or_early_has_not_hung_up(
    pair: Pair, act: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_up, "_CERTAIN_SECONDS", 0.05)
    client, served = pair
    with HangUp(served, lambda: None) as watch:
        act(client)
        assert not await watch.is_certain()


async def test_bytes_that_nobody_reads_yet_do_not_keep_the_loop_busy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, served = pair
    looks: list[None] = []
    look = HangUp._look

    def counted(self: HangUp) -> None:
        looks.append(None)
        look(self)

    monkeypatch.setattr(HangUp, "_look", counted)
    with HangUp(served, lambda: None):
        client.sendall(b"early")
        _half_close(client)
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(looks) == 1


async def test_a_client_on_a_unix_socket_has_hung_up_when_it_is_closed() -> None:
    client, served = socket.socketpair()
    with served, HangUp(served, lambda: None) as watch:
        client.close()
        assert await watch.is_certain()
