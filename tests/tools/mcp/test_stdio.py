"""The streams of one server process: its messages, what is said for it when it fails, and that it is gone afterwards."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest

from cellblock.tools.calling.content import MAX_MESSAGE
from cellblock.tools.mcp import stdio
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.mcp.stdio import StdioTransport
from processes import below

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

REQUEST = '{"jsonrpc":"2.0","id":%d,"method":"ping"}'


def python(code: str, *, command: str = sys.executable) -> StdioTransport:
    return StdioTransport("server", StdioServer(command, ("-S", "-c", code)), os.environ)


async def heard(code: str) -> tuple[list[Any], str, str]:
    """Return the messages of a server until it ends, why it ended, and what it wrote to standard error."""
    transport = python(code)
    messages = []
    async with transport as (reader, _):
        async for message in reader:
            assert isinstance(message, SessionMessage)
            messages.append(message.message)
    return messages, transport.explain(), transport.stderr()


async def test_messages_come_and_go_as_lines() -> None:
    transport = python("import sys\nfor line in sys.stdin: print(line.replace('there', 'here'), end='', flush=True)")
    before = len(below(os.getpid()))
    async with transport as (reader, writer):
        for number in range(3):
            await writer.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="there", params={"a": "\n"})))
        answers = [await reader.receive() for _ in range(3)]
    assert [answer.message for answer in answers if isinstance(answer, SessionMessage)] == [
        JSONRPCRequest(jsonrpc="2.0", id=number, method="here", params={"a": "\n"}) for number in range(3)
    ]
    assert len(below(os.getpid())) == before
    assert transport.explain() == ""


async def test_a_server_that_is_killed_is_explained_by_the_signal() -> None:
    _, why, _ = await heard("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert why == "it ended with exit status 137 (SIGKILL)"


async def test_what_is_no_message_is_skipped_and_told_if_there_is_nothing_else() -> None:
    note = '{"jsonrpc":"2.0","method":"hello"}'
    messages, why, _ = await heard(f"print('Welcome!'); print(); print('{note}'); print('[]'); print('{{')")
    assert messages == [JSONRPCNotification(jsonrpc="2.0", method="hello")]
    assert why == "it ended with exit status 0; it wrote to stdout something other than a message: b'Welcome!'"


@pytest.mark.parametrize(
    ("code", "limit", "why"),
    [
        ("while True: print('words')", "_MAX_STRAY", "it wrote to stdout something other than a message: b'words'"),
        ("while True: print()", "_MAX_BLANK", "it wrote 5 empty lines to stdout"),
    ],
    ids=["strays", "blanks"],
)
async def test_a_server_that_says_nothing_else_is_given_up(
    monkeypatch: pytest.MonkeyPatch, code: str, limit: str, why: str
) -> None:
    monkeypatch.setattr(stdio, limit, 5)
    monkeypatch.setattr(stdio, "_SECONDS_TO_LEAVE", 0.05)
    messages, said, _ = await heard(code)
    assert said == why
    assert len(messages) <= 5


@pytest.mark.parametrize(
    "line",
    [
        '\'{"jsonrpc":"2.0","id":7,"result":{"a":"\' + "x" * size + \'"}}\'',
        '\'{"result":{"a":"\' + "x" * size + \'"},"jsonrpc":"2.0","id":7}\'',
    ],
    ids=["head", "tail"],
)
async def test_a_response_that_is_too_large_is_an_error_of_its_own_call(line: str) -> None:
    messages, _, _ = await heard(f"size = {MAX_MESSAGE}\nprint({line})\nprint('{REQUEST % 1}')")
    assert [type(message) for message in messages] == [JSONRPCError, JSONRPCRequest]
    assert messages[0].id == 7
    assert f"the limit is {MAX_MESSAGE}" in messages[0].error.message


@pytest.mark.slow
async def test_a_large_message_that_is_nobodys_ends_the_connection() -> None:
    messages, why, _ = await heard(f"print('x' * {MAX_MESSAGE + 1}); print('{REQUEST % 1}')")
    assert messages == []
    assert why.startswith(f"it sent a message of {MAX_MESSAGE + 1} bytes")


async def test_a_server_that_does_not_leave_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_SECONDS_TO_LEAVE", 0.05)
    before = len(below(os.getpid()))
    transport = python("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(99)")
    async with transport as (_, writer):
        pass
    assert len(below(os.getpid())) == before
    with pytest.raises(anyio.BrokenResourceError):
        await writer.send(SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="late")))


async def test_a_server_gets_what_it_is_given_and_little_else(tmp_path: Path) -> None:
    code = "import json, os, sys; json.dump([os.getcwd(), {**os.environ}], sys.stderr)"
    params = StdioServer(sys.executable, ("-S", "-c", code), {"KEY": "secret"}, str(tmp_path))
    environment = {"PATH": "/bin:/usr/bin", "HOME": "/home/x", "OTHER": "secret"}
    transport = StdioTransport("server", params, environment)
    async with transport as (reader, _):
        assert [message async for message in reader] == []
    directory, seen = json.loads(transport.stderr())
    assert directory == str(tmp_path)
    left = {name: value for name, value in seen.items() if name not in ("LC_CTYPE", "PWD", "SHLVL", "_")}
    assert left == {"KEY": "secret", "PATH": "/bin:/usr/bin", "HOME": "/home/x"}
