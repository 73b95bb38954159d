"""A Jupyter kernel for a named session: queues requests, answers them, and broadcasts output."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from cellblock.errors import CellblockError, NotFoundError
from cellblock.fronts.jupyter.messages import Channel, Message, make
from cellblock.model.sessions import SessionRecord
from cellblock.operations.executions import Answer
from cellblock.operations.sessions import Destroy, Interrupt, Restart
from cellblock.service.daemon.link import SessionLink

_log = logging.getLogger("cellblock.jupyter")

_MAX_WAITING = 10_000
_MAX_WAITING_BYTES = 64 * 1024 * 1024
_MAX_MISSED = 16 * 1024 * 1024
"""Bytes that are buffered for a client that has lost its connection."""


class Client(Protocol):
    """A client of a kernel.

    Attributes:
        session: The id that the client chose for its side of the conversation; identifies it when it reconnects.
        connected: Whether replies can be sent.
    """

    session: str
    connected: bool

    def send(self, message: Message) -> None:
        """Send a message without waiting. A client that does not read is disconnected, and delays no other."""


@dataclass
class Waiting:
    """A queued request.

    Attributes:
        message: The request.
        client: The sender.
        aborted: Whether an earlier cell failed, so that this one must not run.
    """

    message: Message
    client: Client
    aborted: bool = False


Handler: TypeAlias = "Callable[[JupyterKernel, Waiting], Awaitable[None]]"


class JupyterKernel:
    """A Jupyter kernel.

    Attributes:
        daemon: The daemon that runs the session.
        session: The id of the session.
        name: The name of the session.
        kernel_type: The kernelspec of the session.
        clients: The connected clients.
        about: The interpreter's description of itself, once known.
        asking: The id of the execution that waits for a line, if any.
        gone: Set when the session has ended.
    """

    def __init__(self, daemon: SessionLink, record: SessionRecord, handlers: Mapping[str, Handler]) -> None:
        """Set up without clients.

        Args:
            daemon: The daemon that runs the session.
            record: The session.
            handlers: Handlers for the requests that involve the session, by type.
        """
        self.daemon = daemon
        self._handlers = handlers
        self.session = record.kernel_id
        self.name = record.name
        self.kernel_type = record.kernel_type
        self.clients: list[Client] = []
        self.gone = asyncio.Event()
        self.about: dict[str, Any] | None = None
        self._queue: deque[Waiting] = deque()
        self._queued = 0
        self._worker: asyncio.Task[None] | None = None
        self._others: set[asyncio.Task[None]] = set()
        self.asking: str | None = None
        self._missed: deque[Message] = deque()
        self._missed_bytes = 0
        self._missing = ""

    @property
    def dead(self) -> bool:
        """Whether the session has ended."""
        return self.gone.is_set()

    @property
    def state(self) -> str:
        """The state for clients: ``idle``, ``busy`` or ``dead``."""
        return "dead" if self.dead else "idle" if self._worker is None else "busy"

    # -- clients -------------------------------------------------------------------------------------------------------

    def attach(self, client: Client) -> None:
        """Connect a client. The client that disconnected last gets the messages that it missed."""
        self.clients.append(client)
        client.connected = True
        missed, self._missed, self._missed_bytes = self._missed, deque(), 0
        if client.session == self._missing:
            for message in missed:
                client.send(message)

    def detach(self, client: Client) -> None:
        """Disconnect a client. Its requests continue."""
        if client in self.clients:
            self.clients.remove(client)
            client.connected = False
            if not self.clients:
                self._missing = client.session

    def broadcast(self, kind: str, content: Mapping[str, Any], parent: Mapping[str, Any], **more: Any) -> None:
        """Send a message to all clients."""
        message = make("iopub", kind, content, parent, self.session, **more)
        for client in [*self.clients]:
            client.send(message)
        if not self.clients:
            self._keep(message)

    def reply(self, request: Waiting, kind: str, content: Mapping[str, Any], channel: Channel | None = None) -> None:
        """Answer a request."""
        message = make(channel or request.message.channel, kind, content, request.message.header, self.session)
        if request.client.connected:
            request.client.send(message)
            return
        for client in self.clients:
            if client.session == request.client.session:
                client.send(message)
                return
        if not self.clients and request.client.session == self._missing:
            self._keep(message)

    def status(self, state: str, parent: Mapping[str, Any]) -> None:
        """Send the state to all clients."""
        self.broadcast("status", {"execution_state": state}, parent)

    def _keep(self, message: Message) -> None:
        if not self._missing:
            return
        self._missed.append(message)
        self._missed_bytes += message.size
        while self._missed_bytes > _MAX_MISSED:
            self._missed_bytes -= self._missed.popleft().size

    # -- requests ------------------------------------------------------------------------------------------------------

    def take(self, message: Message, client: Client) -> None:
        """Handle a message of a client."""
        request = Waiting(message, client)
        if message.type == "input_reply":
            self._spawn(self._answer(request))
        elif message.type == "interrupt_request":
            self._spawn(self._handle(request, self._interrupt))
        elif message.type == "shutdown_request":
            self._spawn(self._handle(request, self._shut_down))
        elif message.type == "kernel_info_request" and self.about is not None:
            self._spawn(self._handle(request, self._handlers[message.type]))
        elif message.type in self._handlers:
            self._wait_for_turn(request)
        else:
            _log.debug("%s: a client sent %r, which is not known", self.name, message.type)

    def _wait_for_turn(self, request: Waiting) -> None:
        if not check_room(len(self._queue), self._queued + request.message.size):
            error = {"status": "error", "ename": "BusyError", "evalue": "too many requests wait", "traceback": []}
            self.reply(request, request.message.type.replace("_request", "_reply"), error)
            return
        self._queue.append(request)
        self._queued += request.message.size
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._queue:
                request = self._queue.popleft()
                self._queued -= request.message.size
                await self._handle(request, self._handlers[request.message.type])
        finally:
            self._worker = None

    async def _handle(self, request: Waiting, handle: Handler) -> None:
        """Handle a request, and broadcast ``busy`` before and ``idle`` after it."""
        parent = request.message.header
        self.status("busy", parent)
        try:
            await handle(self, request)
        except CellblockError as error:
            self.fail(request, error)
        except Exception as error:
            _log.exception("%s: a request failed", self.name)
            self.fail(request, CellblockError(f"cellblock failed: {error!r}"))
        finally:
            self.status("dead" if self.dead else "idle", parent)

    def fail(self, request: Waiting, error: CellblockError) -> None:
        """Reply that cellblock could not handle a request."""
        found = {"ename": type(error).__name__, "evalue": str(error), "traceback": [f"{type(error).__name__}: {error}"]}
        if request.message.type == "execute_request":
            self.broadcast("error", found, request.message.header)
        self.reply(request, request.message.type.replace("_request", "_reply"), {"status": "error", **found})
        if isinstance(error, NotFoundError):
            self.gone.set()

    def abort_waiting(self) -> None:
        """Abort all queued cells, because an earlier one failed."""
        for request in self._queue:
            if request.message.type == "execute_request":
                request.aborted = True

    # -- while a cell runs ---------------------------------------------------------------------------------------------

    def ask(self, request: Waiting, number: str, prompt: str, *, password: bool) -> None:
        """Ask the client of the running cell for a line.

        Args:
            request: The cell.
            number: The id of its execution.
            prompt: The prompt.
            password: Whether to hide the answer.
        """
        self.asking = number
        self.reply(request, "input_request", {"prompt": prompt, "password": password}, "stdin")

    async def _answer(self, request: Waiting) -> None:
        number, self.asking = self.asking, None
        if number is None:
            return
        line = request.message.content.get("value", "")
        try:
            await self.daemon.call(Answer(number), str(line).encode("utf-8", "replace"))
        except CellblockError as error:
            _log.debug("%s: a line came too late: %s", self.name, error)

    async def _interrupt(self, _: JupyterKernel, request: Waiting) -> None:
        await self.daemon.call(Interrupt(self.session))
        self.reply(request, "interrupt_reply", {"status": "ok"})

    async def _shut_down(self, _: JupyterKernel, request: Waiting) -> None:
        restart = bool(request.message.content.get("restart"))
        if restart:
            await self.restart()
        else:
            await self.destroy()
        content = {"status": "ok", "restart": restart}
        self.broadcast("shutdown_reply", content, request.message.header)
        self.reply(request, "shutdown_reply", content)

    # -- its life ------------------------------------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Stop the running code.

        Raises:
            CellblockError: The daemon could not.
        """
        await self.daemon.call(Interrupt(self.session))

    async def restart(self) -> None:
        """Continue with a fresh kernel. Queued cells do not run.

        Raises:
            CellblockError: No kernel could be started.
        """
        self.abort_waiting()
        self.status("restarting", {})
        try:
            await self.daemon.call(Restart(self.session))
        finally:
            self.status("idle", {})

    async def destroy(self) -> None:
        """End the session."""
        self.abort_waiting()
        await self.daemon.call(Destroy(self.session))
        self.gone.set()
        self.status("dead", {})

    async def close(self) -> None:
        """Detach from the session, which continues."""
        tasks = [task for task in (self._worker, *self._others) if task is not None and task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


def check_room(count: int, size: int) -> bool:
    """Return whether the queue accepts one more request."""
    return count < _MAX_WAITING and size <= _MAX_WAITING_BYTES
