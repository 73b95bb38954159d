"""The runner: results, errors, connections, threads, loops and forks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cellblock import Session
from cellblock.errors import CellblockError
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import Rules
from cellblock.tools.calling import pool
from cellblock.tools.calling.content import ToolImage, ToolResource
from cellblock.tools.calling.runner import ToolData, ToolLink, ToolRunner, ToolRunnerError, ToolText
from processes import eventually
from tool_calls import Recorded, tool_port

ALLOW = Rules(default="allow")


@pytest.fixture(autouse=True)
def no_connections_left(nothing_left_behind: None) -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture
async def servers() -> Recorded:
    return Recorded()


@pytest.fixture
async def port(servers: Recorded) -> AsyncIterator[int]:
    async with tool_port(Broker(ALLOW), servers, "files") as port:
        yield port


async def test_structured_results_are_dicts_and_texts_are_texts(port: int) -> None:
    runner = ToolRunner("files", port=port)
    assert await runner.run("structured", {"a": [1, None, "ü"]}) == {"got": {"a": [1, None, "ü"]}}
    large = await runner.run("large", {})
    assert isinstance(large, ToolData)
    assert (large, large.images[0].data) == ({"n": ["ü"]}, b"\x89PNG")
    assert await runner.run("read", {}) == "read:{}"
    assert await runner.run("silent", {}) is None
    assert type(await runner.run("read", {})) is str
    assert await asyncio.to_thread(runner.run_sync, "structured", {}) == {"got": {}}


async def test_images_and_resources_come_with_the_result(port: int) -> None:
    result = await ToolRunner("files", port=port).run("picture", {})
    assert isinstance(result, ToolText)
    assert result == "a cat\n[resource file:///a]\nabc"  # what a resource says is what the tool says
    assert result.images == (ToolImage(b"\x89PNG", "image/png"),)
    assert result.resources == (ToolResource("file:///a", text="abc"),)
    assert ToolData(a=1).images == ()


async def test_a_link_can_be_read(port: int, servers: Recorded) -> None:
    result = await ToolRunner("files", port=port).run("links", {})
    assert result == "[link to a resource demo://a (text/plain): a; to read it, call read() of its entry in .resources]"
    assert isinstance(result, ToolText)
    (link,) = result.resources
    assert isinstance(link, ToolLink)
    assert await link.read_async() == await asyncio.to_thread(link.read) == "resources/read:{'uri': 'demo://a'}"
    assert servers.calls[1:] == [("files", "resources/read", {"uri": "demo://a"})] * 2


@pytest.mark.parametrize(
    ("tool", "message"), [("fails", "the disk is on fire"), ("breaks", "it died"), ("bug", "its log says why")]
)
async def test_failures_are_errors_in_the_words_of_the_server(port: int, tool: str, message: str) -> None:
    with pytest.raises(ToolRunnerError, match=message) as caught:
        await ToolRunner("files", port=port).run(tool, {})
    assert isinstance(caught.value, CellblockError)
    with pytest.raises(ToolRunnerError, match=message):
        await asyncio.to_thread(ToolRunner("files", port=port).run_sync, tool, {})


async def test_no_tool_server_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ToolRunnerError, match=r"no tool server at localhost:1; start a ToolServer"):
        await ToolRunner("files", port=1).run("read", {})
    with pytest.raises(ToolRunnerError, match="no tool server"):
        ToolRunner("files", port=1).run_sync("read", {})


async def test_arguments_that_are_no_json_are_an_error(port: int) -> None:
    for arguments in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(ToolRunnerError, match="not valid JSON"):
            await ToolRunner("files", port=port).run("read", arguments)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"x" * 200_000,
    ],
)
async def test_whatever_answers_only_a_runner_error_comes_out(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ToolRunnerError):
            await ToolRunner("files", host="127.0.0.1", port=port).run("read", {})
        with pytest.raises(ToolRunnerError):
            await asyncio.to_thread(ToolRunner("files", host="127.0.0.1", port=port).run_sync, "read", {})


@pytest.mark.slow
async def test_a_thousand_gathered_calls_use_a_bounded_number_of_connections(servers: Recorded) -> None:
    most = 0
    asked: list[ApprovalRequest] = []

    async def decide() -> None:
        nonlocal most
        for _ in range(1000):
            await eventually(lambda: asked)
            most = max(most, len(pool._state.busy))
            request = asked.pop(random.randrange(len(asked)))
            await (request.accept() if request.tool_args["n"] % 2 else request.reject())

    async with tool_port(Broker(None, asked.append), servers, "files") as port:
        runner = ToolRunner("files", port=port)
        deciding = asyncio.create_task(decide())
        results = await asyncio.gather(*(runner.run("read", {"n": n}) for n in range(1000)), return_exceptions=True)
        await deciding
    assert [r for r in results if isinstance(r, str)] == [f"read:{{'n': {n}}}" for n in range(1, 1000, 2)]
    assert all(isinstance(r, ToolRunnerError) for r in results[::2])
    assert 2 <= most <= pool.MAX_CONNECTIONS
    assert len(servers.calls) == 500


async def test_threads_and_loops_share_a_runner(port: int) -> None:
    runner = ToolRunner("files", port=port)
    wrong: list[Any] = []

    def one_thread(number: int) -> None:
        async def calls() -> None:
            wanted = f"read:{{'n': {number}}}"
            results = await asyncio.gather(*(runner.run("read", {"n": number}) for _ in range(20)))
            wrong.extend(result for result in results if result != wanted)

        try:
            for _ in range(20):
                if runner.run_sync("read", {"n": number}) != f"read:{{'n': {number}}}":
                    wrong.append(number)
            asyncio.run(calls())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=one_thread, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert wrong == []


FORK = """
import asyncio, json, os, selectors, sys
from cellblock.tools.calling import pool
from cellblock.tools.calling.runner import ToolRunner, ToolRunnerError

