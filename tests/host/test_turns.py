"""No session holds up the others: what a kernel sends is taken a little in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from cellblock import Session
from cellblock.host.kernels import channel
from cellblock.host.output.collect import Collector
from cells import ok

RAW = """
import gc, json, struct
from cellblock.worker.channel import Channel
channel = next(thing for thing in gc.get_objects() if isinstance(thing, Channel))._sock
def frame(body=b"", **header):
    if body:
        header["sizes"] = [len(body)]
    head = json.dumps(header).encode()
    return struct.pack("!II", len(head), len(body)) + head + body
"""


@pytest.fixture
def one_message_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each message took all the time that a kernel has in one turn."""
    monkeypatch.setattr(channel, "_TURN", 0.0)


@pytest.mark.usefixtures("one_message_a_turn")
async def test_a_flood_of_frames_lets_the_loop_go_on(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    await ok(session, RAW)
    turn, taken = 0, Counter[int]()
    monkeypatch.setattr(Collector, "clear", lambda _collector, _wait: taken.update([turn]))
    cell = asyncio.create_task(session.execute("channel.sendall(frame(type='clear') * 1000)"))
    while not cell.done():
        await asyncio.sleep(0)
        turn += 1
    assert (await cell).ok
    assert taken.total() == 1000
    assert max(taken.values()) == 1


@pytest.mark.usefixtures("one_message_a_turn")
async def test_the_order_stays_when_frames_wait_for_their_turn(session: Session) -> None:
    await ok(
        session, RAW + "import os\ndef numbered(n): return frame(b'%d ' % n, type='stream', name='stdout', behind=n == 0)"
    )
    one = "channel.sendall(b''.join(map(numbered, range(100)))); os.write(1, b'end ')"
    result = await ok(session, f"for _ in range(5): {one}")
    assert result.output == ("".join(f"{n} " for n in range(100)) + "end ") * 5


@pytest.mark.usefixtures("one_message_a_turn")
async def test_last_words_are_heard_whole(session: Session) -> None:
    await ok(session, RAW + "import os, signal")
    code = "channel.sendall(frame(b'x', type='stream', name='stdout') * 1000)\nos.kill(os.getpid(), signal.SIGKILL)"
    result = await session.execute(code)
    assert (result.status, result.output) == ("died", "x" * 1000)
