"""Random histories of cells, undos and a person with the same files: nothing that was saved is lost, through no front."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from mcp import Client

import cellblock
from cellblock import AsyncClient, CellblockError
from cellblock.fronts.functions.connection import local
from cellblock.host import Host
from cellblock.host.snapshots import trash
from daemons import own_daemon
from gateways import own_gateway, token
from mcp_clients import connect, run, text
from processes import eventually

HISTORIES = 15
NAMES = ("a", "b", "d/c")
WRITE = "import os\nos.makedirs('d', exist_ok=True)\nopen({path!r}, 'w').write({content!r})\nx = {content!r}"
WAIT = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.005)\n"


class Front(Protocol):
    """One session, through one front. What cannot be done is a `CellblockError`."""

    async def execute(self, code: str) -> object: ...
    async def undo(self, count: int) -> object: ...
    async def redo(self) -> object: ...


class OfMCP:
    """A session of the MCP server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def execute(self, code: str) -> object:
        return text(await run(self._client, code))

    async def undo(self, count: int) -> object:
        return await self._call("undo", count=count)

    async def redo(self) -> object:
        return await self._call("redo")

    async def _call(self, tool: str, **arguments: int) -> str:
        answer = await self._client.call_tool(tool, arguments)
        if answer.is_error:
            raise CellblockError(text(answer))
        return text(answer)


