"""The five ZeroMQ sockets of a connection file, with signed messages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.fronts.jupyter.kernel import JupyterKernel
from cellblock.fronts.jupyter.messages import Channel, Message, checked
from cellblock.model.untrusted import parse_json

_log = logging.getLogger("cellblock.jupyter")

_DELIMITER = b"<IDS|MSG>"
_MAX_MESSAGE = 64 * 1024 * 1024
_MOST_UNSENT = 100_000
"""Messages that ZeroMQ queues for one reader; it drops further ones."""

_ROUTERS: tuple[Channel, ...] = ("shell", "control", "stdin")


class Sockets:
    """The sockets of one kernel.

    Attributes:
        session: The id of the kernel's side of the conversation.
        connected: Whether the sockets are open.
    """

    def __init__(self, file: Path) -> None:
        """Bind the sockets of a connection file.

        Args:
            file: The connection file.

        Raises:
            InvalidInputError: It is not a connection file, or a socket cannot be bound.
        """
        self.session = ""
        self.connected = True
        given = _read(file)
        self._key = str(given.get("key", "")).encode()
        self._context = zmq.asyncio.Context()
        self._sockets: dict[str, Any] = {}
        self._unsent: asyncio.Queue[tuple[str, list[bytes]]] = asyncio.Queue()
        kinds = dict.fromkeys(_ROUTERS, zmq.ROUTER) | {"iopub": zmq.PUB, "hb": zmq.ROUTER}
        try:
            for name, kind in kinds.items():
                made = self._sockets[name] = self._context.socket(kind)
                made.linger = 1000
                made.sndhwm = _MOST_UNSENT
                made.maxmsgsize = _MAX_MESSAGE
                made.bind(_address(given, f"{name}_port"))
        except (zmq.ZMQError, KeyError) as error:
            self._context.destroy(linger=0)
            raise InvalidInputError(f"the sockets of {file} cannot be bound: {error}") from error

    def send(self, message: Message) -> None:
        """Send a message to all clients."""
        self._send("iopub", [f"kernel.{self.session}.{message.type}".encode()], message)

    def answer(self, identities: list[bytes], message: Message) -> None:
        """Send a message to one client."""
        self._send(message.channel, identities, message)

    def _send(self, name: str, head: list[bytes], message: Message) -> None:
        parts = message.parts
        self._unsent.put_nowait((name, [*head, _DELIMITER, self._sign(parts), *parts, *message.buffers]))

    async def serve(self, kernel: JupyterKernel) -> None:
        """Relay messages until cancelled."""
        self.session = kernel.session
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._echo())
            for channel in _ROUTERS:
                group.create_task(self._take(channel, kernel))

    async def _write(self) -> None:
        while True:
            name, frames = await self._unsent.get()
            await self._sockets[name].send_multipart(frames)
            self._unsent.task_done()

    async def _echo(self) -> None:
        """Echo heartbeats."""
        socket = self._sockets["hb"]
        while True:
            await socket.send_multipart(await socket.recv_multipart())

    async def _take(self, channel: Channel, kernel: JupyterKernel) -> None:
        while True:
            frames = await self._sockets[channel].recv_multipart()
            try:
                identities, message = self.read(channel, frames)
            except ProtocolError as error:
                _log.warning("a message is ignored: %s", error)
                continue
            kernel.take(message, _Peer(self, identities, str(message.header.get("session", ""))))

    def read(self, channel: Channel, frames: Sequence[bytes]) -> tuple[list[bytes], Message]:
        """Parse a message; return its sender and the message.

        Raises:
            ProtocolError: It is invalid, or not signed with the key of the connection file.
        """
        if _DELIMITER not in frames:
            raise ProtocolError("it has no delimiter")
        place = frames.index(_DELIMITER)
        signature, *parts = frames[place + 1 :] or [b""]
        if len(parts) < 4:
            raise ProtocolError("it has too few parts")
        if not signed(signature, self._sign(parts[:4])):
            raise ProtocolError("it is not signed with the key of the connection file")
        try:
            read = [parse_json(part, what="it") for part in parts[:4]]
        except InvalidInputError as error:
            raise ProtocolError(str(error)) from None
        return list(frames[:place]), checked(channel, read, parts[4:])

    def _sign(self, parts: Sequence[bytes]) -> bytes:
        if not self._key:
            return b""
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()

    async def close(self) -> None:
        """Send queued messages, and close the sockets."""
        while not self._unsent.empty():
            name, frames = self._unsent.get_nowait()
            await self._sockets[name].send_multipart(frames)
        for socket in self._sockets.values():
            socket.close()
        self._context.term()


class _Peer:
    """The sender of a message, to which replies are sent."""

    connected = True

    def __init__(self, sockets: Sockets, identities: list[bytes], session: str) -> None:
        self.session = session
        self._sockets = sockets
        self._identities = identities

    def send(self, message: Message) -> None:
        self._sockets.answer(self._identities, message)


def signed(signature: bytes, expected: bytes) -> bool:
    """Compare signatures in constant time."""
    return hmac.compare_digest(signature, expected)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        given = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"the connection file {file} cannot be read: {error}") from error
    if not isinstance(given, dict) or given.get("signature_scheme", "hmac-sha256") != "hmac-sha256":
        raise InvalidInputError(f"{file} is not a connection file whose messages are signed by hmac-sha256")
    return given


def _address(given: Mapping[str, Any], port: str) -> str:
    if given.get("transport", "tcp") == "ipc":
        return f"ipc://{given['ip']}-{given[port]}"
    return f"tcp://{given.get('ip', '127.0.0.1')}:{given[port]}"
