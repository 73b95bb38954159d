"""The host's side of one turnkey: its connections, the decisions about their requests, and its reports."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.model.overview import RequestRecord
from cellblock.walls.egress.judge import MOST_BODY, Handover, JudgedRequest
from cellblock.walls.egress.names import Target, parse_authority
from cellblock.walls.egress.serving import FAILURES, refusal_of
from cellblock.walls.keys.messages import MESSAGE, Ended, Log, Report, parse_report
from cellblock.walls.keys.template_process import Template

_IDLE_SECONDS = 60.0
_RETRY_SECONDS = 0.01
_CHANGE_SECONDS = 30.0


@dataclass(slots=True)
class _Served:
    """An opened connection. What its turnkey says about it is hostile.

    Attributes:
        handover: The connection.
        ended: Resolves with its end.
        judging: The decision about its present request.
        fresh: The last connection from its `redial`.
    """

    handover: Handover
    ended: asyncio.Future[None]
    judging: asyncio.Task[None] | None = None
    fresh: socket.socket | None = None


class TurnkeyLink:
    """One turnkey of a session, which has certificates for some hosts. It ends after a while without connections.

    Args:
        hosts: The hosts of its certificate, as ``host:port``.
        names: The names of the session's secrets.
        asking: The secrets that need a person's approval, and whether for the ``first`` request or for ``each``. Names are
            removed after their approval for the first.
        note: Takes the records of requests.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        names: Iterable[str],
        asking: dict[str, str],
        note: Callable[[Sequence[RequestRecord]], None],
    ) -> None:
        self.hosts = frozenset(host for host in hosts if not host.startswith("*."))
        self._certified = frozenset(parse_authority(host).host for host in self.hosts)
        self._known_hosts = set(self.hosts)
        self._names = set(names)
        self._asking = asking
        self._note = note
        self._control: socket.socket | None = None
        self._waiting: dict[int, _Served] = {}
        self._changing: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._idle: asyncio.TimerHandle | None = None
        self._retired = False

    @property
    def alive(self) -> bool:
        """Whether it can take connections."""
        return self._control is not None

    def serves(self, target: Target) -> bool:
        """Return whether its certificate has the host of a target."""
        return target.host in self._certified

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Start the process.

        Raises:
            OSError: It could not be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                ours.setsockopt(socket.SOL_SOCKET, option, 2 * MESSAGE)
            Template.current().fork(theirs)
        self.attach(ours)
        await self._send({**settings, "hosts": sorted(self.hosts)})

    def attach(self, control: socket.socket) -> None:
        """Use a socket to a process."""
        self._control = control
        asyncio.get_running_loop().add_reader(control, self._readable, control)

    async def begin(self, handover: Handover) -> int:
        """Hand a connection over, and return its number, for `finish`.

        Raises:
            OSError: The turnkey has ended.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._number += 1
        number = self._number
        at = str(handover.target)
        self._known_hosts.add(at)
        self._waiting[number] = _Served(handover, asyncio.get_running_loop().create_future())
        early = base64.b64encode(handover.early).decode()
        try:
            await self._send(
                {"id": number, "at": at, "early": early, "judged": handover.judged},
                [handover.client.fileno(), handover.upstream.fileno()],
            )
        except BaseException:
            self._end(number)
            raise
        return number

    async def finish(self, number: int) -> None:
        """Wait for the end of a connection.

        Raises:
            OSError: The turnkey has ended.
        """
        try:
            await self._waiting[number].ended
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        served = self._waiting.pop(number)
        if served.judging is not None:
            served.judging.cancel()
        if served.fresh is not None:
            # The turnkey has its own descriptor of the connection.
            with suppress(OSError):
                served.fresh.shutdown(socket.SHUT_RDWR)
            served.fresh.close()
        if not self._waiting and self.alive:
            if self._retired:
                self.stop()
            else:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.stop)

    def retire(self) -> None:
        """End the process after its last connection: another one takes the next connections."""
        self._retired = True
        if not self._waiting:
            self.stop()

    async def change(self, secrets: Sequence[Mapping[str, Any]]) -> None:
        """Replace the secrets, and wait until later requests use them. End a process that does not confirm it in time."""
        if not self.alive:
            return
        self._number += 1
        number, done = self._number, asyncio.get_running_loop().create_future()
        self._changing[number] = done
        try:
            async with asyncio.timeout(_CHANGE_SECONDS):
                await self._send({"secrets": secrets, "change": number})
                await done
        except OSError:  # TimeoutError is one. The next process begins with the change
            self.stop()
        finally:
            del self._changing[number]

    def stop(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        for ended in (*(served.ended for served in self._waiting.values()), *self._changing.values()):
            if not ended.done():
                ended.set_exception(ConnectionAbortedError("the turnkey has ended"))

    async def _send(self, message: Mapping[str, Any], descriptors: list[int] | None = None) -> None:
        data = json.dumps(message).encode()
        while True:
            if self._control is None:
                raise ConnectionAbortedError("the turnkey has ended")
            try:
                socket.send_fds(self._control, [data], descriptors or [])
            except (BlockingIOError, InterruptedError):
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _readable(self, control: socket.socket) -> None:
        try:
            data = control.recv(MESSAGE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.stop()
            return
        try:
            self._on_report(parse_report(data, self._known_hosts, self._names))
        except (InvalidInputError, ProtocolError):  # a server may have taken it over
            self.stop()

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Log):
            self._note(report.records)
        elif isinstance(report, Ended):
            served = self._waiting.get(report.ended)
            ended = self._changing.get(report.ended) if served is None else served.ended
            if ended is not None and not ended.done():
                ended.set_result(None)
        elif (served := self._waiting.get(report.id)) is not None:
            if served.judging is not None:
                raise ProtocolError("a connection has one request at a time")
            request = JudgedRequest(served.handover.target, report.method, report.url, secrets=report.secrets)
            served.judging = asyncio.get_running_loop().create_task(self._judge(report.id, served, request))

    # --- Requests that are judged

    async def _judge(self, number: int, served: _Served, request: JudgedRequest) -> None:
        """Decide about a request, and tell the turnkey."""
        refused = upstream = None
        try:
            try:
                upstream = await self._decide(number, served, request)
            except FAILURES as error:
                refused = refusal_of(error)
            served.judging = None
            answer = None if refused is None else [refused.status, str(refused)]
            if upstream is not None:
                if served.fresh is not None:
                    served.fresh.close()
                served.fresh = upstream
            message = {"id": number, "refused": answer, "fresh": upstream is not None}
            await self._send(message, [] if upstream is None else [upstream.fileno()])
        except Exception as error:
            if not served.ended.done():
                served.ended.set_exception(ConnectionAbortedError(f"the request could not be judged: {error}"))
            if not isinstance(error, OSError):
                raise

    async def _decide(self, number: int, served: _Served, request: JudgedRequest) -> socket.socket | None:
        """Return a new connection after a question: the server may have closed the silent one.

        Raises:
            RefusedError, DeniedError, UnreachableError: The request is refused.
            OSError: The client has hung up, or the turnkey has ended.
        """
        asked = False

        async def body() -> bytes:
            nonlocal asked
            asked = True
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    await self._send({"id": number, "wanted": True}, [theirs.fileno()])
                return await self._body(ours)

        asking = {name for name in request.secrets if name in self._asking}
        await served.handover.judge.decide(request, served.handover.client, body, ask=bool(asking))
        if not asked:
            return None
        for name in asking:
            if self._asking.get(name) == "first":
                del self._asking[name]
        return await served.handover.redial()

    async def _body(self, connection: socket.socket) -> bytes:
        """Receive the body of a request, until the turnkey closes its end."""
        connection.setblocking(False)
        content = bytearray()
        while data := await asyncio.get_running_loop().sock_recv(connection, MESSAGE):
            content += data
            if len(content) > MOST_BODY + 1:
                self.stop()
                raise ConnectionAbortedError("the turnkey sent a larger body than it read")
        return bytes(content)
