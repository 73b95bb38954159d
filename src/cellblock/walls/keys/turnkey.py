"""The turnkey of one session: a confined process that holds its secrets, and reads the requests of opened connections.

It gets everything over one socket: first its settings, then pairs of connected sockets. It opens nothing itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import encodings.idna  # noqa: F401  # of names in certificates: no module can be loaded in a turnkey
import functools
import gc
import json
import os
import signal
import socket
import ssl
from typing import Any, NoReturn

from cellblock.walls.egress.gate import EgressLimits
from cellblock.walls.egress.names import BadNameError, canonical_host, parse_authority
from cellblock.walls.keys.authority import leaf
from cellblock.walls.keys.confinement import confine
from cellblock.walls.keys.messages import MESSAGE, REPORTED
from cellblock.walls.keys.opened import OpenedConnection, Opening
from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import prctl

_REPORT_SECONDS = 0.02
_RETRY_SECONDS = 0.01


class Turnkey:
    """The process of one session.

    Args:
        control: The socket to the host, non-blocking.
        client: The TLS settings for servers.
    """

    def __init__(self, control: socket.socket, client: ssl.SSLContext) -> None:
        self._control = control
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._serving: set[asyncio.Task[None]] = set()
        self._secrets: list[dict[str, Any]] = []
        self._opening: Opening | None = None
        self._records: list[dict[str, Any]] = []
        self._answers: dict[int, asyncio.Queue[tuple[dict[str, Any], socket.socket | None]]] = {}

    async def run(self) -> None:
        """Serve until the host closes its end. The first message has the settings."""
        data = await self._loop.sock_recv(self._control, MESSAGE)
        if not data:
            return
        settings = json.loads(data)
        self._secrets = settings["secrets"]
        server = server_settings(base64.b64decode(settings["seed"]), set(settings["hosts"]))
        if settings["roots"]:
            self._client.load_verify_locations(cadata=settings["roots"])
        self._opening = Opening(
            server,
            self._client,
            EgressLimits(**settings["limits"]),
            lambda: self._secrets,
            self._note,
        )
        confine()
        self._loop.add_reader(self._control, self._readable)
        await self._ended

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE, 2)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._loop.remove_reader(self._control)
            self._ended.set_result(None)
            return
        message = json.loads(data)
        if "secrets" in message:
            self._secrets = message["secrets"]
            self._tell(ended=message["change"])
            return
        if "at" not in message:
            self._on_answer(message, [socket.socket(fileno=descriptor) for descriptor in descriptors])
            return
        client, upstream = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for end in (client, upstream):
            end.setblocking(False)
        task = self._loop.create_task(self._serve(message, client, upstream))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, message: dict[str, Any], client: socket.socket, upstream: socket.socket) -> None:
        assert self._opening is not None
        number = message["id"]
        answers = self._answers[number] = asyncio.Queue()
        ask = functools.partial(self._ask, number) if message["judged"] else None
        try:
            early = base64.b64decode(message["early"])
            await OpenedConnection(self._opening, message["at"], client, upstream, early, ask).serve()
        finally:
            del self._answers[number]
            while not answers.empty():
                if (left := answers.get_nowait()[1]) is not None:
                    left.close()
            self._flush()
            self._tell(ended=number)

    async def _ask(self, number: int, said: dict[str, Any] | None) -> tuple[dict[str, Any], socket.socket | None]:
        """Send the host a message about a connection, if any, and return its next answer with a socket that came with it."""
        while said is not None:
            try:
                self._control.send(json.dumps({"id": number, **said}).encode())
                break
            except BlockingIOError:
                await asyncio.sleep(_RETRY_SECONDS)
        return await self._answers[number].get()

    def _on_answer(self, message: dict[str, Any], descriptors: list[socket.socket]) -> None:
        given = descriptors[0] if descriptors else None
        if given is not None:
            given.setblocking(False)
        if (answers := self._answers.get(message["id"])) is not None:
            answers.put_nowait((message, given))
        elif given is not None:
            given.close()

    def _note(self, record: dict[str, Any]) -> None:
        """Report a request soon: at once, it would wake the host for each."""
        if not self._records:
            self._loop.call_later(_REPORT_SECONDS, self._flush)
        self._records.append(record)
        if len(self._records) >= REPORTED:
            self._flush()

    def _flush(self) -> None:
        if self._records:
            self._tell(log=self._records)
            self._records = []

    def _tell(self, **said: Any) -> None:
        data = json.dumps(said).encode()
        try:
            self._control.send(data)
        except BlockingIOError:
            # The host reads slowly: records may be lost, but not the end of a connection.
            if "ended" in said:
                self._loop.call_later(0.05, functools.partial(self._tell, **said))
        except OSError:
            pass  # the host has ended, as the reader is about to see


def server_settings(seed: bytes, hosts: set[str]) -> ssl.SSLContext:
    """Return the TLS settings for clients, with one certificate for all hosts. It never touches a disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    # botocore, which waits for "100 Continue" before a body, takes a session ticket for the response, and then waits for long.
    context.num_tickets = 0
    with contextlib.closing(open(os.memfd_create("leaf", os.MFD_CLOEXEC), "wb")) as file:
        file.write(leaf(seed, sorted({str(parse_authority(host).host) for host in hosts})))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    context.sni_callback = _note_name
    return context


def _note_name(tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext) -> int | None:
    """Note the name in the client's greeting, which the first request is compared with."""
    if name is None:
        return None
    try:
        canonical_host(name)
    except BadNameError:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    tls.named = name  # type: ignore[union-attr]  # an attribute of ours
    return None


def client_settings() -> ssl.SSLContext:
    """Return the TLS settings for servers: the machine's roots, or those that SSL_CERT_FILE names."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def fork_turnkeys(descriptor: int) -> None:
    """Fork a turnkey for each socket that arrives, until the host ends."""
    prctl(abi.PR_SET_NAME, b"turnkey")
    prctl(abi.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave no zombies
    control = socket.socket(fileno=descriptor)
    settings = client_settings()
    # Once, so that forks share what it loads.
    asyncio.run(asyncio.sleep(0))
    server_settings(bytes(32), {"warm.test:443"})
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _become(descriptors[0], settings)
        os.close(descriptors[0])


def _become(descriptor: int, settings: ssl.SSLContext) -> NoReturn:
    """Become a turnkey. Nothing is printed: a trace could show values."""
    try:
        control = socket.socket(fileno=descriptor)
        control.setblocking(False)

        async def serve() -> None:
            await Turnkey(control, settings).run()

        asyncio.run(serve())
    finally:
        os._exit(0)
