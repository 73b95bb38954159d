"""SDKs inside a session: their keys are placeholders, responses arrive in pieces, and refused requests are not repeated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cellblock import Host, Network, Policy, Secret, Session
from cellblock.walls.egress import gate
from processes import eventually
from walls.keys.tls_servers import TlsServer

VALUES = {"OPENAI_API_KEY": "canary-of-openai-0123456789", "ANTHROPIC_API_KEY": "canary-of-anthropic-0123456789"}

CREATE = {
    "openai": "openai.OpenAI(base_url=URL + '/v1').chat.completions.create(model='m', messages=MESSAGES{stream})",
    "anthropic": "anthropic.Anthropic(base_url=URL).messages.create(model='m', max_tokens=9, messages=MESSAGES{stream})",
}
PIECES = {"openai": "event.choices[0].delta.content", "anthropic": "event.delta.text"}

ONCE = {
    **{name: f"import {name}\n{code.format(stream='')}" for name, code in CREATE.items()},
    "botocore": (
        "import boto3, botocore.config\n"
        "options = {'signature_version': botocore.UNSIGNED, 'request_checksum_calculation': 'when_required'}\n"
        "config = botocore.config.Config(**options)\n"
        "s3 = boto3.client('s3', endpoint_url=URL, region_name='eu-west-1', config=config)\n"
        "s3.put_object(Bucket='bucket', Key='key', Body=b'x' * 1_000_000)"
    ),
    "requests": (
        "import requests, urllib3\nsession = requests.Session()\n"
        "retry = urllib3.Retry(3, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=None, backoff_factor=0.01)\n"
        "session.mount('https://', requests.adapters.HTTPAdapter(max_retries=retry))\n"
        "session.post(URL, data=b'x' * 1_000_000).raise_for_status()"
    ),
    "httpx": (
        "import httpx, ssl\ntransport = httpx.HTTPTransport(ssl.create_default_context(), proxy=PROXY, retries=3)\n"
        "httpx.Client(transport=transport).post(URL, content=b'x' * 1_000_000).raise_for_status()"
    ),
}
"""One request by each client, with retries."""


def chunk(data: dict[str, object]) -> bytes:
    """Return an event in a chunk of its own."""
    text = f"event: {data.get('type', 'message')}\ndata: {json.dumps(data)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(text), text)


class Models:
    """A server of both APIs. It sends the second piece of text only when the client has asked for ``/released``."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, head: bytes, _body: bytes) -> bytes | Iterator[bytes]:
        path = head.split()[1]
        if path == b"/released":
            self.released.set()
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        name = "openai" if path == b"/v1/chat/completions" else "anthropic"
        return self.pieces(getattr(self, name), VALUES[f"{name.upper()}_API_KEY"])

    def pieces(self, event: Callable[[str], dict[str, object]], value: str) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield chunk(event("one "))
        if self.released.wait(60):
            yield chunk(event(f"two {value}"))
        yield b"0\r\n\r\n"

    @staticmethod
    def openai(text: str) -> dict[str, object]:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    @staticmethod
    def anthropic(text: str) -> dict[str, object]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


@contextlib.asynccontextmanager
async def session_with(
    host: Host, server: TlsServer, monkeypatch: pytest.MonkeyPatch, directory: Path, *http: str
) -> AsyncIterator[Session]:
    """Make a session with the keys of both APIs, which a local server has."""
    at = f"api.test:{server.port}"
    monkeypatch.setenv("SSL_CERT_FILE", server.roots)
    monkeypatch.setattr(gate, "_getaddrinfo", lambda _name: ["127.0.0.1"])
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    secrets = {name: Secret.from_env(name, hosts=[at]) for name in VALUES}
    network = Network(allow=(f"127.0.0.1:{server.port}",), http=tuple(line.format(at) for line in http))
    async with host.session(working_dir=directory, policy=Policy(network=network), secrets=secrets) as session:
        await session.execute(
            f"import os\nURL = 'https://{at}'\nPROXY = os.environ['HTTPS_PROXY']\n"
            "MESSAGES = [{'role': 'user', 'content': 'hello'}]"
        )
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("name", CREATE)
async def test_an_sdk_streams_with_a_placeholder(
    native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    code = (
        f"import {name}, urllib.request\nfound = []\n"
        f"for event in {CREATE[name].format(stream=', stream=True')}:\n"
        f"    found.append({PIECES[name]})\n"
        "    if len(found) == 1:\n        urllib.request.urlopen(URL + '/released').read()\n"
        "''.join(found)"
    )
    variable = f"{name.upper()}_API_KEY"
    with TlsServer(Models(), host="api.test") as server:
        async with session_with(native_host, server, monkeypatch, tmp_path) as session:
            result = await session.execute(code, timeout=100)
            placeholder = (await session.execute(f"os.environ['{variable}']")).return_value
    assert result.return_value is not None, result.error
    assert result.return_value == repr(f"one two {str(placeholder)[1:-1]}")
    assert VALUES[variable] in server.seen[0].decode()


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["by a line", "of the response"])
async def test_no_sdk_repeats_a_refused_request(
    native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal: str
) -> None:
    def coded(_head: bytes, _body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"

    http = "GET {}/other" if refusal == "by a line" else "* {}/**"
    with TlsServer(coded, host="api.test") as server:
        async with session_with(native_host, server, monkeypatch, tmp_path, http) as session:
            for number, (name, code) in enumerate(ONCE.items(), 1):
                result = await session.execute(code, timeout=100)
                assert "403" in str(result.error), f"{name}: {result.error}"
                await eventually(lambda number=number: len(session.requests) >= number)
                await asyncio.sleep(0.1)
                assert len(session.requests) == number, name
                assert len(server.seen) == (0 if refusal == "by a line" else number), name