runner = ToolRunner("files")
seen = {}

async def child_of(task, loop):
    # The loop goes on in the child, as a kernel's does.
    asyncio._set_running_loop(loop)
    seen["lost"] = False
    try:
        await task
    except ToolRunnerError:
        seen["lost"] = True
    seen["child"] = await runner.run("read", {"who": "child"}), runner.run_sync("read", {"who": "child"})

async def main():
    await runner.run("read", {"n": 1})
    task = asyncio.ensure_future(runner.run("waits", {"n": 2}))
    await asyncio.sleep(0)
    while not pool._state.busy:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    pid = os.fork()
    if pid == 0:
        await child_of(task, loop)
        print(json.dumps(seen), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(json.dumps([await task, await runner.run("read", {"who": "parent"})]))

with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.PollSelector())) as loop:
    loop.run(main())
"""


@pytest.mark.slow
async def test_a_forked_child_makes_connections_of_its_own(servers: Recorded, port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FORK,
        env={**os.environ, "CELLBLOCK_TOOL_HOST": "127.0.0.1", "CELLBLOCK_TOOL_PORT": str(port)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await eventually(lambda: [arguments for _, _, arguments in servers.calls].count({"who": "child"}) == 2)
        # Only now, so that the fork found the call waiting.
        servers.blocking.set()
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    child, parent = map(json.loads, out.decode().splitlines())
    assert child == {"lost": True, "child": ["read:{'who': 'child'}"] * 2}
    assert parent == ["waits:{'n': 2}", "read:{'who': 'parent'}"]


async def test_host_port_and_token_come_from_the_environment_and_proxies_do_not(
    servers: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    runner = ToolRunner("files")
    async with tool_port(Broker(ALLOW), servers, "files", token="secret") as port:
        monkeypatch.setenv("CELLBLOCK_TOOL_HOST", "127.0.0.1")
        monkeypatch.setenv("CELLBLOCK_TOOL_PORT", str(port))
        with pytest.raises(ToolRunnerError, match="token"):
            await runner.run("read", {})
        monkeypatch.setenv("CELLBLOCK_TOOL_TOKEN", "secret")
        assert await runner.run("read", {}) == "read:{}"


def test_the_runner_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; from cellblock.tools.calling.runner import ToolRunner; "
        "print([n for n in sys.modules if n.split('.')[0] not in sys.stdlib_module_names "
        "and not n.startswith(('cellblock', '_', 'sitecustomize'))], "
        "sorted(n for n in sys.modules if n.startswith('cellblock')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], capture_output=True
    )
    loaded = (
        "['cellblock', 'cellblock.errors', 'cellblock.tools', 'cellblock.tools.calling', "
        "'cellblock.tools.calling.content', 'cellblock.tools.calling.pool', "
    )
    assert done.stdout.decode() == f"[] {loaded}'cellblock.tools.calling.runner']\n", done.stderr


@pytest.mark.slow
async def test_what_is_shown_of_a_failed_tool_is_the_call_and_the_servers_words(session: Session) -> None:
    code = """
import sys, types
from cellblock.tools.calling import typed

generated = types.ModuleType("generated")
generated.call = typed.caller("files")
exec("def run(params):\\n    return call('read', params, str)", vars(generated))

def read():
    print("so far")
    generated.run(typed.ParamsModel())
read()
"""
    await session.execute("import os; os.environ['TOOL_SERVER_PORT'] = '1'")
    result = await session.execute(code)
    assert result.error is not None
    assert result.error.evalue.startswith("There is no tool server at localhost:1")
    shown = "\n".join(result.error.traceback)
    assert shown.count("Cell In[2]") == 2
    assert "---> 10     generated.run(typed.ParamsModel())" in shown
    assert "typed.py" not in shown
    assert "runner.py" not in shown
    assert "in run(params)" not in shown
    assert "---> 10     generated.run(typed.ParamsModel())" in result.for_model()
