"""Requests of sessions that lines, rules and people decide about: real clients inside, local servers outside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import otel_memory
from cellblock import (
    ApprovalRequest,
    CodeExecutor,
    Host,
    InvalidInputError,
    Network,
    Policy,
    Rules,
    Secret,
    UnsupportedError,
)
from cellblock.host.checks import check_requests, find_tier
from cellblock.walls.egress import gate
from suite import first_quick
from walls.keys.tls_servers import TlsServer

SETUP = """
import os, requests
def send(method, url, **rest):
    answer = requests.request(method, url, **rest)
    return answer.status_code, answer.text
"""


class Plain(BaseHTTPRequestHandler):
    """Answers every request, and notes it."""

    seen: list[tuple[str, str, bytes]]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = do_DELETE = answer  # noqa: N815  # names of the base class

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain() -> Iterator[tuple[int, list[tuple[str, str, bytes]]]]:
    seen: list[tuple[str, str, bytes]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Noting", (Plain,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port, seen
    server.shutdown()
    server.server_close()


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Callable[[TlsServer], str]:
    """Return a function that makes this process trust a server, and returns its name and port."""

    def trust(server: TlsServer) -> str:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        monkeypatch.setenv("KEY", "canary-0123456789")
        monkeypatch.setattr(gate, "_getaddrinfo", lambda _name: ["127.0.0.1"])
        return f"api.test:{server.port}"

    return trust


@contextlib.asynccontextmanager
async def executor(host: Host, directory: Path, *ports: int, **options: Any) -> AsyncIterator[CodeExecutor]:
    hosts = [f"127.0.0.1:{port}" for port in ports]
    async with CodeExecutor(host=host, working_dir=directory, hosts=hosts, **options) as found:
        await found.execute(SETUP)
        yield found


async def said(found: CodeExecutor, code: str, *answers: bool | str) -> tuple[str, list[ApprovalRequest]]:
    """Run code, and answer its questions."""
    asked: list[ApprovalRequest] = []
    text = ""
    async for item in found.stream(code, timeout=60):
        if isinstance(item, ApprovalRequest):
            answer = answers[len(asked)]
            asked.append(item)
            await (item.reject(answer) if isinstance(answer, str) else item.accept())
        else:
            text = str(getattr(item, "return_value", "")) + str(getattr(item, "error", ""))
    assert len(asked) == len(answers)
    return text, asked


@pytest.mark.slow
async def test_lines_hold_for_real_clients_and_plain_http(
    native_host: Host, tmp_path: Path, trusting: Callable[[TlsServer], str], plain: tuple[int, list[tuple[str, str, bytes]]]
) -> None:
    port, seen = plain
    with TlsServer(host="api.test") as server:
        at = trusting(server)
        lines = [f"GET {at}/a/**", f"ask POST {at}/a", f"GET api.test:{port}/**", f"ask POST api.test:{port}/**"]
        async with executor(native_host, tmp_path, server.port, port, http=lines) as found:
            assert "(200," in (await said(found, f"send('GET', 'https://{at}/a/b')"))[0]
            text, _ = await said(found, f"send('DELETE', 'https://{at}/a/b')")
            assert "(403," in text
            assert "is not allowed; allowed there: GET /a/**" in text
            text, (request,) = await said(found, f"send('POST', 'https://{at}/a', data='body')", True)
            assert request.tool_args["body"] == "body"
            assert [head.split()[0] for head in server.seen] == [b"GET", b"POST"]
            # Plain HTTP obeys the same lines; a tunnel does not avoid them.
            assert "(200, 'ok')" in (await said(found, f"send('GET', 'http://api.test:{port}/x')"))[0]
            assert "(403," in (await said(found, f"send('DELETE', 'http://api.test:{port}/x')"))[0]
            assert "(403," in (await said(found, f"send('GET', 'http://{at}/other')"))[0]
            text, (request,) = await said(found, f"send('POST', 'http://api.test:{port}/x', data='plain')", True)
            assert request.tool_args["url"] == f"http://api.test:{port}/x"
            assert [one[0] for one in seen] == ["GET", "POST"]
            assert seen[-1][2] == b"plain"
            tunnel = f"""
