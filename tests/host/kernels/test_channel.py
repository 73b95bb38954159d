"""Text in pipes and messages in the channel are handled in the order in which they were written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cellblock.host.kernels.channel import Channel, ChannelHandlers, Line
from cellblock.host.launch.launcher import Ends
from cellblock.host.survival.recording import TapedLine
from cellblock.host.survival.tape import Aux, Tape
from cellblock.wire.frames import VERSION
from cellblock.wire.messages import Ready, Stream
from cellblock.wire.protocol import Conversation, Side
from processes import eventually


class Worker:
    """The worker's ends of a channel and two pipes, and what its host has heard."""

    def __init__(self) -> None:
        (out, self.stdout), (err, self.stderr) = os.pipe(), os.pipe()
        ours, self.channel = socket.socketpair()
        control, self._control = socket.socketpair()
        ours.setblocking(False)
        for descriptor in (out, err):
            os.set_blocking(descriptor, False)
        self.ends = Ends(ours, control, out, err, None)
        self.conversation = Conversation(Side.WORKER)
        self.heard: list[str] = []

    def send(self, message: Ready | Stream) -> None:
        self.channel.sendall(self.conversation.send(message))

    def close(self) -> None:
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)
        self.ends.close()
        self.channel.close()
        self._control.close()


class Slow:
    """A line whose host is away for a moment before or after it asks how much is in the pipes, while the worker goes on."""

    def __init__(self, line: Line, pipe: int, meanwhile: Callable[[], None], *, before: bool) -> None:
        self._line = line
        self._pipe = pipe
        self._meanwhile = [meanwhile]
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def pending(self, descriptor: int) -> int:
        """See `Line`."""
        if not self._before:
            found = self._line.pending(descriptor)
        if descriptor == self._pipe and self._meanwhile:
            self._meanwhile.pop()()
        return self._line.pending(descriptor) if self._before else found


@pytest.mark.parametrize("before", [True, False], ids=["before it asks", "after"])
@pytest.mark.parametrize("taped", [False, True], ids=["direct", "taped"])
async def test_text_in_a_pipe_is_heard_before_a_message_that_follows_it(taped: bool, before: bool) -> None:
    worker = Worker()

    def meanwhile() -> None:
        os.write(worker.stdout, b"three")
        worker.send(Stream("stdout", b"four", behind=True))

    def take(message: object) -> None:
        if isinstance(message, Stream):
            if message.behind:
                channel.catch_up()
            worker.heard.append(message.text.decode())

    aux, tape = Aux.make(), None
    line = TapedLine(worker.ends, tape := Tape.make(1, aux)) if taped else Line(worker.ends)
    slow = Slow(line, worker.ends.stdout, meanwhile, before=before)
    handlers = ChannelHandlers(
        take, lambda _name, text: worker.heard.append(text.decode()), worker.heard.append, lambda: False, lambda: None
    )
    channel = Channel(worker.ends, handlers, slow)  # type: ignore[arg-type]  # it is one but for its class
    try:
        worker.send(Ready(VERSION))
        channel._on_channel()  # as for a pipe that was readable, and has been read meanwhile
        channel.listen(True)
        await eventually(lambda: len(worker.heard) == 2)
        assert worker.heard == ["three", "four"]
    finally:
        channel.end()
        worker.close()
        aux.close()
        if tape is not None:
            tape.close()
