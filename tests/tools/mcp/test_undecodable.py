"""Answers that cannot be decoded fail their calls at once, and other calls go on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter

from cellblock import McpServerError
from cellblock.tools.mcp.lines import edges
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers
from cellblock.tools.mcp.undecodable import given_to, id_of, repaired
from suite import first_quick

SERVERS = Path(__file__).parents[2] / "servers"


@pytest.fixture(scope="module")
async def servers(hostile_port: int) -> AsyncIterator[Servers]:
    def lookup(name: str) -> Any:
        if name == "stdio":
            given = {"command": sys.executable, "args": [str(SERVERS / "hostile_server.py"), "good"]}
        else:
            given = {"url": f"http://127.0.0.1:{hostile_port}/{name}"}
        return parse_params(name, given)

    async with Servers(lookup, environment={}) as servers:
        await asyncio.gather(servers.call("stdio", "echo", {}), *(servers.call(name, "good", {}) for name in ("mcp", "sse")))
        yield servers


@pytest.mark.parametrize("name", first_quick(["stdio", "mcp", "sse"]))
async def test_a_call_whose_answer_cannot_be_decoded_fails_at_once(servers: Servers, name: str) -> None:
    for line in (
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[',
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[NULL]}}',
        '{"result":{"content":[NULL]},"id":ID,"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":ID,"result":5}',
        '{"jsonrpc":"2.0","id":ID,"result":' + "[" * 10_000,
    ):
        async with asyncio.timeout(20):
            with pytest.raises(McpServerError, match=r"cannot be decoded|Failed to parse"):
                await servers.call(name, "raw", {"line": line}, timeout=600)


async def test_half_a_character_costs_only_itself(servers: Servers) -> None:
    for name in ("stdio", "mcp", "sse"):
        line = '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\\ud83d"}]}}'
        assert (await servers.call(name, "raw", {"line": line}, timeout=20)).text == "a\ufffd"


@given(st.lists(st.sampled_from(["a", "\\", '"', "\n", "u", "\ud83d", "\ude00", "d83d", "😀", "é", "\x00"])))
def test_what_is_whole_stays(parts: list[str]) -> None:
    text = "".join(parts)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # two halves that meet are one character
    assert json.loads(repaired(json.dumps({"text": text}).encode()))["text"] == whole


def test_a_character_that_was_cut_by_bytes_is_replaced() -> None:
    assert repaired(b'{"a": "\xf0\x9f\x98"}') == '{"a": "\ufffd"}'.encode()
    assert repaired(b'{"a": "\\ud83d\\ude00"}') == b'{"a": "\\ud83d\\ude00"}'


async def test_the_other_calls_go_on(servers: Servers) -> None:
    other = asyncio.create_task(servers.call("stdio", "hang", {}, timeout=600))
    with pytest.raises(McpServerError, match="its answer cannot be decoded"):
        await servers.call("stdio", "raw", {"line": '{"jsonrpc":"2.0","id":ID,"result":{"a":01}}'}, timeout=600)
    assert (await servers.call("stdio", "echo", {"a": 1}, timeout=20)).text == '{"a": 1}'
    assert not other.done()
    other.cancel()


@pytest.mark.parametrize("name", first_quick(["stdio", "mcp", "sse"]))
async def test_a_number_that_json_does_not_have_is_an_error(servers: Servers, name: str) -> None:
    for number, rows in (("NaN", 0), ("-Infinity", 0), ("1e999", 0), ("[{}, [-1e999]]", 0), ("[{}, [-1e999]]", 30_000)):
        value = '{"n":[' + "1," * rows + number + "]}"
        line = '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":' + value + "}}"
        with pytest.raises(McpServerError, match=r"a number that JSON does not have|not valid JSON"):
            await servers.call(name, "raw", {"line": line}, timeout=600)


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{', 7),
        (b' { "id" : 7 , "jsonrpc": "2.0", "error": ', 7),
        (b'{"result": nonsense, "id": 7}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping",', None),
        (b'{"jsonrpc":"2.0","id":"seven","result":{', None),
        (b'Welcome! {"id": 7}', None),
        (b"", None),
    ],
)
def test_an_answer_is_known_by_its_ends(message: bytes, number: int | None) -> None:
    assert id_of(edges(message)) == number


def test_an_error_that_does_not_say_what_was_decoded_is_nobodys() -> None:
    assert given_to(ValueError("words")) == b""


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ('{"jsonrpc":"2.0","id":7,"result":5}', b'{"id":7}'),
        ('{"jsonrpc":"2.0","id":7,"method":5}', b""),
        ('{"id":7', b'{"id":7'),
        ("[]", b""),
    ],
)
def test_an_error_of_the_decoder_says_what_was_decoded(message: str, given: bytes) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        jsonrpc_message_adapter.validate_json(message, by_name=False)
    assert given_to(caught.value) == given
