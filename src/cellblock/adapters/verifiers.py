"""verifiers: `CellblockRuntime` is a runtime that a run borrows, ``agent.run(task, runtime=runtime)``."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from verifiers.v1.configs.runtime import NetworkPolicyConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.runtimes.base import ProgramResult, Runtime, RuntimeProcess
from verifiers.v1.runtimes.subprocess import SubprocessRuntimeInfo

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.adapters.verifiers_processes import MAX_OUTPUT, CellblockProcess, exit_code
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.host.programs.process import Process

_RELAY = r"""
import os, socket, sys, threading, urllib.parse
port, proxy = int(sys.argv[1]), urllib.parse.urlsplit(os.environ["HTTP_PROXY"])
def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close(), target.close()
def serve(client):
    with client, socket.create_connection((proxy.hostname, proxy.port)) as server:
        server.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port))
        head = server.makefile("rb", 0)
        if b" 200 " in head.readline():
            while head.readline() not in (b"\r\n", b""):
                pass
            threading.Thread(target=copy, args=(client, server), daemon=True).start()
            copy(server, client)
listener = socket.create_server(("127.0.0.1", port))
print(flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
"""Listens where programs look for the model: at the port of verifiers' server, but on the session's own loopback interface."""


class CellblockConfig(NetworkPolicyConfig):
    """The runtime's configuration, as runs see it; ``allow`` lists additional hosts that the agent can reach."""

    type: Literal["cellblock"] = "cellblock"


class CellblockRuntime(Runtime):
    """A session that runs borrow: programs run next to its kernel. A context manager; or call `start` and `stop`."""

    def __init__(
        self,
        interception: InterceptionServer,
        executor: CodeExecutor | None = None,
        *,
        allow: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Set up without starting.

        Args:
            interception: The started server through which agents reach the model: programs in the session may connect to
                its port.
            executor: A started executor, which the caller stops. Its policy must allow ``127.0.0.1`` with that port.
            allow: The hosts in `allow_hosts` that the agent can reach. All others are closed permanently after the set-up,
                so only one run can borrow the runtime. By default, nothing is closed.
            options: The arguments of `CodeExecutor` for a new executor. Without `working_dir`, it works in an empty
                directory of its own.

        Raises:
            InvalidInputError: An option is invalid.
        """
        super().__init__()
        if executor is None:
            hosts = [*options.pop("allow_hosts", ()), *(allow or ())]
            options["allow_hosts"] = [*hosts, f"127.0.0.1:{interception.port}"]
        self.config = CellblockConfig(allow=["*"] if allow is None else [*allow])
        # Traces are parsed with the runtimes that verifiers knows, which do not include this one.
        self.info = SubprocessRuntimeInfo(id=f"cellblock:{self.name}")
        self._session = AsyncSession(executor, options)
        self._port = interception.port
        self._relay: Process | None = None

    async def start(self) -> None:
        """Start the session, and the relay through which its programs reach the model."""
        executor = await self._session.executor()
        if self._relay is None:
            self._relay = await executor.spawn(["python3", "-c", _RELAY, str(self._port)], label="verifiers")
        if {piece.stream for piece in await self._relay.read()} != {"stdout"}:
            raise SandboxError(f"port {self._port} cannot be relayed: allow the session to reach 127.0.0.1:{self._port}")

    async def teardown(self) -> None:
        """End the session, if the runtime owns it. Otherwise the session ends with the program."""
        if self._relay is not None:
            await self._relay.stop(0)
        await self._session.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as failing:
            failing.push_async_callback(self.stop)  # also the relay, in a session with another owner
            await self.start()
            failing.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program. Cancelling this stops the program and its child processes."""
        executor = await self._session.executor()
        done = await executor.exec(argv, env=self.process_env(env), timeout=None, max_output=MAX_OUTPUT)
        if done.truncated:
            raise SandboxError(f"{argv[0]} printed more than {MAX_OUTPUT} bytes")
        return ProgramResult(exit_code(done), done.out, done.err)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a program for interactive use."""
        executor = await self._session.executor()
        return CellblockProcess(await executor.spawn(argv, env=self.process_env(env), stdin=True))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program that runs until the session ends, with its output in a file."""
        executor = await self._session.executor()
        await executor.spawn(argv, env=self.process_env(env), merge=True, log=log)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        limit = {} if max_bytes is None else {"max_bytes": max_bytes}
        try:
            return await (await self._session.executor()).fs.read_bytes(path, **limit)
        except OSError as error:
            why = f"over the {max_bytes} byte limit" if error.errno == errno.EFBIG else str(error)
            raise SandboxError(f"read {path!r}: {why}") from error

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, and create missing parent directories."""
        await (await self._session.executor()).fs.write_bytes(path, data)

    async def expose(self, port: int) -> str:
        """Refuse: nothing outside can connect to a session."""
        raise SandboxError(
            f"port {port} of a session cannot be reached from outside: run the task's tools outside the session"
        )

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Close the hosts of the set-up, except the framework's servers and allowed hosts."""
        if not self.network_restricted:
            return
        if routes is None:
            raise SandboxError("the network of this runtime is closed permanently: use a new runtime for each run")
        framework = [urlsplit(route).netloc for route in routes]
        await (await self._session.executor()).session.close_egress([*framework, *self.config.allow])
