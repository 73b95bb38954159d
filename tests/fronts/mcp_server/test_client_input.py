"""Messages of clients that the SDK cannot decode are repaired or answered."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from mcp.shared.message import SessionMessage

from cellblock.fronts.mcp_server.client_input import Input, with_repaired_bodies

CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_ipython_cell","arguments":{"code":"%s"}}}'


class Sent:
    """Collects the answers to the client."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []

    async def send(self, item: SessionMessage) -> None:
        self.answers.append(json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True)))


async def read(*lines: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages that the SDK gets, and the answers that the client gets at once."""
    given = Input(io.BytesIO(b"\n".join(lines) + b"\n"))
    sent = Sent()
    given.answers = sent  # type: ignore[assignment]  # what it uses of a stream
    return [json.loads(line) async for line in given], sent.answers


async def test_code_with_half_a_character_runs() -> None:
    cases: list[tuple[bytes, str]] = [
        (rb"'\ud83d'", "'\ufffd'"),
        (rb"'a\udc00b\ud83d'", "'a\ufffdb\ufffd'"),
        (b"'\xe2\x82'", "'\ufffd'"),
        (rb"'\ud83d\ude00'", "'😀'"),
        (rb"'\\ud83d'", r"'\ud83d'"),
    ]
    for code, arrives in cases:
        (message,), answered = await read(CALL % code)
        assert message["params"]["arguments"]["code"] == arrives
        assert not answered


async def test_what_is_no_request_is_answered() -> None:
    cases: list[tuple[bytes, object, int]] = [
        (CALL[:60], 7, -32700),
        (b'{"method":"tools/call","params":{"id":1,"x":oops},"jsonrpc":"2.0","id":"a"}', "a", -32700),
        (b'{"method":"tools/call","params":{"id":1,"x":', None, -32700),
        (CALL % (b'"' + b"[" * 3000), 7, -32700),
        (b"hello", None, -32700),
        (b'{"jsonrpc":"2.0","id":7}', 7, -32600),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', 7, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]', None, -32600),
        (b"7", None, -32600),
    ]
    for line, number, code in cases:
        messages, (answer,) = await read(line, b"", b'{"jsonrpc":"2.0","id":8,"method":"ping"}')
        assert (answer["id"], answer["error"]["code"]) == (number, code)
        assert [message["id"] for message in messages] == [8]


async def test_a_notification_may_have_an_id_among_its_parameters() -> None:
    for number in (b"1", b"1" * 5000):
        notification = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"id":%s}}' % number
        messages, answered = await read(notification, b'{"jsonrpc":"2.0","id":8,"method":"ping"}')
        assert len(messages) + len(answered) == 2
        assert messages[-1]["id"] == 8
        assert len(number) > 1 or not answered


async def test_an_answer_that_cannot_be_decoded_is_a_failed_answer_to_the_question() -> None:
    (message,), answered = await read(b'{"jsonrpc":"2.0","id":3,"result":{"action":"accept","content":')
    assert (message["id"], "error" in message) == (3, True)
    assert not answered


async def test_bodies_over_http_are_repaired() -> None:
    body = CALL % rb"'\ud83d'"
    parts = iter(
        [
            {"type": "http.request", "body": body[:110], "more_body": True},
            {"type": "http.request", "body": body[110:], "more_body": False},
            {"type": "http.disconnect"},
        ]
    )
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])

    async def receive() -> Any:
        return next(parts)

    await with_repaired_bodies(app)({"type": "http"}, receive, heard.append)  # type: ignore[arg-type]
    assert json.loads(heard[0]["body"])["params"]["arguments"]["code"] == "'\ufffd'"
    assert heard[1]["type"] == "http.disconnect"


@pytest.mark.slow
def test_handlers_cannot_read_what_the_client_sends() -> None:
    code = "import sys; from cellblock.fronts.mcp_server.client_input import take_standard_input as take\n"
    code += "file = take(); print(repr(sys.stdin.read()), repr(file.read()))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"line\n", stdout=subprocess.PIPE, env={**os.environ}, timeout=200, check=True
    )
    assert done.stdout == b"'' b'line\\n'\n"
