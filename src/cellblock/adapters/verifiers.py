"""verifiers: `CellblockRuntime` is a runtime that a run borrows, ``agent.run(task, runtime=runtime)``."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from verifiers.v1.configs.runtime import NetworkPolicyConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.runtimes.base import ProgramResult, Runtime, RuntimeProcess
from verifiers.v1.runtimes.subprocess import SubprocessRuntimeInfo

from cellblock.adapters.sessions import AsyncSession
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.host.programs.process import Process
from cellblock.model.programs import ExecResult

_MAX_OUTPUT = 64 << 20
_LOOPBACK = "127.0.0.1"
_HOST = "[::ffff:127.0.0.1]"
"""This machine's loopback address, as programs write it: plain 127.0.0.1 is the session's own, for which no proxy is asked."""


class CellblockConfig(NetworkPolicyConfig):
    """What runs are told of the runtime; ``allow`` is what the agent can reach beside the framework."""

    type: Literal["cellblock"] = "cellblock"


class CellblockProcess(RuntimeProcess):
    """A program with its streams. Like pipes, both want to be read: what waits on one of them has a limit."""

    def __init__(self, process: Process) -> None:
        """Take a program that was started with a standard input."""
        self._process = process
        self._position = 0
        self._waiting: dict[str, deque[bytes]] = {"stdout": deque(), "stderr": deque()}
        self._turn = asyncio.Lock()
        self.stdout, self.stderr = self._stream("stdout"), self._stream("stderr")

    async def _stream(self, name: str) -> AsyncIterator[bytes]:
        mine = self._waiting[name]
        while True:
            while mine:
                yield mine.popleft()
            async with self._turn:
                if mine:
                    continue
                pieces = await self._process.read(self._position)
                for piece in pieces:
                    self._waiting[piece.stream].append(piece.data)
                    self._position = piece.offset + len(piece.data)
                if not pieces:
                    return
                if sum(len(data) for other in self._waiting.values() if other is not mine for data in other) > _MAX_OUTPUT:
                    raise SandboxError(f"nobody reads the other stream than {name}, and it is full")

    async def write(self, data: bytes) -> None:
        """Write to its standard input."""
        await self._process.write(data)

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        return _exit_code(await self._process.wait())

    async def poll(self) -> int | None:
        """Return its exit code, if it has ended."""
        ended = self._process.poll()
        return None if ended is None else _exit_code(ended)

    async def terminate(self) -> None:
        """Ask it and all that it has started to end."""
        self._process.signal(signal.SIGTERM, "tree")

    async def kill(self) -> None:
        """Kill it and all that it has started."""
        self._process.signal(signal.SIGKILL, "tree")


class CellblockRuntime(Runtime):
    """A session for runs to borrow: programs run beside its kernel. Use it as a context manager, or `start` and `stop` it."""

    def __init__(
        self,
        interception: InterceptionServer,
        executor: CodeExecutor | None = None,
        *,
        allow: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Set up; nothing is started.

        Args:
            interception: The started server by which agents reach the model: programs in the session may connect to its port.
            executor: A started executor, which stays the caller's. Its policy must allow ``127.0.0.1`` with that port.
            allow: Hosts that the agent can reach, of those in `allow_hosts`. When its set-up is done, all else is closed for
                good, so that one run can borrow the runtime. By default, nothing is closed.
            options: What to make an executor with: the arguments of `CodeExecutor`. Without `working_dir` it works in an empty
                directory of its own.

        Raises:
            InvalidInputError: An option is wrong.
        """
        super().__init__()
        if executor is None:
            hosts = [*options.pop("allow_hosts", ()), *(allow or ())]
            options["allow_hosts"] = [*hosts, f"{_LOOPBACK}:{interception.port}"]
        self.config = CellblockConfig(allow=["*"] if allow is None else [*allow])
        # Traces are read back with the runtimes that verifiers knows, and it knows nothing of this one.
        self.info = SubprocessRuntimeInfo(id=f"cellblock:{self.name}")
        self._session = AsyncSession(executor, options)

    async def start(self) -> None:
        """Start the session."""
        await self._session.executor()

    async def teardown(self) -> None:
        """End the session, if it is the runtime's own. If the program ends without it, the session ends with the program."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program. If this is cancelled, all that it has started ends."""
        executor = await self._session.executor()
        done = await executor.exec(argv, env=self.process_env(env), timeout=None, max_output=_MAX_OUTPUT)
        if done.truncated:
            raise SandboxError(f"{argv[0]} has said more than {_MAX_OUTPUT} bytes")
        return ProgramResult(_exit_code(done), done.out, done.err)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a program to talk with."""
        executor = await self._session.executor()
        return CellblockProcess(await executor.spawn(argv, env=self.process_env(env), stdin=True))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program that goes on until the session ends, with its output in a file."""
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
        """Write a file, and the directories above it."""
        await (await self._session.executor()).fs.write_bytes(path, data)

    def host_url(self, url: str) -> str:
        """Return the URL by which programs reach a server of this machine."""
        return url.replace(f"//{_LOOPBACK}:", f"//{_HOST}:", 1)

    async def expose(self, port: int) -> str:
        """Refuse: nothing outside can connect to a session."""
        raise SandboxError(f"port {port} of a session cannot be reached from outside: let the task's tools run elsewhere")

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Close what the set-up could reach, but not the framework's servers and what is allowed."""
        if not self.network_restricted:
            return
        if routes is None:
            raise SandboxError("the network of this runtime was closed for good: lend a new one to each run")
        framework = [urlsplit(route.replace(_HOST, _LOOPBACK)).netloc for route in routes]
        await (await self._session.executor()).session.close_egress([*framework, *self.config.allow])


def _exit_code(ended: ExecResult) -> int:
    if ended.status in ("cancelled", "unknown") or ended.exit_code is None:
        raise SandboxError(f"the program has no result: {ended.reason}")
    return ended.exit_code