class OfNamed:
    """A named session, through functions that take its name."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self._name, self._call = name, call

    async def execute(self, code: str) -> object:
        return await self._call("execute", self._name, code)

    async def undo(self, count: int) -> object:
        return await self._call("undo", self._name, count)

    async def redo(self) -> object:
        return await self._call("redo", self._name)


@pytest.fixture(scope="module")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway for a daemon of its own, which the functions of `cellblock` ask, too."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
        yield made.url


@asynccontextmanager
async def of_functions(workspace: Path) -> AsyncIterator[Front]:
    with ThreadPoolExecutor(1) as thread:  # a connection belongs to a thread

        async def call(function: str, *arguments: Any, **options: Any) -> Any:
            there = asyncio.get_running_loop()
            return await there.run_in_executor(thread, lambda: getattr(cellblock, function)(*arguments, **options))

        def close() -> None:
            for each in local.__dict__.pop("connections", {}).values():
                each.close()

        await call("get_or_create", "s", working_dir=str(workspace))
        try:
            yield OfNamed("s", call)
        finally:
            await call("destroy", "s")
            thread.submit(close).result()


@asynccontextmanager
async def of_http(url: str, workspace: Path) -> AsyncIterator[Front]:
    async with AsyncClient(url, token("admin")) as client:

        async def call(function: str, *arguments: Any) -> Any:
            return await getattr(client, function)(*arguments)

        await client.get_or_create("s", working_dir=str(workspace))
        try:
            yield OfNamed("s", call)
        finally:
            await client.destroy("s")


class Workspace:
    """A workspace, and a person who works in it."""

    def __init__(self, top: Path, chance: random.Random) -> None:
        self._top, self._chance = top, chance
        self._numbers = itertools.count()

    def content(self, who: str) -> str:
        """Return a content that there is nowhere yet."""
        return f"{who} {next(self._numbers)} {self._top.name}"

    def save(self) -> tuple[str, str]:
        """Have the person write, move or delete a file; return the path whose content is given up, and what was written."""
        name, other = self._chance.choice(NAMES), self._chance.choice(NAMES)
        path, to = self._top / name, self._top / other
        match self._chance.choice(["write", "write", "write", "move", "delete"]):
            case "write":
                path.parent.mkdir(exist_ok=True)
                path.write_text(content := self.content("person"))
                return name, content
            case "move":
                with suppress(FileNotFoundError):
                    to.parent.mkdir(exist_ok=True)
                    path.rename(to)
                return other, ""
            case _:
                path.unlink(missing_ok=True)
                return name, ""

    def contents(self) -> dict[str, str]:
        """Return what there is, by path."""
        files = (path for path in self._top.rglob("*") if path.is_file())
        return {str(path.relative_to(self._top)): path.read_text() for path in files}


def in_trash(root: Path) -> set[str]:
    """Return the contents of all files in the trash of all sessions."""
    return {path.read_text() for path in root.rglob("files/**/*") if path.is_file()}


async def history(front: Front, top: Path, chance: random.Random, root: Path) -> None:
    """Play one history; after each operation, each content from before it is in the workspace or in the trash."""
    there = Workspace(top, chance)
    was: dict[str, str] | None = None
    for _ in range(10):
        step = chance.choice(["cell", "cell", "shared cell", "person", "undo", "undo", "redo"])
        if step == "cell":
            await front.execute(WRITE.format(path=chance.choice(NAMES), content=there.content("cell")))
        elif step == "shared cell":
            code = WAIT + WRITE.format(path=chance.choice(NAMES), content=there.content("cell"))
            running = asyncio.create_task(front.execute(code))
            await eventually((top / "begun").exists)
            there.save()
            (top / "go").touch()
            await running
            for name in ("begun", "go"):
                (top / name).unlink()
        elif step == "person":
            there.save()
        else:
            was = await operation(front, step, there, chance, root, was)
            continue
        was = None


async def operation(
    front: Front, step: str, there: Workspace, chance: random.Random, root: Path, was: dict[str, str] | None
) -> dict[str, str] | None:
    """Undo or redo, now and then with a person who saves meanwhile.

    Args:
        front: The session.
        step: What is done.
        there: Its workspace.
        chance: What is random.
        root: The directory of the trash.
        was: What a redo makes of the workspace; None if that is not known.

    Returns:
        What a redo would make of the workspace now.
    """
    given = there.contents()
    kept, alone = {*given.values()}, chance.random() < 0.7
    going = asyncio.ensure_future(front.undo(chance.randint(1, 3)) if step == "undo" else front.redo())
    if not alone:
        await asyncio.sleep(chance.random() * 0.02)
        path, written = there.save()
        kept = (kept - {given.get(path)}) | {written} - {""}
    done = True
    try:
        await going
    except CellblockError:
        done = False
    left = there.contents()
    assert kept <= {*left.values()} | in_trash(root), (step, given, left)
    if not alone:
        return None
    if not done:
        assert left == given
    elif step == "redo" and was is not None:
        assert left == was
    return given if done and step == "undo" else None


async def play(
    open_front: Callable[[Path], AbstractAsyncContextManager[Front]], tmp_path: Path, histories: int, root: Path
) -> None:
    """Play histories one after the other, each in a workspace and with a seed of its own."""
    for seed in range(histories):
        workspace = tmp_path / f"{seed}"
        workspace.mkdir()
        async with open_front(workspace) as front:
            await history(front, workspace, random.Random(seed), root)


@pytest.mark.parametrize(
    ("isolate", "histories"),
    [
        ("native", 3),
        *(pytest.param(one, HISTORIES, marks=pytest.mark.slow) for one in ("none", "native", "landlock")),
    ],
)
async def test_a_session_loses_nothing(isolate: Any, histories: int, tmp_path: Path) -> None:
    async with Host(isolate=isolate) as host:
        await play(lambda workspace: host.session(working_dir=workspace), tmp_path, histories, trash._root())


@pytest.mark.slow
@pytest.mark.parametrize("front", ["functions", "http"])
async def test_a_named_session_loses_nothing(front: str, tmp_path: Path, gateway_url: str) -> None:
    opened = of_functions if front == "functions" else lambda workspace: of_http(gateway_url, workspace)
    await play(opened, tmp_path, HISTORIES, trash._root())


@pytest.mark.slow
async def test_a_session_of_the_mcp_server_loses_nothing(native_host: Host, tmp_path: Path) -> None:
    @asynccontextmanager
    async def of_mcp(workspace: Path) -> AsyncIterator[Front]:
        async with connect(native_host, workspace) as client:
            yield OfMCP(client)

    await play(of_mcp, tmp_path, HISTORIES, trash._root())
