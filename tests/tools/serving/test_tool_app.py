"""A session's tool port: what code in a session can do with it, and what it cannot."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cellblock.model.decisions import Decision
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import Rule, Rules
from cellblock.tools.calling import pool
from cellblock.tools.calling.content import ToolOutcome, ToolResource, ToolSpec
from cellblock.tools.calling.runner import ToolRunner, ToolRunnerError
from cellblock.tools.mcp.changes import ToolFacts, facts_of
from cellblock.tools.serving import http, listen, tool_app
from clocks import Clock
from processes import eventually
from tool_calls import Recorded, tool_port


@pytest.fixture(autouse=True)
def no_connections_left(nothing_left_behind: None) -> Iterator[None]:
    yield
    pool.close()


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes, and return what comes back until the other side closes or has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            return head + (await reader.readexactly(int(length[0].split(b":")[1])) if length else b"")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.close()


def request(body: Any, *headers: str, method: str = "POST", path: str = "/run", host: str = "127.0.0.1") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer else 0


CALL = {"server_name": "files", "tool": "read", "arguments": {"a": 1}}
ALLOW = Rules(default="allow")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (ToolOutcome(True, "no such city"), "no such city"),
        (ToolOutcome(True, "", {"code": 7, "reason": "no such city"}), '{"code": 7, "reason": "no such city"}'),
        (ToolOutcome(True, "", encoded=b'{"reason": "large"}'), '{"reason": "large"}'),
        (ToolOutcome(True, "", resources=(ToolResource("file:///log", "text/plain", text="no such city"),)), "no such city"),
        (ToolOutcome(True, ""), "find failed without a message"),
    ],
)
def test_a_failure_is_told_in_whatever_form_the_tool_gave_it(outcome: ToolOutcome, said: str) -> None:
    assert tool_app._said("find", outcome) == {"error": said, "kind": "tool"}


async def test_a_tool_that_has_changed_is_decided_about_again_before_it_is_called() -> None:
    before: ToolFacts = facts_of(ToolSpec("read", "Reads.", {}, None, True, False))
    servers, asked = Recorded(), list[ApprovalRequest]()
    servers.facts["read"] = facts_of(ToolSpec("read", "Reads.", {}, None, False, True))
    rules = Rules((Rule("allow", read_only=True),))

    def accept(request: ApprovalRequest) -> bool:
        asked.append(request)
        return len(asked) == 1

    async with tool_port(Broker(rules, accept), servers, "files", facts=lambda *_: before) as port:
        answers = [status_and_body(await raw(port, request(CALL))) for _ in range(2)]
    # The rule was for what it said when it was registered; what it is now has to be accepted, each time.
    assert [request.changed for request in asked] == [
        "readOnlyHint was true and is false; destructiveHint was false and is true"
    ] * 2
    assert [kind for kind, _ in answers] == [200, 200]
    assert ("result" in answers[0][1], answers[1][1].get("kind")) == (True, "rejected")
    assert len(servers.calls) == 1


async def test_a_tool_that_changes_all_the_time_is_not_called() -> None:
    servers = Recorded()
    facts = [facts_of(ToolSpec("read", str(number), {})) for number in range(9)]
    servers.facts_each_time = iter(facts[1:])
    async with tool_port(Broker(ALLOW), servers, "files", facts=lambda *_: facts[0]) as port:
        _, answer = status_and_body(await raw(port, request(CALL)))
    assert "changes each time" in answer["error"]
    assert servers.calls == []


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (request({**CALL, "server_params": {"command": "sh", "args": ["-c", "id"]}}), 403),
        (request({**CALL, "server_params": {}}), 403),
        (request({**CALL, "server_name": "others"}), 403),
        (request(b"", method="PUT", path="/reset"), 404),
        (request(b"", method="GET", path="/approval"), 404),
        (request(CALL, path="/approval"), 404),
        (request(CALL, path="/run/"), 404),
        (request(CALL, path="/run?server_params=x", method="GET"), 404),
        (request({"jsonrpc": "2.0", "id": "x", "result": True}), 400),
        (request({**CALL, "approved": True}), 400),
        (request({**CALL, "tool": "x" * 1000}), 400),
        (request({**CALL, "tool": ""}), 400),
        (request({**CALL, "tool": "read\r\x1b[2Kgit.log"}), 400),
        (request({**CALL, "tool": "\udc80"}), 400),
        (request({**CALL, "server_name": "files\u202e"}), 400),
        (request({**CALL, "arguments": [1]}), 400),
        (request([CALL]), 400),
        (request(b"{"), 400),
        (request(b"\x00" * 100), 400),
        (request(b'{"a":' * 100_000), 400),
        (request(b'{"server_name":"files","tool":"t","arguments":{"a":' + b"[" * 500 + b"]" * 500 + b"}}"), 400),
        (request(b'{"server_name":"files","tool":"t","arguments":{"a":NaN}}'), 400),
        (request(b'{"server_name":"files","tool":"t","arguments":{"a":1e999}}'), 400),
        (request(CALL, host="evil.example"), 421),
        (request(CALL, host="127.0.0.1.evil.example"), 421),
        (request(CALL, "Host: localhost"), 421),
        (request(CALL, "Origin: http://127.0.0.1"), 403),
        (request(CALL).replace(b"application/json", b"text/plain      "), 415),
        (b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
async def test_everything_else_is_refused(data: bytes, wanted: int) -> None:
    servers, asked, noted = Recorded(), list[ApprovalRequest](), list[str]()
    async with tool_port(Broker(None, asked.append), servers, "files", note=noted.append) as port:
        assert status(await raw(port, data)) == wanted
        assert servers.calls == []
        assert servers.resets == 0
        assert asked == []
        assert bool(noted) == (wanted in (403, 404, 413, 421))


def status_and_body(answer: bytes) -> tuple[int, Any]:
    return status(answer), json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_refusals_are_noted_for_the_session(caplog: pytest.LogCaptureFixture) -> None:
    noted: list[str] = []
    async with tool_port(Broker(ALLOW), Recorded(), "files", note=noted.append) as port:
        await raw(port, request({**CALL, "server_params": {"command": "sh"}}))
        await raw(port, request(b"", method="PUT", path="/reset"))
    assert noted == [
        "[cellblock] refused POST '/run': server parameters stay on the host; name a server that is registered there",
        "[cellblock] refused PUT '/reset': PUT '/reset' does not exist here",
    ]
    assert "server parameters stay on the host" in caplog.text


async def write_on(writer: asyncio.StreamWriter) -> None:
    """Write until the other side has had enough; 64 MiB at most."""
    for _ in range(1000):
        writer.write(b"a" * 64 * 1024)
        await writer.drain()


async def test_headers_without_end_are_cut_off() -> None:
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        for start in (b"GET /", b"GET / HTTP/1.1\r\nX: "):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            with pytest.raises(ConnectionError):
                await write_on(writer)
            writer.close()


async def test_a_body_of_many_small_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(body: bytes, **options: object) -> object:
        raise AssertionError

    monkeypatch.setattr(tool_app, "parse_json", parsed)
    many = b'{"server_name":"files","tool":"read","arguments":{"a":[' + b",".join([b"{}"] * 150_000) + b"]}}"
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        answer = await raw(port, request(many))
    assert status(answer) == 400
    assert b"more than 40,000 values" in answer


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
async def test_a_body_in_another_encoding_is_refused(encoding: str) -> None:
    """Python's decoder would take it. In it, what is counted are bytes of other characters."""
    hidden = '{"server_name":"files","tool":"read","arguments":{"a":["\u0122",' + ",".join(["{}"] * 30_000) + "]}}"
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        answer = await raw(port, request(hidden.encode(encoding)))
    assert status(answer) == 400


