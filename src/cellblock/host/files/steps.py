"""Blocking work in slices: generators whose steps run in threads, to keep the event loop free.

An operation is a generator that cleans up in ``finally``. If the caller cancels, a progress callback raises or a stream breaks
off, the driver closes the generator, which rolls the operation back.
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
"""Bytes done, and the total if it is known."""
Progress = Callable[[int, int | None], object]
Work = Generator[Done | None, None, T]
"""Work that yields its progress at least every few milliseconds, or None without progress to report."""
Sink = Generator[None, bytes | None, T]
"""Work that is sent its input piece by piece, and None at its end."""

SLICE = 0.02
"""Seconds that a thread works before it returns to the event loop."""

PIECE = 256 * 1024
"""Bytes that are passed to a thread at once: an archive can expand a thousandfold, and a slice must stay short."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread. Unlike `asyncio.to_thread`, a cancellation waits until the thread has returned.

    Otherwise the function would still run while its generator and its descriptors are closed.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError:
                continue  # one is enough: it is raised once the slice has ended
        if not call.cancelled():
            call.exception()  # mark as retrieved: the caller gets the cancellation
        raise


async def complete(work: Work[T], progress: Progress | None = None) -> T:
    """Run work to its end and return its result. Report progress between slices, in the caller's thread."""
    try:
        while True:
            finished, done, result = await in_thread(_advance, work)
            if finished:
                assert result is not None
                return result[0]
            if progress is not None and done is not None:
                progress(*done)
    except BaseException:  # includes cancellation: the work holds descriptors
        await in_thread(work.close)
        raise


def _advance(work: Work[T]) -> tuple[bool, Done | None, tuple[T] | None]:
    """Work for one slice. A step that reaches the total also ends the slice, so that it is reported before the commit."""
    deadline = time.monotonic() + SLICE
    while True:
        try:
            done = next(work)
        except StopIteration as end:
            return True, None, (end.value,)
        if time.monotonic() >= deadline or (done is not None and done[0] == done[1]):
            return False, done, None


async def pour(sink: Sink[T], stream: bytes | AsyncIterable[bytes], progress: Progress | None = None) -> T:
    """Send a stream and its end to a sink, and return the sink's result."""
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
    except BaseException:  # includes cancellation: the sink holds a file
        await in_thread(sink.close)
        raise


def _fed(sink: Sink[T], data: bytes) -> Work[T]:
    """Combine a sink and its input to work without sending: a single slice for little data."""
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
    """Split large pieces and join small ones."""
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
    """Yield the items of a generator of blocking steps, batched by slice or by megabyte."""
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
