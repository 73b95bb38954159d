"""The worker's end of a channel in a process of its own, where code writes to it, forks, and is hit by signals."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from cellblock.wire.frames import VERSION
from cellblock.wire.messages import Message, Ready, Stream
from cellblock.wire.protocol import Conversation, Side

_SETUP = f"""
import os, signal, socket, sys, threading, time, warnings
warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")  # as in a zygote
from cellblock.wire.messages import *
from cellblock.worker.channel import Channel
from cellblock.worker.gate import GATE
from cellblock.worker.outbox import Outbox
from cellblock.worker.streams import replace_streams
GATE.install(lambda error: None)
outbox = Outbox()
outbox.attach(Channel(socket.socket(fileno=int(sys.argv[1]))))
replace_streams(outbox)
outbox.send(Ready({VERSION}))
def tasks(wanted):
    # One that has ended is to be seen for a moment longer.
    deadline = time.monotonic() + 20
    while (found := len(os.listdir("/proc/self/task"))) != wanted:
        assert time.monotonic() < deadline, f"{{found}} threads"
"""


class WorkerEnd:
    """A running worker's end, and what is heard of it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self._channel = channel
        self._conversation = Conversation(Side.HOST)
        self.messages: list[Message] = []
        self.said = b""
        self.complained = b""

    def hear(self, text: str) -> None:
        """Take messages until this text has been written to a stream."""
        while text not in self.text():
            data = self._channel.recv(1 << 20)
            assert data, f"it ended without a word of {text!r}"
            self.messages += self._conversation.receive(data)

    def go_on(self) -> None:
        """Let code that waits in `sys.__stdin__.readline()` go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def finish(self) -> WorkerEnd:
        """Take everything until it has ended in good order."""
        while data := self._channel.recv(1 << 20):
            self.messages += self._conversation.receive(data)
        self.said, self.complained = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, self.complained.decode()
        return self

    @property
    def streams(self) -> list[Stream]:
        """The streams' messages."""
        return [message for message in self.messages if isinstance(message, Stream)]

    def text(self, name: str | None = None) -> str:
        """Return what was written to one stream, or to both."""
        return b"".join(stream.text for stream in self.streams if name in (None, stream.name)).decode()


@contextmanager
def worker_end(code: str) -> Iterator[WorkerEnd]:
    """Run code at a worker's end: it has `outbox`, and what `sys.stdout` is in a kernel."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours:
        with theirs:
            script = f"{_SETUP}\n{textwrap.dedent(code)}\noutbox.settle()"
            process = subprocess.Popen(
                [sys.executable, "-c", script, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        with process:
            try:
                end = WorkerEnd(process, ours)
                yield end
            finally:
                process.kill()
    assert end.messages[:1] == [Ready(VERSION)]


def run(code: str) -> WorkerEnd:
    """Run code at a worker's end until it has ended."""
    with worker_end(code) as end:
        return end.finish()