async def test_commas_in_a_text_are_no_values() -> None:
    text = '1,2,\\",{}\n' * 100_000
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        answer = await raw(port, request({**CALL, "tool": "structured", "arguments": {"a": text}}))
    assert status(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["result"] == {"got": {"a": text}}


async def test_what_requests_hold_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_app, "MAX_HELD", 10_000)
    large = request({**CALL, "arguments": {"a": "x" * 6000}})
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(large[:-1])
        await writer.drain()

        async def refused() -> bool:
            return status(await raw(port, large)) == 429

        await eventually(refused)
        assert status(await raw(port, request({**CALL, "arguments": {"a": [0] * 500}}))) == 429
        assert status(await raw(port, request(CALL))) == 200
        writer.close()

        async def answered() -> bool:
            return status(await raw(port, large)) == 200

        await eventually(answered)


@pytest.mark.parametrize("start", [b"", b"POST /run HT", request(CALL)[:-1]])
async def test_who_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.1)
    servers = Recorded()
    async with tool_port(Broker(ALLOW), servers, "files") as port:
        assert await raw(port, start) == b""


async def test_an_answer_may_take_any_time() -> None:
    servers = Recorded()
    with Clock() as clock:
        async with tool_port(Broker(ALLOW), servers, "files") as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request({**CALL, "tool": "waits"}))
            await eventually(lambda: servers.calls)
            await clock.advance(10 * http.PATIENCE)
            servers.blocking.set()
            await clock.advance(0)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_what_is_refused_is_not_told_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tool_app, "MAX_LINES", 2)
    noted: list[str] = []
    async with tool_port(Broker(ALLOW), Recorded(), "files", note=noted.append) as port:
        for _ in range(5):
            assert status(await raw(port, request(b"", method="PUT", path="/reset"))) == 404
    assert len(noted) == 3
    assert "refused more requests" in noted[-1]
    assert caplog.text.count("refused") == 3