import socket
s = socket.create_connection(('127.0.0.1', 3128))
s.sendall(b'CONNECT api.test:{port} HTTP/1.1\\r\\nHost: api.test:{port}\\r\\n\\r\\n')
s.recv(1000)
s.sendall(b'DELETE / HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n')
s.recv(1000)
"""
            await said(found, tunnel)
            assert len(seen) == 2


@pytest.mark.slow
async def test_a_rule_and_a_secret_ask(native_host: Host, tmp_path: Path, trusting: Callable[[TlsServer], str]) -> None:
    with TlsServer(host="api.test") as server:
        at = trusting(server)
        rule = {"decision": "ask", "kind": "http", "arguments": {"host": at, "method": "POST", "path": "/a"}}
        allowed = {"decision": "allow", "kind": "http", "arguments": {"host": at, "method": "GET"}}
        secret = Secret.from_env("KEY", hosts=[at], ask="first")
        options: dict[str, Any] = {"rules": Rules.parse({"rule": [rule, allowed]}), "secrets": {"KEY": secret}}
        key = "headers={'Authorization': 'Bearer ' + os.environ['KEY']}"
        async with executor(native_host, tmp_path, server.port, **options) as found:
            assert "(200," in (await said(found, f"send('GET', 'https://{at}/')"))[0]
            text, _ = await said(found, f"send('POST', 'https://{at}/a')", "not today")
            assert "was refused: not today" in text
            assert "(403," in (await said(found, f"send('POST', 'https://{at}/b')"))[0]
            _, (request,) = await said(found, f"send('GET', 'https://{at}/', {key})", True)
            assert request.tool_args["secrets"] == ["KEY"]
            assert "canary" not in str(request)
            assert "(200," in (await said(found, f"send('GET', 'https://{at}/', {key})"))[0]
    assert b"canary-0123456789" in server.seen[-1]
    assert len(server.seen) == 3


@pytest.mark.parametrize("removed", first_quick([False, True]))
async def test_a_person_allows_a_secret_in_a_body(
    native_host: Host,
    tmp_path: Path,
    trusting: Callable[[TlsServer], str],
    removed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    exporter = otel_memory.exporter()
    exporter.clear()
    with TlsServer(host="api.test") as server:
        secrets = {"KEY": Secret.from_env("KEY", hosts=[at := trusting(server)], body=True, ask="each")}
        async with executor(native_host, tmp_path, server.port, secrets=secrets) as found:
            code, text, placeholder = f"send('POST', 'https://{at}/', json={{'key': os.environ['KEY']}})", "", ""
            async for item in found.stream(f"print(os.environ['KEY']); {code}", timeout=60):
                if isinstance(item, ApprovalRequest):
                    placeholder = item.tool_args["body"]
                    assert item.tool_args["secrets"] == ["KEY"]
                    assert "canary" not in str(item)
                    if removed:
                        await found.session.remove_secret("KEY")
                    await item.accept()
                else:
                    text += str(getattr(item, "text", "")) + str(getattr(item, "return_value", ""))
            assert "cellblock" in placeholder
            (record,) = found.session.requests
            assert (record.secrets, record.decision) == (("KEY",), "refused" if removed else "allowed")
    spans = exporter.get_finished_spans()
    assert any("tools/call" in span.name or "approv" in span.name for span in spans), [span.name for span in spans]
    assert "canary" not in repr([(span.name, dict(span.attributes or {}), span.events) for span in spans])
    if removed:
        assert "the secret KEY was removed" in text
        assert not server.seen
    else:
        assert server.bodies == [b'{"key": "canary-0123456789"}']


@pytest.mark.slow
async def test_a_branch_obeys_the_same_lines(native_host: Host, tmp_path: Path, trusting: Callable[[TlsServer], str]) -> None:
    with TlsServer(host="api.test") as server:
        at = trusting(server)
        policy = Policy(network=Network(allow=(f"127.0.0.1:{server.port}",), http=(f"GET {at}/**", f"ask POST {at}/**")))
        async with native_host.session(working_dir=tmp_path, policy=policy) as session:
            await session.execute(SETUP)
            (branch,) = await session.fork()
            async with branch:
                result = await branch.execute(f"send('GET', 'https://{at}/')")
                assert "(200," in (result.return_value or "")
                result = await branch.execute(f"send('POST', 'https://{at}/')")
                assert "(403," in (result.return_value or "")
    assert len(server.seen) == 1


def test_other_isolations_refuse_lines() -> None:
    for isolate in ("landlock", "srt", "none"):
        with pytest.raises(UnsupportedError, match=f"need isolate='native': with isolate='{isolate}'"):
            check_requests(find_tier(isolate))


@pytest.mark.slow
async def test_lines_that_cannot_hold_are_errors(native_host: Host, tmp_path: Path) -> None:
    for network, why in (
        (Network(allow=("*",), http=("GET a.example/**",)), "by their addresses"),
        (Network(http=("GET a.example",)), "the path is missing"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            native_host.session(working_dir=tmp_path, policy=Policy(network=network))
    async with Host(isolate="native", policy=Policy(network=Network(http=("GET a.example/**",)))) as narrow:
        session = narrow.session(working_dir=tmp_path, policy=Policy(network=Network(http=("* a.example/**",))))
        assert session.wanted.policy.network.within == (("GET a.example/**",),)
        with pytest.raises(InvalidInputError, match="not allowed by the host's policy"):
            narrow.session(working_dir=tmp_path, policy=Policy(network=Network(http=("GET b.example/**",))))


def test_a_rule_about_requests_names_a_host() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "needs the argument host"),
        ({"host": "*.example"}, "exact name"),
        ({"host": "a.example:443"}, "without the ports"),
        ({"host": "a.example", "body": "x"}, "needs the argument host"),
        ({"host": "a.example", "method": "post"}, "in capitals"),
        ({"host": "a.example", "path": "a"}, "begins with /"),
        ({"host": "a.example/b", "path": "/a"}, "without a path"),
        ({"host": 3}, "needs the argument host"),
    ]
    for arguments, why in cases:
        with pytest.raises(InvalidInputError, match=why):
            Rules.parse({"rule": [{"decision": "deny", "kind": "http", "arguments": arguments}]})
