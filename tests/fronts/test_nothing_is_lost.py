"""Random histories of cells, undos and a person with the same files: nothing that was saved is lost, through no front."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from mcp import Client

import cellblock
from cellblock import AsyncClient, CheckpointError
from cellblock.host import Host
from cellblock.service.daemon import control
from daemons import close_connections, own_daemon
from gateways import own_gateway, token
from histories import WITH_KILLS, WITHOUT_CHECKPOINTS, Session, play
from mcp_clients import connect, run, text

Call = Callable[..., Awaitable[Any]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # of one part; on a busy machine, minutes are no sign of a fault


class OfNamed:
    """A named session, or a branch of it, which ends with the context: through functions that take its name."""

    def __init__(self, name: str, call: Call) -> None:
        self._name, self._call = name, call

    async def __aenter__(self) -> OfNamed:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._call("destroy", self._name)

    async def execute(self, code: str) -> cellblock.CodeExecutionResult:
        result: cellblock.CodeExecutionResult = await self._call("execute", self._name, code)
        return result

    async def undo(self, count: int, *, partial: bool) -> object:
        return await self._call("undo", self._name, count, partial=partial)

    async def redo(self) -> object:
        return await self._call("redo", self._name)

    async def checkpoint(self, *, files: Literal["copy"]) -> Mark:
        return Mark(self._name, (await self._call("checkpoint", self._name, files=files)).id, self._call)

    async def restore(self, checkpoint: Mark) -> object:
        return await self._call("restore", self._name, checkpoint.id)

    async def fork(self, *, files: Literal["shared"]) -> list[OfNamed]:
        name = f"branch-of-{self._name}"
        await self._call("fork", self._name, [name], files=files)
        return [OfNamed(name, self._call)]

    async def adopt(self, branch: OfNamed) -> object:
        return await self._call("adopt", self._name, branch._name)


class Mark:
    """A checkpoint of a named session."""

    def __init__(self, session: str, number: str, call: Call) -> None:
        self.id = number
        self._session, self._call = session, call

    async def drop(self) -> None:
        await self._call("drop_checkpoint", self._session, self.id)


class Ran(NamedTuple):
    """The outcome of a cell, as the MCP server tells it."""

    ok: bool
    text: str
    recovery: None = None


class OfMCP:
    """A session of the MCP server, whose tools offer no checkpoints."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def execute(self, code: str) -> Ran:
        answer = await run(self._client, code)
        return Ran(not answer.is_error, text(answer))

    async def undo(self, count: int, *, partial: bool) -> object:
        return await self._call("undo", count=count, partial=partial)

    async def redo(self) -> object:
        return await self._call("redo")

    async def _call(self, tool: str, **arguments: int) -> str:
        answer = await self._client.call_tool(tool, arguments)
        if answer.is_error:
            raise CheckpointError(text(answer))
        return text(answer)

    async def checkpoint(self, *, files: Literal["copy"]) -> Any:
        raise NotImplementedError

    async def restore(self, checkpoint: Any) -> object:
        raise NotImplementedError

    async def fork(self, *, files: Literal["shared"]) -> list[Any]:
        raise NotImplementedError

    async def adopt(self, branch: Any) -> object:
        raise NotImplementedError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.fixture(scope="module")
def gateway_url(home: Path) -> Iterator[str]:
    with own_gateway() as made:
        yield made.url


async def ask(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function in another thread, by a new connection: a killed daemon may still take a request, and lose it."""

    def call() -> Any:
        try:
            return function(*arguments, **options)
        finally:
            close_connections()

    return await asyncio.to_thread(call)


async def function(name: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of cellblock."""
    return await ask(getattr(cellblock, name), *arguments, **options)


async def kill() -> None:
    """Kill the daemon, and wait until nobody can connect to it. The next request starts another one."""
    if (pid := await running()) is not None:
        os.kill(pid, signal.SIGKILL)
        while await running() == pid:
            await asyncio.sleep(0.01)


async def running() -> int | None:
    """Return the pid of the daemon that answers, if any."""
    with contextlib.suppress(cellblock.CellblockError):
        about = await ask(control.status)
        return None if about is None else int(about["pid"])
    return None


@asynccontextmanager
async def named(workspace: Path, call: Call) -> AsyncIterator[Session]:
    await call("get_or_create", "s", working_dir=str(workspace))
    async with OfNamed("s", call) as session:
        yield session


def parts(count: int) -> pytest.MarkDecorator:
    """Return a decorator that runs a test in several parts, which processes share. Each day has other histories."""
    return pytest.mark.parametrize("part", range(count))


@pytest.mark.parametrize(
    ("isolate", "part", "count"),
    [
        *(pytest.param("native", part, 121, marks=pytest.mark.long) for part in range(1, 4)),
        *(pytest.param("landlock", part, 120, marks=pytest.mark.long) for part in range(2)),
        *(pytest.param("none", part, 153, marks=pytest.mark.long) for part in range(7)),
    ],
)
@pytest.mark.sampled(1)
async def test_a_session_loses_nothing(isolate: Any, part: int, count: int, tmp_path: Path) -> None:
    async with Host(isolate=isolate) as host:
        await play(lambda workspace: host.session(working_dir=workspace), tmp_path, count, f"{isolate} {part}")


@pytest.mark.sampled(1)
@parts(2)
async def test_a_named_session_loses_nothing(home: Path, tmp_path: Path, part: int) -> None:
    await play(lambda workspace: named(workspace, function), tmp_path, 50, f"functions {part}", disk=False)


@pytest.mark.sampled(1)
async def test_a_named_session_loses_nothing_if_its_daemon_is_killed(home: Path, tmp_path: Path) -> None:
    await play(lambda workspace: named(workspace, function), tmp_path, 8, "killed", WITH_KILLS, disk=False, kill=kill)


@pytest.mark.sampled(1)
@parts(2)
async def test_a_session_of_the_gateway_loses_nothing(gateway_url: str, tmp_path: Path, part: int) -> None:
    async with AsyncClient(gateway_url, token("admin")) as client:

        async def call(name: str, *arguments: Any, **options: Any) -> Any:
            return await getattr(client, name)(*arguments, **options)

        await play(lambda workspace: named(workspace, call), tmp_path, 50, f"http {part}", disk=False)


@pytest.mark.sampled(1)
@parts(2)
async def test_a_session_of_the_mcp_server_loses_nothing(native_host: Host, tmp_path: Path, part: int) -> None:
    @asynccontextmanager
    async def of_mcp(workspace: Path) -> AsyncIterator[Session]:
        async with connect(native_host, workspace) as client:
            yield OfMCP(client)

    await play(of_mcp, tmp_path, 60, f"mcp {part}", WITHOUT_CHECKPOINTS)
