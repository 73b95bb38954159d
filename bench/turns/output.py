"""What a session prints and displays."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench import turns
from cellblock import CodeExecutionResult, Host, Limits, Session

# Whatever is sent by hand goes past the checks of the worker: this is what hostile code does.
RAW = """
import gc, json, struct, sys
from cellblock.worker.channel import Channel
from IPython.display import HTML, display, update_display
channel = next(thing for thing in gc.get_objects() if isinstance(thing, Channel))._sock
def frame(body=b"", **header):
    if body:
        header.setdefault("sizes", [len(body)])
    head = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("!II", len(head), len(body)) + head + body
"""


@asynccontextmanager
async def attacker() -> AsyncIterator[Session]:
    """A session that knows how to send frames by hand."""
    async with Host(isolate="none") as host, host.session(working_dir=None) as session:
        assert (await session.execute(RAW)).ok
        yield session


async def run(code: str, *, stream: bool = False) -> None:
    """Run an attack, and one cell after it."""
    async with attacker() as session:
        if stream:
            async for event in session.stream(code, timeout=60):
                last = event
            assert isinstance(last, CodeExecutionResult)
        else:
            await session.execute(code, timeout=60)
        assert (await session.execute("1")).ok


async def case_carriage_returns() -> None:
    """Lines that are written over again and again."""
    await run("sys.stdout.write('a\\r' * 950_000)")


async def case_carriage_returns_in_values() -> None:
    """As many as values may have."""
    await run("for _ in range(2): display({'text/plain': 'a\\r' * 3_900_000}, raw=True)")


async def case_updates_of_many() -> None:
    """A thousand displays of one id, and large updates of all of them."""
    await run("""
for _ in range(1000):
    channel.sendall(frame(b"a", type="display", kind="display_data", mimes=["text/plain"], display_id="x"))
nested = {str(number): [] for number in range(5000)}
update = dict(type="display", kind="update_display_data", mimes=["text/plain"], display_id="x", metadata=nested)
for _ in range(20):
    channel.sendall(frame(b"b", **update))
""")


async def case_updates_between_cells() -> None:
    """The same while no cell runs."""
    await run("""
import threading
def later():
    for _ in range(1000):
        channel.sendall(frame(b"a", type="display", kind="display_data", mimes=["text/plain"], display_id="x"))
    for _ in range(20):
        channel.sendall(frame(b"b" * 63_000, type="display", kind="update_display_data", mimes=["text/plain"], display_id="x"))
threading.Timer(0.05, later).start()
""")


async def case_tiny_frames() -> None:
    """Hundreds of thousands of frames that say nothing."""
    await run("channel.sendall(frame(type='clear') * 200_000)")


async def case_tiny_texts() -> None:
    """As many chunks, for a reader."""
    await run("channel.sendall(frame(b'x', type='stream', name='stdout') * 200_000)", stream=True)


async def case_tiny_displays() -> None:
    """As many displays."""
    await run("channel.sendall(frame(b'x', type='display', kind='display_data', mimes=['text/plain']) * 100_000)", stream=True)


async def case_last_words() -> None:
    """Tiny frames of a kernel that dies right after."""
    await run("channel.sendall(frame(type='clear') * 20_000); import os; os._exit(1)")


async def case_nested_headers() -> None:
    """Headers that take the longest to parse and to weigh."""
    await run("""
import itertools
for inner in ('[]', '{}', '""', '"\\\\u0041"', '1e5', '0'):
    text = ",".join(itertools.repeat(inner, 65_000 // (len(inner) + 1) - 40))
    head = ('{"type":"display","kind":"display_data","metadata":{"a":[' + text + ']}}').encode()
    assert len(head) <= 65536, len(head)
    channel.sendall((struct.pack("!II", len(head), 0) + head) * 30)
""")


async def case_text_that_is_no_text() -> None:
    """Bytes that are no UTF-8, which take the longest to decode, wherever text is taken."""
    await run(
        """
import os
bad = b"\\xff" * (256 * 1024)
for _ in range(40):
    channel.sendall(frame(bad, type="stream", name="stdout"))
for _ in range(20):
    os.write(1, bad)
""",
        stream=True,
    )


async def case_values_that_are_no_text() -> None:
    """The same as values, inline and in parts."""
    await run(
        """
channel.sendall(frame(b"\\xff" * (15 << 20), type="display", kind="display_data", mimes=["text/plain"]))
for _ in range(60):
    channel.sendall(frame(b"\\xff" * (1 << 18), type="part", mime="text/html"))
channel.sendall(frame(type="display", kind="display_data", mimes=[], parts=["text/html"]))
""",
        stream=True,
    )


async def case_a_large_error() -> None:
    """A traceback of as many bytes and parts as a frame can have."""
    await run("""
bad = b"\\xff" * (16 << 20)
sizes = [len(bad) // 10_000] * 10_000
bad = bad[:sum(sizes)]
channel.sendall(frame(bad, type="reply", execution_count=1, ename="E", sizes=sizes))
import time; time.sleep(3600)
""")


async def case_large_images() -> None:
    """Pictures, as many and as large as there may be."""
    await run("""
png = b"\\x89PNG\\r\\n\\x1a\\n"
for size, count in ((7 << 20, 2), (1000, 990)):
    for _ in range(count):
        display({"image/png": png + bytes(size)}, raw=True)
""")


async def case_many_small_writes_of_two_streams() -> None:
    """Text of both streams in turns, which are entries of their own."""
    await run("""
one = frame(b"x", type="stream", name="stdout") + frame(b"y", type="stream", name="stderr")
channel.sendall(one * 50_000)
""")


async def case_spill_without_end() -> None:
    """A cell that prints as quickly as it can, and all of it goes to the disk."""
    with tempfile.TemporaryDirectory() as directory:
        limits = Limits(spill=2**40, spilled=2**40)
        async with Host(isolate="none") as host, host.session(working_dir=None, spill_dir=directory, limits=limits) as session:
            await session.execute("text = 'x' * 999")
            await session.execute("while True: print(text)", timeout=5)
            turns.end()
