"""A Jupyter client for tests: as little as possible on a WebSocket."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from cellblock.fronts.jupyter.messages import V1, Message, read_plain, read_v1
from gateways import Gateway


class Channels:
    """The channels of one kernel."""

    def __init__(self, socket: ClientConnection, session: str) -> None:
        self.socket = socket
        self.session = session

    def send(
        self,
        kind: str,
        content: Any,
        channel: str = "shell",
        *,
        parent: Any = None,
        metadata: Any = None,
        buffers: Sequence[bytes] = (),
    ) -> str:
        """Send a message; return its id."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": self.session, "username": "", "version": "5.3"}
        message = Message(channel, header, parent or {}, content, metadata or {}, buffers)  # type: ignore[arg-type]
        self.socket.send(message.v1 if self.socket.subprotocol == V1 else message.plain)
        return message.id

    def receive(self, timeout: float = 30) -> Message:
        """Return the next message."""
        data = self.socket.recv(timeout)
        return read_v1(data) if self.socket.subprotocol == V1 else read_plain(data)

    def until_idle(self, number: str, on_message: Callable[[Message], object] = lambda _: None) -> list[Message]:
        """Return all messages for a request, up to the last one: that the kernel is idle."""
        found = []
        while True:
            message = self.receive()
            if message.parent.get("msg_id") == number:
                found.append(message)
                on_message(message)
                if message.type == "status" and message.content["execution_state"] in ("idle", "dead"):
                    return found

    def ask(self, kind: str, content: Any, channel: str = "shell") -> Any:
        """Ask something, and return the content of the reply."""
        found = self.until_idle(self.send(kind, content, channel))
        (reply,) = (message for message in found if message.channel != "iopub")
        return reply.content

    def execute(self, code: str, on_message: Callable[[Message], object] = lambda _: None, **options: Any) -> list[Message]:
        """Run a cell, and return what was said about it, without the statuses around it."""
        found = self.until_idle(self.send("execute_request", {"code": code, **options}), on_message)
        assert [found[0].content, found[-1].content] == [{"execution_state": "busy"}, {"execution_state": "idle"}]
        return found[1:-1]


@contextmanager
def channels(gateway: Gateway, token: str, kernel: str, *, session: str = "", v1: bool = False) -> Iterator[Channels]:
    """Connect to the channels of a kernel."""
    session = session or uuid.uuid4().hex
    url = f"{gateway.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={session}&token={token}"
    with connect(url, subprotocols=[V1] if v1 else None, max_size=None) as socket:  # type: ignore[list-item]
        yield Channels(socket, session)
