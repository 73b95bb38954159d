"""The daemon of named sessions: what sessions and clients cost its loop. Clients run in another process."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import turns
from cellblock.host import Host
from cellblock.model.sessions import ExecutionRecord, SessionRecord
from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.named.executions import Execution
from cellblock.service.named.limits import NamedLimits
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.journal import Journal, new_id
from cellblock.service.store.named import NamedStore

_MANY = 10_000

# Asks the same of many connections, and reads the answers or does not, until its input ends.
_CLIENTS = """
import asyncio, socket, sys, threading
from cellblock import __version__
from cellblock.service.daemon.codec import encode_request
from cellblock.operations.base import PROTOCOL
from cellblock.operations.executions import Executions, Follow
from cellblock.operations.sessions import Hello, List
path, count, reading, request = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "read", eval(sys.argv[4])
def run():
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(encode_request(1, Hello(PROTOCOL, __version__)) + encode_request(2, request))
    while reading and client.recv(1 << 20):
        pass
    clients.append(client)
clients = []
for _ in range(count):
    threading.Thread(target=run, daemon=True).start()
sys.stdin.read()
"""


class _Daemon:
    """A daemon in this process."""

    def __init__(self, sessions: NamedSessions, path: Path) -> None:
        self.sessions = sessions
        self.path = path

    async def run(self, code: str, *, timeout: float = 5.0) -> Execution:
        """Begin to run code in a session, with events."""
        named = await self.sessions.create("it", {"sandbox": False})
        execution = Execution(named.record.kernel_id, "it", code, timeout=timeout, live=True)
        submitted = self.sessions.executions.submit(named, execution)
        assert isinstance(submitted, Execution)
        turns.begin()  # it has a kernel, and all that this needs is loaded
        return submitted

    @asynccontextmanager
    async def clients(self, request: str, count: int = 100, *, read: bool = True) -> AsyncIterator[None]:
        """Have many clients ask for something, as long as the context is entered."""
        arguments = [str(self.path), str(count), "read" if read else "wait", request]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CLIENTS, *arguments, stdin=asyncio.subprocess.PIPE
        )
        try:
            yield
        finally:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _daemon(stored: int = 0) -> AsyncIterator[_Daemon]:
    """A daemon with some sessions that have no kernel."""
    with tempfile.TemporaryDirectory() as directory:
        store = NamedStore(Path(directory))
        for number in range(stored):
            record = SessionRecord(f"{number:032x}", f"session {number}", "2026-01-01", "2026-01-01", tags={"a": "b"})
            store.sessions.add(record, {})
            if number % 1000 == 0:
                await asyncio.sleep(0)
        async with Host(isolate="none") as host:
            sessions = NamedSessions(host, store, NamedLimits(sessions=2 * _MANY))
            server, path = Server(sessions), Path(directory) / "socket"
            listening = await asyncio.get_running_loop().create_unix_server(lambda: Client(server), str(path), backlog=1024)
            turns.begin()
            try:
                yield _Daemon(sessions, path)
            finally:
                turns.end()
                listening.close()
                for client in [*server.clients]:
                    client.abort()
                await sessions.close()


async def case_flood_to_100_followers() -> None:
    """A cell that prints without end, and 100 clients that follow it."""
    async with _daemon() as daemon:
        execution = await daemon.run("while True: print('x' * 200, flush=True)")
        async with daemon.clients(f"Follow({execution.record.id!r})"):
            await execution.log.settle()


async def case_flood_to_100_that_do_not_read() -> None:
    """The same, and none of them reads."""
    async with _daemon() as daemon:
        execution = await daemon.run("while True: print('x' * 200, flush=True)")
        async with daemon.clients(f"Follow({execution.record.id!r})", read=False):
            await execution.log.settle()


async def case_large_displays_to_100_followers() -> None:
    """A cell that shows large values, and 100 clients that follow it."""
    async with _daemon() as daemon:
        execution = await daemon.run(
            "import time\nfrom IPython.display import HTML, display\n"
            "for _ in range(20): display(HTML('x' * 1_000_000)); time.sleep(0.1)",
            timeout=15,
        )
        async with daemon.clients(f"Follow({execution.record.id!r})"):
            await execution.log.settle()


async def case_results_of_many_megabytes() -> None:
    """Cells whose results are as large as may be: each is written to the journal."""
    code = (
        "from IPython.display import HTML, display\n"
        "display({'image/png': bytes(20 * 2**20), 'text/plain': ''}, raw=True)\n"
        "display(HTML('é' * (5 * 2**20)))"
    )
    async with _daemon() as daemon:
        for _ in range(5):
            execution = await daemon.run(code)
            await execution.log.settle()
            assert len(execution.packed or b"") > 25 * 2**20


async def case_late_followers() -> None:
    """100 clients that follow an execution with 10,000 events from its beginning."""
    async with _daemon() as daemon:
        execution = await daemon.run(
            "import sys\nfor n in range(9000): print(n, file=(sys.stdout, sys.stderr)[n % 2], flush=True)"
        )
        await execution.log.settle()
        async with daemon.clients(f"Follow({execution.record.id!r})"):
            await asyncio.sleep(4)


async def case_list_of_10_000_sessions() -> None:
    """Clients that list 10,000 sessions."""
    async with _daemon(_MANY) as daemon, daemon.clients("List()", 10):
        await asyncio.sleep(3)


async def case_fresh_list_of_10_000_sessions() -> None:
    """The same, after looking at their kernels."""
    async with _daemon(_MANY) as daemon, daemon.clients("List(True)", 10):
        await asyncio.sleep(3)


async def _fill(journal: Journal, session: str, count: int) -> None:
    """Enter executions with long code, of which no events are kept."""
    code = "x = 1  # and so on\n" * 200
    for number in range(count):
        record = ExecutionRecord(new_id(), session, "done", 1.0, 2.0, 3.0)
        journal.add(record, b"", code)
        if number % 100 == 0:
            await asyncio.sleep(0)


async def case_executions_of_a_large_journal() -> None:
    """Clients that list executions, as many as there are: 10,000 of a session, and those of one that has few."""
    async with _daemon() as daemon:
        await (await daemon.run("1")).wait()
        await _fill(daemon.sessions.store.journal, daemon.sessions.find("it").record.kernel_id, _MANY // 2)
        await _fill(daemon.sessions.store.journal, "0" * 32, _MANY)
        turns.begin()
        async with daemon.clients("Executions('it', 1_000_000)", 10):
            await asyncio.sleep(2)