async def test_ports_share_what_the_process_may_have_and_each_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "MAX_OF_ALL", 6)
    monkeypatch.setattr(listen, "RESERVED", 2)
    async with tool_port(Broker(ALLOW), Recorded(), "files") as one, tool_port(Broker(ALLOW), Recorded(), "files") as two:
        held = [await asyncio.open_connection("127.0.0.1", one) for _ in range(6)]
        assert await raw(one, request(CALL)) == b""
        assert status(await raw(two, request(CALL))) == 200
        for _, writer in held:
            writer.close()
    assert listen._ports == []


async def test_no_websocket_is_served() -> None:
    noted: list[str] = []
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", key, "Sec-WebSocket-Version: 13")
    async with tool_port(Broker(ALLOW), Recorded(), "files", note=noted.append) as port:
        assert status(await raw(port, request(b"", *upgrade, method="GET", path="/approval"))) == 403
    assert noted == ["[cellblock] refused WebSocket '/approval': this path does not exist"]


async def test_code_cannot_approve_itself() -> None:
    """The id of its own request is of no use on its port: there is nobody to tell it to."""
    asked: list[ApprovalRequest] = []
    servers = Recorded()
    async with tool_port(Broker(None, asked.append), servers, "files") as port:
        call = asyncio.create_task(raw(port, request(CALL)))
        await eventually(lambda: asked)
        for path in ("/approval", f"/approval/{asked[0].id}", "/accept", "/run"):
            answer = {"jsonrpc": "2.0", "id": asked[0].id, "result": True}
            assert status(await raw(port, request(answer, path=path))) in (400, 404)
        assert asked[0].state == "pending"
        await asked[0].reject()
        assert b"rejected" in await call
    assert servers.calls == []


async def test_a_replayed_request_needs_an_approval_of_its_own() -> None:
    asked: list[ApprovalRequest] = []
    servers = Recorded()
    async with tool_port(Broker(None, asked.append), servers, "files") as port:
        for n in range(3):
            call = asyncio.create_task(raw(port, request(CALL)))
            await eventually(lambda n=n: len(asked) == n + 1)
            await (asked[n].accept() if n == 0 else asked[n].reject())
            await call
    assert len(servers.calls) == 1


async def test_a_second_sessions_port_has_rules_and_a_token_of_its_own() -> None:
    servers = Recorded()
    first, second = Broker(ALLOW, session="first"), Broker(session="second")
    async with (
        tool_port(first, servers, "files", token="one") as one,
        tool_port(second, servers, "files", token="two") as two,
    ):
        assert status(await raw(one, request(CALL, "Authorization: Bearer one"))) == 200
        for headers in ((), ("Authorization: Bearer one",), ("Authorization: two",), ("Authorization: Bearer two2",)):
            assert status(await raw(two, request(CALL, *headers))) == 401
        assert b"no approver" in await raw(two, request(CALL, "Authorization: Bearer two"))
    assert len(servers.calls) == 1


async def test_leaving_withdraws_the_request() -> None:
    asked: list[ApprovalRequest] = []
    broker = Broker(None, asked.append)
    async with tool_port(broker, Recorded(), "files") as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request(CALL))
            await eventually(lambda: asked)
        await eventually(lambda: asked[0].state == "withdrawn")
        assert not broker.pending


async def test_what_is_executed_is_on_record_first() -> None:
    records: list[Decision] = []
    servers = Recorded()

    async def record(decision: Decision) -> None:
        assert servers.calls == []
        records.append(decision)

    async with tool_port(Broker(ALLOW, record=record), servers, "files") as port:
        await ToolRunner("files", port=port).run("read", {"b": 1, "a": 2})
    assert records[0].payload == b'{"a":2,"b":1}'
    assert servers.calls == [("files", "read", {"a": 2, "b": 1})]


async def test_trouble_of_ours_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    async with tool_port(Broker(ALLOW), Recorded(), "files") as port:
        with pytest.raises(ToolRunnerError, match="its log says why"):
            await ToolRunner("files", port=port).run("bug", {})
    assert "ZeroDivisionError" in caplog.text
