"""The same work with nothing around it: no sandbox, no limits, no output, no recovery, and no answer to anything that fails.

What this takes, no system of the same design can go below on this machine: IPython in a process of its own, a server that
outlives its clients and writes down each execution before it runs, an HTTP framework, `fork`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

from bench import rest

_CLIENTS = 32
_MOST = 65_536
_BRANCHES = 8
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE executions (n INTEGER PRIMARY KEY, key TEXT UNIQUE, code TEXT, state TEXT);
CREATE TABLE events (execution INTEGER, seq INTEGER, data BLOB, PRIMARY KEY (execution, seq)) WITHOUT ROWID
"""


def skeletons(*, n: int) -> dict[str, list[float]]:
    """Measure, in milliseconds: `x = 1` by way of a server, over HTTP, and copies of a process by `fork`."""
    return {"round trip": _round_trip(n), **_over_http(n), **_forks(max(n // 20, 5))}


# -- IPython in a process of its own ---------------------------------------------------------------------------------------


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell.instance()
    shell.history_manager.enabled = False
    return shell


def _work(requests: socket.socket) -> NoReturn:
    """In a process of its own: run cells, and fork. A fork is asked for by the socket that it is to serve."""
    shell = _shell()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        code, descriptors, _, _ = socket.recv_fds(requests, _MOST, 1)
        if not code:
            os._exit(0)
        if not descriptors:
            shell.run_cell(code.decode(), store_history=True)
            requests.send(json.dumps({"status": "success", "x": shell.user_ns.get("x")}).encode())
        elif os.fork() == 0:
            requests = socket.socket(fileno=descriptors[0])
            requests.send(b"ready")
        else:
            os.close(descriptors[0])


def _worker() -> socket.socket:
    """Return a connection to a new process that runs cells. It ends when that is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _work(theirs)
    theirs.close()
    return ours


# -- a server that writes down what it runs --------------------------------------------------------------------------------


class _Lines(asyncio.Protocol):
    """A connection whose messages are lines of JSON."""

    transport: asyncio.Transport

    def __init__(self, take: Callable[[_Lines, dict[str, Any]], object]) -> None:
        self._take = take
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(self, json.loads(line))

    def send(self, message: dict[str, Any]) -> None:
        self.transport.write(json.dumps(message).encode() + b"\n")


class _Server:
    """Runs code in workers, each execution after a row that says so, and its end with the next one."""

    def __init__(self, directory: str, workers: list[socket.socket]) -> None:
        self._database = sqlite3.connect(f"{directory}/skeleton.db", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._workers = workers
        self._answers: list[asyncio.Future[bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._ended: list[int] = []

    async def serve(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._answers = [loop.create_future() for _ in self._workers]
        for number, worker in enumerate(self._workers):
            worker.setblocking(False)
            loop.add_reader(worker.fileno(), self._hear, number)
        server = await loop.create_unix_server(lambda: _Lines(self._begin), path)
        await server.serve_forever()

    def _hear(self, number: int) -> None:
        self._answers[number].set_result(self._workers[number].recv(_MOST))

    def _begin(self, client: _Lines, request: dict[str, Any]) -> None:
        task = asyncio.create_task(self._run(client, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, client: _Lines, request: dict[str, Any]) -> None:
        number = self._enter(request)
        answer = self._answers[request["worker"]] = asyncio.get_running_loop().create_future()
        self._workers[request["worker"]].send(request["code"].encode())
        result = json.loads(await asyncio.wait_for(answer, 60))
        self._ended.append(number)
        client.send({"id": request["id"], **result})

    def _enter(self, request: dict[str, Any]) -> int:
        execute = self._database.execute
        self._count += 1
        execute("BEGIN IMMEDIATE")
        for ended in self._ended:
            execute("INSERT INTO events VALUES (?, 1, 'begun')", (ended,))
            execute("INSERT INTO events VALUES (?, 2, ?)", (ended, b"x" * 100))
            execute("UPDATE executions SET state = 'done' WHERE n = ?", (ended,))
        execute("INSERT INTO executions VALUES (?, ?, ?, 'running')", (self._count, request["key"], request["code"]))
        execute("COMMIT")
        self._ended.clear()
        return self._count


@contextmanager
def _process(run: Callable[[], object]) -> Iterator[None]:
    """Have a function run in a process of its own."""
    pid = os.fork()
    if pid == 0:
        run()
        os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def _server(workers: int) -> Iterator[str]:
    """Have a server with some workers; yield the path of its socket."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = f"{directory}/socket"
        found = [stack.enter_context(_worker()) for _ in range(workers)]
        with _process(lambda: asyncio.run(_Server(directory, found).serve(path))):
            yield path


def _round_trip(n: int) -> list[float]:
    """`x = 1` by way of a server: a program asks, the server writes to SQLite, IPython runs it in a third process."""
    _shell()
    with _server(1) as path, socket.socket(socket.AF_UNIX) as client:
        _when_it_listens(lambda: client.connect(path))
        times = []
        for _ in range(n + 20):
            began = time.perf_counter()
            request = {"id": 0, "worker": 0, "code": "x = 1", "key": secrets.token_hex(16)}
            client.sendall(json.dumps(request).encode() + b"\n")
            json.loads(client.recv(_MOST))
            times.append(_ms(began))
        return times[20:]


# -- over HTTP -------------------------------------------------------------------------------------------------------------


def _gateway(path: str, port: int) -> None:
    """In a process of its own: one route of FastAPI that asks a server."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
    connections: list[_Lines] = []

    class Wanted(BaseModel):
        code: str

    async def ask(session: int, code: str) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if not connections:
            _, made = await loop.create_unix_connection(
                lambda: _Lines(lambda _, answer: waiting.pop(answer["id"]).set_result(answer)), path
            )
            connections.append(made)
        key = secrets.token_hex(16)
        waiting[key] = loop.create_future()
        connections[0].send({"id": key, "worker": session, "code": code, "key": key})
        return await waiting[key]

    async def execute(session: int, wanted: Wanted) -> dict[str, Any]:
        return await ask(session, wanted.code)

    execute.__annotations__["wanted"] = Wanted  # a class of this function, which its name alone does not lead to
    app = FastAPI()
    app.post("/kernels/{session}/execute")(execute)
    uvicorn.run(app, port=port, log_level="error")


def _over_http(n: int) -> dict[str, list[float]]:
    """The same over HTTP: with one client, and the time per execution with many, each of which has its own worker."""
    port = rest.free_port()
    with _server(_CLIENTS) as path, _process(lambda: _gateway(path, port)):
        return asyncio.run(_ask_over_http(port, n))


async def _ask_over_http(port: int, n: int) -> dict[str, list[float]]:
    first = await _connected(lambda: rest.Client.connect(port, "0"))
    times = [await first.execute() for _ in range(n + 20)][20:]
    clients = [await rest.Client.connect(port, str(number)) for number in range(_CLIENTS)]
    each = max(n // _CLIENTS, 5)
    rounds = []
    for _ in range(3):
        began = time.perf_counter()
        await asyncio.gather(*(rest.many(client, each) for client in clients))
        rounds.append(_ms(began) / (_CLIENTS * each))
    for client in (first, *clients):
        client.transport.close()
    return {"http": times, "http, many": [statistics.median(rounds)]}


# -- copies of a process ---------------------------------------------------------------------------------------------------


def _forks(n: int) -> dict[str, list[float]]:
    """A copy of a process by `fork`, a way back to it up to the next cell's result, and eight copies that answer."""
    _shell()
    series: dict[str, list[float]] = {"copy": [], "way back": [], "branches": []}
    current = _worker()
    _run(current, "import time")
    for number in range(n):
        _run(current, f"x = {number}")
        began = time.perf_counter()
        copy = _fork(current)
        copy.recv(_MOST)
        series["copy"].append(_ms(began))
        _run(current, "x = None")
        began = time.perf_counter()
        other = _fork(copy)
        other.recv(_MOST)
        current.close()
        assert _run(other, "x") == number
        series["way back"].append(_ms(began))
        current = other
        copy.close()
    for _ in range(max(n // 3, 3)):
        began = time.perf_counter()
        with ExitStack() as stack:
            copy = stack.enter_context(_fork(current))
            copy.recv(_MOST)
            branches = [stack.enter_context(_fork(copy)) for _ in range(_BRANCHES)]
            for branch in branches:
                branch.recv(_MOST)
            for branch in branches:
                branch.send(b"x")
            for branch in branches:
                branch.recv(_MOST)
            series["branches"].append(_ms(began))
        time.sleep(0.1)  # their end would take part in the next measurement
    current.close()
    return series


def _fork(process: socket.socket) -> socket.socket:
    """Return a connection to a fork of a process, which says when it is ready."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(process, [b"fork"], [theirs.fileno()])
    return ours


def _run(process: socket.socket, code: str) -> Any:
    """Run a cell; return the value of `x`."""
    process.send(code.encode())
    return json.loads(process.recv(_MOST))["x"]


# -- what all need ---------------------------------------------------------------------------------------------------------


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _when_it_listens(connect: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(OSError):
            connect()
            return
        time.sleep(0.02)
    raise TimeoutError("the server does not listen")


async def _connected(connect: Callable[[], Awaitable[rest.Client]]) -> rest.Client:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(OSError):
            return await connect()
        await asyncio.sleep(0.1)
    raise TimeoutError("the server does not listen")
