"""Blocking work in slices: generators that do a little at each step, driven in threads so that the event loop is free.

An operation is a generator with its cleaning up in ``finally``. Its driver need not know what that is: whether
the caller cancels, a progress callback raises or a stream breaks off, closing the generator undoes what was begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from contextlib import aclosing, closing
from typing import ParamSpec, TypeVar

from cellblock.errors import InvalidInputError
from cellblock.host.files.info import MIB

P = ParamSpec("P")
T = TypeVar("T")

Done = tuple[int, int | None]
"""Bytes done, and bytes in all if that is known."""
Progress = Callable[[int, int | None], object]
Work = Generator[Done | None, None, T]
"""Work that yields at least every few milliseconds what is done, or None if there is nothing to tell."""
Sink = Generator[None, bytes | None, T]
"""Work that is sent its input piece by piece, and None at its end."""

SLICE = 0.02
"""Seconds that a thread works before the event loop hears of it."""

PIECE = 256 * 1024
"""Bytes that are handed to a thread at once: an archive can swell a thousandfold, and a slice must remain one."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread. Unlike `asyncio.to_thread`, a cancellation waits until the thread is out of it.

    Otherwise what it does would go on while its generator is to be closed, and its descriptors with it.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError:
                continue  # one is enough: it goes on as soon as the slice has ended
        if not call.cancelled():
            call.exception()  # taken note of: the cancellation is what the caller hears
        raise


async def complete(work: Work[T], progress: Progress | None = None) -> T:
    """Drive work to its end and return its result; tell of its progress between the slices, in the caller's thread."""
    try:
        while True:
            finished, done, result = await in_thread(_advance, work)
            if finished:
                assert result is not None
                return result[0]
            if progress is not None and done is not None:
                progress(*done)
    except BaseException:  # also a cancellation: the work holds descriptors
        await in_thread(work.close)
        raise


def _advance(work: Work[T]) -> tuple[bool, Done | None, tuple[T] | None]:
    """Work for a slice. The step at which all is done always ends one, so that it is told before it is made final."""
    deadline = time.monotonic() + SLICE
    while True:
        try:
            done = next(work)
        except StopIteration as end:
            return True, None, (end.value,)
        if time.monotonic() >= deadline or (done is not None and done[0] == done[1]):
            return False, done, None


async def pour(sink: Sink[T], stream: bytes | AsyncIterable[bytes], progress: Progress | None = None) -> T:
    """Send a sink all of a stream, then its end, and return its result."""
    if isinstance(stream, bytes):
        return await complete(_fed(sink, stream), progress)
    done = 0
    try:
        await in_thread(next, sink)
        async with aclosing(_pieces(stream)) as pieces:
            async for piece in pieces:
                await in_thread(sink.send, piece)
                done += len(piece)
                if progress is not None:
                    progress(done, None)
        return await in_thread(_end, sink)
    except BaseException:  # also a cancellation: the sink holds a file
        await in_thread(sink.close)
        raise


def _fed(sink: Sink[T], data: bytes) -> Work[T]:
    """Turn a sink and its input into work that needs no sending: for little data, a single slice."""
    with closing(sink):
        next(sink)
        for start in range(0, len(data), PIECE):
            sink.send(data[start : start + PIECE])
            yield min(start + PIECE, len(data)), len(data)
        return _end(sink)


def _end(sink: Sink[T]) -> T:
    try:
        sink.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a sink continues after its end")


async def _pieces(stream: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Cut what is large and join what is small."""
    waiting = bytearray()
    async for chunk in stream:
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise InvalidInputError(f"the stream must give bytes, not {type(chunk).__name__}")
        waiting += chunk
        while len(waiting) >= PIECE:
            yield bytes(waiting[:PIECE])
            del waiting[:PIECE]
    if waiting:
        yield bytes(waiting)


async def drain(source: Generator[T, None, None], size: Callable[[T], int]) -> AsyncGenerator[list[T], None]:
    """Yield what a generator of blocking steps yields, as much at once as a slice brings, or a megabyte."""
    try:
        while items := await in_thread(_gather, source, size):
            yield items
    finally:
        await in_thread(source.close)


def _gather(source: Generator[T, None, None], size: Callable[[T], int]) -> list[T]:
    deadline, room = time.monotonic() + SLICE, MIB
    items: list[T] = []
    for item in source:
        items.append(item)
        room -= size(item)
        if room <= 0 or time.monotonic() >= deadline:
            break
    return items
