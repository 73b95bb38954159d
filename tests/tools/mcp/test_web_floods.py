"""Servers over HTTP that flood: each costs its own calls, holds up nobody, and is left."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import h11
import pytest

from cellblock import McpServerError
from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp import events, large
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers
from suite import first_quick


@pytest.fixture
async def servers(hostile_port: int, nothing_left_behind: None) -> AsyncIterator[Servers]:
    def lookup(name: str) -> Any:
        return parse_params(name, {"url": f"http://127.0.0.1:{hostile_port}/{name}"})

    async with Servers(lookup, environment={}) as servers:
        yield servers


async def still_works(servers: Servers, name: str) -> bool:
    return (await servers.call(name, "good", {}, timeout=20)).structured == {"n": 1}


@pytest.mark.parametrize("name", first_quick(["mcp", "sse"]))
@pytest.mark.parametrize(
    ("tool", "said"),
    first_quick(
        [
            ("pings", "more than 32 requests and did not read the answers"),
            ("lines", "an event of more than 1000 lines"),
            ("values-in-an-event", "a message of more than 100000 values"),
        ]
    ),
)
async def test_a_flood_of_events_is_ended(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, name: str, tool: str, said: str
) -> None:
    monkeypatch.setattr(events, "_MAX_LINES", 1000)
    monkeypatch.setattr(large, "MAX_VALUES_OF_A_RESULT", 100_000)
    with pytest.raises(McpServerError, match=f"(was interrupted|failed): .*{said}"):
        await servers.call(name, tool, {"count": 200_000}, timeout=30)
    assert await still_works(servers, name)


@pytest.mark.parametrize("name", first_quick(["mcp", "sse"]))
async def test_an_event_without_an_end_is_ended(servers: Servers, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    limits = events.Events.__init__
    monkeypatch.setattr(events.Events, "__init__", lambda self, limit: limits(self, limit // 16))
    with pytest.raises(McpServerError, match=f"it sent an event of more than {MAX_MESSAGE // 16} bytes"):
        await servers.call(name, "long-event", {}, timeout=30)
    assert await still_works(servers, name)


@pytest.mark.slow
async def test_messages_that_are_not_valid_have_an_end(servers: Servers) -> None:
    with pytest.raises(McpServerError, match="it sent 32 messages that are not valid"):
        await servers.call("sse", "tiny-events", {}, timeout=30)
    assert await still_works(servers, "sse")


async def test_the_head_of_a_response_has_limits(servers: Servers) -> None:
    for tool, count, said in (
        ("headers", 20_000, "more than 200 headers"),
        ("interim", 1, "more than 20 interim responses"),
        ("cookies", 150, "more than 100 cookies"),
    ):
        with pytest.raises(McpServerError, match=f"(was interrupted|failed): .*{said}"):
            await servers.call("mcp", tool, {"count": count}, timeout=30)
        assert await still_works(servers, "mcp")


@pytest.mark.slow
async def test_a_body_of_too_many_values_costs_its_own_call_only(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MAX_VALUES_OF_A_RESULT", 100_000)
    with pytest.raises(McpServerError, match="it sent a message of more than 100000 values"):
        await servers.call("mcp", "values", {"count": 200_000}, timeout=30)
    assert (await servers.call("mcp", "text", {"count": 6_000}, timeout=30)).structured == {"n": "[]," * 6_000}


@pytest.mark.parametrize(
    ("name", "tool"), first_quick([("mcp", "values"), ("mcp", "values-in-an-event"), ("sse", "values-in-an-event")])
)
async def test_a_large_result_is_not_decoded_here(servers: Servers, name: str, tool: str) -> None:
    outcome = await servers.call(name, tool, {"count": 50_000}, timeout=30)
    assert json.loads(outcome.encoded or b"") == {"n": [[]] * 50_000 + [0]}


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 reads JSON that is nested as deeply as this")
async def test_json_that_is_nested_too_deeply_is_an_error_of_its_call(servers: Servers) -> None:
    with pytest.raises(McpServerError, match="nested too deeply"):
        await servers.call("mcp", "nested", {"count": 50_000}, timeout=30)
    assert await still_works(servers, "mcp")


@pytest.mark.slow
async def test_a_body_in_tiny_chunks_takes_turns(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would parse ten thousand in one turn."""
    assert await still_works(servers, "mcp")
    turn, taken = 0, Counter[int]()
    next_event = h11.Connection.next_event

    def counted(connection: h11.Connection) -> Any:
        taken[turn] += 1
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    call = asyncio.create_task(servers.call("mcp", "tiny-chunks", {}, timeout=0.3))
    while not call.done():
        await asyncio.sleep(0)
        turn += 1
    with pytest.raises(McpServerError, match=r"did not answer within 0\.3 s"):
        await call
    assert 10 < max(taken.values()) < 2000
    assert taken.total() > 2000
