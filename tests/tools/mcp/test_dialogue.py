"""What a server says on a connection: results, lists and errors, in our words and within limits."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock import InvalidInputError, McpServerError
from cellblock.tools.mcp import dialogue
from cellblock.tools.mcp.dialogue import MAX_LIST, MAX_TOOLS, Dialogue
from cellblock.tools.mcp.jsonrpc import Requests
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.mcp.stdio import StdioTransport
from processes import eventually
from suite import first_quick

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")
OPEN = Requests(None, None, lambda _reason: None, lambda _method, _params: True)


@asynccontextmanager
async def talking(mode: str = "good", *, bare: bool = True) -> AsyncIterator[Dialogue]:
    transport = StdioTransport("it", StdioServer(sys.executable, (HOSTILE, mode)), os.environ)
    async with Dialogue.connect("it", transport, lambda _reason: None, transport.large, bare=bare) as spoken:
        yield spoken


async def call(spoken: Dialogue, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> str:
    listeners = {"on_progress": None, "on_log": None, "check": None, "person": None, **more}
    return (await spoken.call(tool, arguments or {}, **listeners)).text


@pytest.mark.parametrize("bare", [True, False], ids=["ours", "sdk"])
async def test_a_call_is_the_same_on_both_ways(bare: bool) -> None:
    async with talking(bare=bare) as spoken:
        assert await call(spoken, "echo", {"a": [1, None, "ü"]}) == '{"a": [1, null, "\\u00fc"]}'
        told: list[Any] = []
        logged: list[Any] = []
        await call(spoken, "chatty", on_progress=lambda *said: told.append(said), on_log=lambda *said: logged.append(said))
        await eventually(lambda: told and logged)
        with pytest.raises(McpServerError, match=r"failed|returned"):
            await call(spoken, "nonsense")
        with pytest.raises(InvalidInputError, match="cannot be sent as JSON"):
            await call(spoken, "echo", {"a": object()})


@pytest.mark.parametrize("bare", first_quick([True, False]), ids=["ours", "sdk"])
async def test_no_code_of_a_server_stands_for_a_lost_connection(bare: bool) -> None:
    messages, codes = ("rate limit, retry in 5 s", "Connection closed"), (types.CONNECTION_CLOSED, -32001, -32099, 0)
    async with talking(bare=bare) as spoken:
        for message, code in product(messages, codes):
            with pytest.raises(McpServerError, match=rf"failed: {message} \[{code}\]"):
                await call(spoken, "refuse", {"code": code, "message": message})
        assert await call(spoken, "echo", {"a": 1}) == '{"a": 1}'


@pytest.mark.slow
@pytest.mark.parametrize("bare", first_quick([True, False]), ids=["ours", "sdk"])
async def test_the_last_words_of_a_server_are_told(bare: bool) -> None:
    async with talking(bare=bare) as spoken:
        with pytest.raises(McpServerError, match="out of memory"):
            await call(spoken, "refuse", {"code": types.CONNECTION_CLOSED, "message": "out of memory", "leave": True})
        with pytest.raises(ConnectionError):
            await call(spoken, "echo")


async def test_a_list_has_a_limit_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogue, "_MAX_PAGES", 3)
    async with talking("endless-pages") as spoken:
        with pytest.raises(McpServerError, match="it has more than 3 pages"):
            await spoken.list_tools()


@pytest.mark.slow
async def test_a_repeated_cursor_is_the_end_of_a_list() -> None:
    async with talking("repeated-page") as spoken:
        assert len(await spoken.list_tools()) == 2


def test_a_list_has_limits() -> None:
    cases: list[tuple[int, int]] = [(MAX_TOOLS + 1, 0), (0, MAX_LIST + 1)]
    for count, size in cases:
        assert dialogue._check_list(MAX_TOOLS, MAX_LIST) == MAX_LIST
        with pytest.raises(McpServerError, match="more than"):
            dialogue._check_list(count, size)


def test_a_result_has_no_more_than_the_protocol_knows() -> None:
    result = dialogue._result_of({"content": [], "structuredContent": {"a": 1}, "odd": 1})
    assert result.structured_content == {"a": 1}


def test_what_the_sdk_raises_is_told_in_our_errors() -> None:
    cases: list[tuple[Exception, type[Exception], str]] = [
        (MCPError(code=types.CONNECTION_CLOSED, message="busy"), McpServerError, r"failed: busy \[-32000\]"),
        (MCPError(code=-32602, message="bad"), McpServerError, r"failed: bad \[-32602\]"),
        (McpServerError("as it is"), McpServerError, "as it is"),
        (InvalidInputError("ours"), InvalidInputError, "ours"),
        (ValueError("x" * 10_000), McpServerError, "returned something invalid: x"),
    ]
    for raised, kind, said in cases:
        with pytest.raises(kind, match=said) as caught, dialogue._failures(OPEN):
            raise raised
        assert len(str(caught.value)) < 3000
