"""A synchronous connection over an asynchronous link, without nodes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import cast

import pytest

from cellblock.cluster.cluster_connection import ClusterConnection
from cellblock.cluster.link import ClusterLink
from cellblock.common.loop_thread import LoopThread
from cellblock.errors import DaemonError, StateError
from cellblock.operations.executions import Follow


class Link:
    """A link with an answer of three parts, of which the third fails, and each of which comes when the test says so.

    Attributes:
        ready: Counts the parts that may come.
        closed: Whether the answer was closed.
    """

    def __init__(self) -> None:
        self.ready = threading.Semaphore(0)
        self.closed = threading.Event()

    async def follow(self, _request: Follow, _body: bytes) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                while not self.ready.acquire(blocking=False):
                    await asyncio.sleep(0.001)
                if number == 2:
                    raise StateError("the node has ended")
                yield number
        finally:
            self.closed.set()


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def connection(link: Link) -> Iterator[ClusterConnection]:
    thread = LoopThread()
    yield ClusterConnection(thread, cast("ClusterLink", link))
    thread.close()


def test_parts_come_in_order_and_an_error_last(connection: ClusterConnection, link: Link) -> None:
    link.ready.release(3)
    parts = connection.follow(Follow("one"))
    assert [next(parts), next(parts)] == [0, 1]
    with pytest.raises(StateError, match="the node has ended"):
        next(parts)
    assert link.closed.wait(60)


def test_a_reader_that_leaves_closes_the_answer(connection: ClusterConnection, link: Link) -> None:
    link.ready.release()
    parts = connection.follow(Follow("one"))
    assert next(parts) == 0
    assert not link.closed.is_set()
    parts.close()
    assert link.closed.is_set()


def test_it_waits_for_a_part_or_for_a_descriptor(connection: ClusterConnection, link: Link, tmp_path: Path) -> None:
    link.ready.release()
    parts = connection.follow(Follow("one"))
    assert next(parts) == 0
    readable, writable = os.pipe()
    with open(tmp_path / "file", "w+") as file:
        assert not connection.hears_before(file.fileno()), "a file is readable at once"
        os.write(writable, b"x")
        assert not connection.hears_before(readable)
        os.read(readable, 1)
        threading.Timer(0.05, link.ready.release).start()
        assert connection.hears_before(readable)
        assert connection.hears_before(file.fileno()), "the part is there already"
    assert next(parts) == 1
    os.close(readable)
    os.close(writable)
    assert not connection.hears_before(readable), "a closed descriptor is as good as a readable one"
    parts.close()


def test_it_is_of_no_use_when_it_is_closed(connection: ClusterConnection) -> None:
    connection.close()
    assert not connection.usable
    with pytest.raises(DaemonError, match="closed"):
        next(connection.follow(Follow("one")))
