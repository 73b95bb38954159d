"""ToolServer, ToolRunner and ApprovalClient together, as ipybox documents them: ordinary programs outside any session."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from cellblock import (
    ApprovalClient,
    ApprovalRequest,
    InvalidInputError,
    StateError,
    ToolRunner,
    ToolRunnerError,
    ToolServer,
)
from cellblock.tools.calling import pool
from cellblock.tools.mcp.changes import GONE
from processes import eventually
from tool_calls import Recorded

PARAMS = {"command": "uvx", "args": ["mcp-server-fetch"]}


@pytest.fixture(autouse=True)
def no_connections_left(nothing_left_behind: None) -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(ToolServer, "_make_servers", lambda self: recorded)
    return recorded


@pytest.fixture
async def asking(servers: Recorded) -> AsyncIterator[ToolServer]:
    async with ToolServer(port=0, approval_required=True, approval_timeout=10) as server:
        yield server


async def accept(request: ApprovalRequest) -> None:
    await request.accept()


async def test_a_runner_calls_a_tool(servers: Recorded) -> None:
    async with ToolServer(port=0) as server:
        runner = ToolRunner(server_name="fetch", server_params=PARAMS, port=server.port)
        result = await runner.run("fetch", {"url": "https://example.com"})
        assert result == "fetch:{'url': 'https://example.com'}"
        assert await asyncio.to_thread(runner.run_sync, "structured", {"a": 1}) == {"got": {"a": 1}}
        assert servers.resets == 0
        await runner.reset()
        assert servers.resets == 1
    assert servers.resets == 2


async def test_a_client_is_asked_about_each_call(asking: ToolServer, servers: Recorded) -> None:
    seen = []

    async def on_approval_request(request: ApprovalRequest) -> None:
        seen.append(f"Approval request: {request}")
        if request.tool_name == "dangerous_tool":
            await request.reject()
        else:
            await request.accept()

    runner = ToolRunner("fetch", PARAMS, port=asking.port)
    async with ApprovalClient(callback=on_approval_request, port=asking.port):
        assert await runner.run("fetch", {"url": "x"}) == "fetch:{'url': 'x'}"
        with pytest.raises(ToolRunnerError, match="rejected"):
            await runner.run("dangerous_tool", {})
    assert seen == ["Approval request: fetch.fetch(url='x')", "Approval request: fetch.dangerous_tool()"]
    assert len(servers.calls) == 1


async def test_what_is_done_elsewhere_is_only_asked_about(asking: ToolServer, servers: Recorded) -> None:
    seen = []

    async def decide(request: ApprovalRequest) -> None:
        seen.append((request.kind, str(request)))
        await (request.accept() if request.tool_args["command"] == "ls" else request.reject())

    runner = ToolRunner("shell", port=asking.port)
    async with ApprovalClient(decide, port=asking.port):
        await runner.approve("shell", {"command": "ls"})
        with pytest.raises(ToolRunnerError, match=r"shell\.shell rejected"):
            await runner.approve("shell", {"command": "rm"})
    assert [text for _, text in seen] == ["shell.shell(command='ls')", "shell.shell(command='rm')"]
    with pytest.raises(ToolRunnerError, match="no ApprovalClient is connected"):
        await runner.approve("shell", {"command": "ls"})
    with pytest.raises(ToolRunnerError, match="have no server_params"):
        await ToolRunner("fetch", PARAMS, port=asking.port).approve("fetch", {})
    assert servers.calls == []


async def test_a_request_expires(servers: Recorded) -> None:
    requests: list[ApprovalRequest] = []

    async def keep(request: ApprovalRequest) -> None:
        requests.append(request)

    async with (
        ToolServer(port=0, approval_required=True, approval_timeout=0.1) as server,
        ApprovalClient(keep, port=server.port),
    ):
        with pytest.raises(ToolRunnerError, match=r"within 0\.1 s"):
            await ToolRunner("fetch", PARAMS, port=server.port).run("fetch", {})
        await eventually(lambda: requests[0].state == "withdrawn")
        await requests[0].accept()
    assert servers.calls == []


async def test_always_reaches_the_server(asking: ToolServer) -> None:
    asked = 0

    async def once(request: ApprovalRequest) -> None:
        nonlocal asked
        asked += 1
        await request.accept(always="tool")

    runner = ToolRunner("fetch", PARAMS, port=asking.port)
    async with ApprovalClient(once, port=asking.port):
        for n in range(3):
            await runner.run("fetch", {"n": n})
        assert asked == 1
        await runner.reset()
        await runner.run("fetch", {})
    assert asked == 2


async def test_a_callback_that_fails_has_rejected(asking: ToolServer, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: ApprovalRequest) -> None:
        raise LookupError("no such user")

    async with ApprovalClient(fails, port=asking.port):
        with pytest.raises(ToolRunnerError, match="rejected"):
            await ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {})
    assert "no such user" in caplog.text


async def test_a_client_that_leaves_fails_what_is_pending(asking: ToolServer, servers: Recorded) -> None:
    requests: list[ApprovalRequest] = []

    async def keep(request: ApprovalRequest) -> None:
        requests.append(request)
        await asyncio.Event().wait()

    async with ApprovalClient(keep, port=asking.port):
        call = asyncio.create_task(ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {}))
        await eventually(lambda: requests)
    with pytest.raises(ToolRunnerError, match="disconnected"):
        await call
    async with ApprovalClient(accept, port=asking.port):
        await ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {})
    assert len(servers.calls) == 1


async def test_a_second_client_does_not_take_the_approvals_away(asking: ToolServer, servers: Recorded) -> None:
    async def reject(request: ApprovalRequest) -> None:
        await request.reject()

    async with ApprovalClient(reject, port=asking.port):
        with pytest.raises(StateError, match="refused the approval client: another approval client is connected"):
            await ApprovalClient(accept, port=asking.port).connect()
        with pytest.raises(ToolRunnerError, match="rejected"):
            await ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {})
    assert servers.calls == []


async def test_forged_answers_decide_nothing(asking: ToolServer, servers: Recorded) -> None:
    async with connect(f"ws://localhost:{asking.port}/approval", proxy=None) as client:
        call = asyncio.create_task(ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {}))
        request = json.loads(await client.recv())
        for forged in ("0" * 32, "1", "", request["id"].upper() + "x"):
            await client.send(json.dumps({"jsonrpc": "2.0", "id": forged, "result": True}))
        answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": False})
        await client.send(answer)
        with pytest.raises(ToolRunnerError, match="rejected"):
            await call
        # The same id once more, for the next call: it was good for one.
        call = asyncio.create_task(ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {}))
        second = json.loads(await client.recv())
        assert second["id"] != request["id"]
        await client.send(answer.replace("false", "true"))
        await client.send(json.dumps({"jsonrpc": "2.0", "id": second["id"], "result": False}))
        with pytest.raises(ToolRunnerError, match="rejected"):
            await call
    assert servers.calls == []


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "[]",
        "1",
        '{"id": 1}',
        '{"id": "ID"}',
        '{"id": "ID", "result": 1}',
        '{"id": "ID", "result": "true"}',
        '{"id": "ID", "result": {"accepted": 1}}',
        '{"id": "ID", "result": {"accepted": true, "always": "all"}}',
        "[" * 60_000,
    ],
)
async def test_answers_that_are_none_end_the_connection_and_fail_the_call(
    asking: ToolServer, servers: Recorded, answer: str
) -> None:
    async with connect(f"ws://localhost:{asking.port}/approval", proxy=None) as client:
        call = asyncio.create_task(ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {}))
        request = json.loads(await client.recv())
        await client.send(answer.replace("ID", request["id"]))
        await client.wait_closed()
    with pytest.raises(ToolRunnerError, match="disconnected"):
        await call
    assert servers.calls == []


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost"}, {"Host": "evil.example"}])
async def test_web_pages_cannot_approve(asking: ToolServer, headers: dict[str, str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", asking.port)
    given = {"Host": "localhost", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    given |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}
    writer.write(("GET /approval HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in given.items()) + "\r\n").encode())
    refused = (await reader.readline()).split()[1]
    writer.close()
    assert refused in (b"403", b"421")


async def test_a_token_is_wanted_everywhere(servers: Recorded) -> None:
    async with ToolServer(port=0, approval_required=True, token="right-and-long-enough") as server:
        for token in (None, "wrong", "right-and-long-enoug", "right-and-long-enough2"):
            runner = ToolRunner("fetch", PARAMS, port=server.port, token=token)
            with pytest.raises(ToolRunnerError, match="token"):
                await runner.run("fetch", {})
            with pytest.raises(ToolRunnerError, match="token"):
                await runner.reset()
            with pytest.raises(StateError, match="refused the approval client: the bearer token is missing or wrong"):
                await ApprovalClient(accept, port=server.port, token=token).connect()
        async with ApprovalClient(accept, port=server.port, token="right-and-long-enough"):
            await ToolRunner("fetch", PARAMS, port=server.port, token="right-and-long-enough").run("fetch", {})
        with pytest.raises(InvalidStatus):
            await connect(f"ws://localhost:{server.port}/approval", proxy=None)
    assert servers.resets == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_other_machines_need_a_token(servers: Recorded, host: str) -> None:
    with pytest.raises(InvalidInputError, match="Give it a token"):
        await ToolServer(host, 0).start()
    async with ToolServer(host, 0, token="right-and-long-enough") as server:
        runner = ToolRunner("fetch", PARAMS, "localhost", server.port, token="right-and-long-enough")
        assert await runner.run("fetch", {}) == "fetch:{}"


async def test_other_parameters_are_refused_until_a_reset(servers: Recorded) -> None:
    async with ToolServer(port=0) as server:
        await ToolRunner("fetch", PARAMS, port=server.port).run("a", {})
        await ToolRunner("fetch", port=server.port).run("b", {})
        other = ToolRunner("fetch", {"command": "other"}, port=server.port)
        with pytest.raises(ToolRunnerError, match="other parameters; reset"):
            await other.run("c", {})
        await other.reset()
        await other.run("d", {})
        with pytest.raises(ToolRunnerError, match="no MCP server is registered as 'unknown'"):
            await ToolRunner("unknown", port=server.port).run("e", {})
        with pytest.raises(ToolRunnerError, match="command"):
            await ToolRunner("wrong", {"comand": "x"}, port=server.port).run("f", {})
    assert [tool for _, tool, _ in servers.calls] == ["a", "b", "d"]


async def test_starting_twice_and_stopping(servers: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    server = ToolServer(port=0)
    await server.stop()
    await server.join()
    await server.start()
    with pytest.raises(RuntimeError, match="already running"):
        await server.start()
    with pytest.raises(OSError, match="in use"):
        await ToolServer(port=server.port).start()
    waiting = asyncio.create_task(server.join())
    await server.stop()
    await waiting
    await server.start()
    await server.stop()
    assert "tool server listens on localhost" in capsys.readouterr().out


async def test_stopping_fails_what_is_pending(servers: Recorded) -> None:
    requests: list[ApprovalRequest] = []

    async def keep(request: ApprovalRequest) -> None:
        requests.append(request)

    server = ToolServer(port=0, approval_required=True)
    await server.start()
    async with ApprovalClient(keep, port=server.port):
        call = asyncio.create_task(ToolRunner("fetch", PARAMS, port=server.port).run("fetch", {}))
        await eventually(lambda: requests)
        await server.stop()
        with pytest.raises(ToolRunnerError, match="has stopped"):
            await call


@pytest.mark.parametrize(
    "arguments", [{"log_level": "LOUD"}, {"token": ""}, {"token": "short"}, {"token": "a b" * 9}, {"token": "a\r\nb" * 9}]
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        ToolServer(**arguments)


async def test_no_tool_server_is_an_error_for_the_client_too() -> None:
    with pytest.raises(RuntimeError, match="No connection to the tool server"):
        await ApprovalClient(accept, port=1).connect()


async def test_a_lost_connection_is_made_again(servers: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    async with ToolServer(port=0, approval_required=True) as first:
        port = first.port
        client = ApprovalClient(accept, port=port)
        await client.connect()
        await ToolRunner("fetch", PARAMS, port=port).run("fetch", {})
    await eventually(lambda: "was lost; connecting again" in caplog.text)
    async with ToolServer(port=port, approval_required=True) as second:
        await eventually(lambda: second._channel.open)
        await ToolRunner("fetch", PARAMS, port=port).run("fetch", {})
        await client.disconnect()
        await second._channel.join()
        await client.disconnect()
    assert len(servers.calls) == 2


@pytest.mark.parametrize(("answer", "said"), [(True, None), (False, "rejected"), (None, "rejected")])
async def test_a_plain_function_decides_by_what_it_returns(
    asking: ToolServer, servers: Recorded, answer: bool | None, said: str | None
) -> None:
    async with ApprovalClient(lambda request: answer, port=asking.port):  # type: ignore[arg-type, return-value]
        call = ToolRunner("fetch", PARAMS, port=asking.port).run("fetch", {})
        if said is None:
            await call
        else:
            with pytest.raises(ToolRunnerError, match=said):
                await call
    assert bool(servers.calls) is (said is None)


async def test_a_tool_that_its_server_does_not_have_is_refused(servers: Recorded) -> None:
    servers.facts["missing"] = GONE
    async with ToolServer(port=0) as server:
        with pytest.raises(ToolRunnerError, match="'fetch' has no tool 'missing'"):
            await ToolRunner("fetch", PARAMS, port=server.port).run("missing", {})
    assert servers.calls == []


@pytest.mark.slow
async def test_a_real_server_is_called_from_threads_and_tasks(tmp_path: Path) -> None:
    source = tmp_path / "server.py"
    source.write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('adder')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> dict[str, int]:\n"
        "    return {'sum': a + b}\n"
        "server.run('stdio')\n"
    )
    async with ToolServer(port=0) as server:
        runner = ToolRunner("adder", {"command": sys.executable, "args": [str(source)]}, port=server.port)
        results = await asyncio.gather(*(runner.run("add", {"a": n, "b": 1}) for n in range(20)))
        assert results == [{"sum": n + 1} for n in range(20)]
        with pytest.raises(ToolRunnerError, match="add"):
            await runner.run("add", {"a": "x"})


async def test_a_server_that_was_stopped_leaves_the_log_as_it_was() -> None:
    log = logging.getLogger("cellblock.tools")
    before = log.level, list(log.handlers)
    async with ToolServer(port=0, log_level="DEBUG"):
        assert log.level == logging.DEBUG
        assert len(log.handlers) == len(before[1]) + 1
    assert (log.level, log.handlers) == before
