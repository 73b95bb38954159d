"""What every request to a gateway passes first."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import AsyncIterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.app import Gateway as Application
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.guard import Guard, Refused, _Admitted, _Use, check_host, check_use
from cellblock.fronts.gateway.serve import check_address
from cellblock.service.store.tokens import Tokens
from gateways import Gateway, own_gateway, token


@pytest.mark.slow
def test_what_says_nothing_about_sessions_needs_no_token(gateway: Gateway) -> None:
    with gateway.client() as client:
        assert client.get("/health").json()["status"] == "ok"
        assert {"swagger", "redoc", "openapi"} <= client.get("/").json()["links"].keys()


@pytest.mark.parametrize("given", ["x", "cb_", "Bearer", "cb_00000000_" + "a" * 43, "cb_\u0661" + "a" * 50, "x" * 5000])
def test_nothing_else_is_served_without_a_token(gateway: Gateway, given: str) -> None:
    with gateway.client() as client:
        answer = client.get("/kernels", headers=httpx.Headers([(b"Authorization", f"Bearer {given}".encode())]))
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_opens_until_it_is_revoked_or_expires(gateway: Gateway) -> None:
    text, made = Tokens().create("one", ["read"])
    short = token("read", lifetime=0.001)
    with gateway.client(text) as client:
        assert client.get("/nowhere").status_code == 404
        assert client.get("/nowhere", headers={"Authorization": f"token {text}"}).status_code == 404
        Tokens().revoke(made.id)
        assert client.get("/nowhere").status_code == 401
        assert client.get("/nowhere", headers={"Authorization": f"Bearer {short}"}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", ""])
def test_a_foreign_name_is_refused(gateway: Gateway, host: str) -> None:
    with gateway.client() as client:
        answer = client.get("/health", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "host_refused")
    assert "--allow-name" in answer.json()["detail"]


def test_names_of_this_machine_are_known() -> None:
    for host in ("localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:8", "[::1]:8", "[::1]", "10.0.0.1", "my.name."):
        check_host(Headers({"host": host}), {"localhost", "my.name"})


def test_other_web_pages_are_refused(gateway: Gateway) -> None:
    with gateway.client() as client:

        def status(origin: str) -> int:
            return client.get("/health", headers={"Origin": origin}).status_code

        assert status(gateway.url) == 200
        assert status("https://a.example") == 200
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", gateway.url.replace("http", "https")):
            assert status(origin) == 403
        answer = client.post("/kernels", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.json()["code"] == "origin_refused"


def test_pages_that_are_allowed_can_read_answers(gateway: Gateway) -> None:
    ask = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization, content-type"}
    with gateway.client() as client:
        preflight = client.options("/kernels", headers={"Origin": "https://a.example", **ask})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        assert "PUT" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        for path, status in (("/health", 200), ("/kernels", 401)):
            answer = client.get(path, headers={"Origin": "https://a.example"})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "https://a.example")
            assert "access-control-allow-credentials" not in answer.headers
            assert "Origin" in answer.headers["vary"]
        for origin in ("https://evil.example", "https://a.example.evil.example", "http://a.example", "null"):
            refused = client.options("/kernels", headers={"Origin": origin, **ask})
            assert refused.status_code == 400
            assert "access-control-allow-origin" not in {
                **refused.headers,
                **client.get("/", headers={"Origin": origin}).headers,
            }


async def test_by_default_no_page_can_read_answers(open_app: Application) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(open_app), base_url="http://127.0.0.1") as client:
        headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
        assert (await client.options("/kernels", headers=headers)).status_code == 403
        own = await client.get("/", headers={"Origin": "http://127.0.0.1"})
        assert own.status_code == 200
        assert not [name for name in own.headers if name.startswith("access-control")]


def test_a_web_socket_passes_the_same_guard(gateway: Gateway) -> None:
    address = gateway.url.replace("http", "ws") + "/nowhere"

    def status(origin: str | None = None, **headers: str) -> int:
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers={**headers, **_origin(origin)}):
            pass
        return refused.value.response.status_code

    assert status() == 401
    assert status("https://evil.example", Authorization=f"Bearer {token('read')}") == 403


def _origin(origin: str | None) -> dict[str, str]:
    return {} if origin is None else {"Origin": origin}


@pytest.mark.parametrize("framing", ["Content-Length: 16777217", "Transfer-Encoding: chunked"])
def test_a_body_is_refused_before_it_has_come(gateway: Gateway, framing: str) -> None:
    """What is announced is refused at once; of what is not, no more is taken than may be."""
    head = f"POST /kernels HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('admin')}\r\n{framing}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
        connection.sendall(head.encode())
        if "chunked" in framing:
            connection.sendall(b'1000001\r\n"' + b"x" * 16 * 1024 * 1024 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/kernels", "/kernels/x/execute", "/sessions/x/executions", "/approvals"])
def test_a_body_of_too_many_values_is_not_parsed(gateway: Gateway, path: str) -> None:
    with gateway.client(token("admin")) as client:
        answer = client.post(path, content=b'{"x": [' + b"[]," * 60_000 + b"1]}", headers={"Content-Type": "application/json"})
    assert (answer.status_code, "values" in answer.json()["detail"]) == (413, True)


async def test_a_body_that_trickles_in_is_let_go() -> None:
    """Each byte comes within the client's patience, and all of them would take longer."""

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(200):
            await asyncio.sleep(0.01)
            yield b" "

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        await Response()(scope, receive, send)

    guard = Guard(read, GatewayOptions(token="t", patience=0.2), None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
        answer = await client.post("/kernels", content=trickle(), headers={"Authorization": "Bearer t"})
    assert (answer.status_code, answer.json()["code"]) == (408, "too_slow")


def test_two_hosts_are_refused(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert sock.recv(1000).split()[1] == b"400"


async def test_without_tokens_nobody_elsewhere_is_served(open_app: Application) -> None:
    """Whoever may have bound the address: the connection itself tells."""
    for client, status in ((("127.0.0.1", 1), 404), (("::1", 1), 404), (("10.0.0.1", 1), 403), (("x", 1), 403)):
        transport = httpx.ASGITransport(open_app, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asking:
            assert (await asking.get("/nowhere")).status_code == status


def test_a_caller_can_only_do_so_much() -> None:
    use = _Use(left=2.0)
    check_use(use, 5, 1.0)
    check_use(use, 5, 1.0)
    with pytest.raises(Refused) as refused:
        check_use(use, 5, 1.0)
    assert (refused.value.problem.code, refused.value.problem.retry_after) == ("too_many_requests", 1)
    use.at = time.monotonic() - 1000
    check_use(use, 5, 1.0)
    assert use.left <= 2.0
    use.running = 5
    with pytest.raises(Refused) as refused:
        check_use(use, 5, 1.0)
    assert refused.value.problem.code == "too_many_at_once"


@pytest.mark.slow
def test_without_tokens_only_this_machine_is_served() -> None:
    check_address("127.0.0.1", auth=False)
    check_address("::1", auth=False)
    check_address("localhost", auth=False)
    check_address("0.0.0.0", auth=True)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(InvalidInputError, match="loopback address"):
            check_address(host, auth=False)
    with own_gateway(auth=False) as open_to_all:
        assert httpx.get(f"{open_to_all.url}/nowhere").status_code == 404


@pytest.mark.slow
def test_half_sent_logins_of_one_address_stop_nobody(gateway: Gateway) -> None:
    head = f"POST /console/login HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
    connections = []
    try:
        for _ in range(600):
            connections.append(socket.create_connection(("127.0.0.1", gateway.port)))
            connections[-1].sendall(head.encode())
        with gateway.client(token("read")) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/console").status_code == 200
            assert client.get("/kernels").status_code == 200
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("path", ["/health", "/", "/docs", "/console"])
def test_public_paths_take_no_body(gateway: Gateway, path: str) -> None:
    with gateway.client() as client:
        answer = client.request("GET", path, content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert client.post("/console/login", json={"code": "x" * 2000}).status_code == 413


def read_on(socket: ClientConnection) -> None:
    """Read from a WebSocket until it ends."""
    while True:
        socket.recv(timeout=60)


class Revoked:
    """A token, and seconds until what was open with it has ended."""

    def __init__(self, *scopes: str) -> None:
        self.text, made = Tokens().create("test", scopes)
        self.number = made.id
        self.at = 0.0

    def revoke(self) -> None:
        Tokens().revoke(self.number)
        self.at = time.monotonic()

    def check(self) -> None:
        assert time.monotonic() - self.at < 60  # within a second, and the machine may be busy


async def test_messages_on_their_way_do_not_keep_a_request_from_ending() -> None:
    valid, sent = [True], []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"] if message["type"] != "websocket.close" else message["code"])

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        async def talk(steps: int) -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            valid[0] = False
            await send({"type": "websocket.send", "text": "x"})

        await send({"type": "websocket.accept"})
        try:
            async with asyncio.TaskGroup() as tasks:
                for steps in range(9):
                    tasks.create_task(talk(steps))
        finally:
            await send({"type": "websocket.close", "code": 1011})

    await _Admitted(lambda: valid[0], send).run(app, {"type": "websocket"}, asyncio.Event().wait)  # type: ignore[arg-type]
    assert sent == ["websocket.accept", 1008]


@pytest.mark.slow
def test_a_web_socket_ends_with_its_token(gateway: Gateway) -> None:
    own = Revoked("run")
    with gateway.client(token("admin")) as client:
        kernel = client.post("/kernels", json={}).json()["kernel_id"]
        execution = client.post(f"/sessions/{kernel}/executions", json={"code": "import time; time.sleep(60)"}).json()["id"]
        address = f"ws://127.0.0.1:{gateway.port}"
        headers = {"Authorization": f"Bearer {own.text}"}
        with (
            connect(f"{address}/api/kernels/{uuid.UUID(hex=kernel)}/channels", additional_headers=headers) as channels,
            connect(f"{address}/executions/{execution}/events", additional_headers=headers) as events,
        ):
            own.revoke()
            for one in (channels, events):
                with pytest.raises(ConnectionClosed) as closed:
                    read_on(one)
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is no longer valid")
            own.check()
    with gateway.client(token("admin")) as client:
        client.delete(f"/kernels/{kernel}")


@pytest.mark.slow
def test_a_message_with_a_revoked_token_is_not_taken(gateway: Gateway) -> None:
    own = Revoked("run")
    with gateway.client(token("admin")) as client:
        kernel = client.post("/kernels", json={}).json()["kernel_id"]
        execution = client.post(f"/sessions/{kernel}/executions", json={"code": "import time; time.sleep(3); 'done'"}).json()[
            "id"
        ]
        headers = {"Authorization": f"Bearer {own.text}"}
        with connect(f"ws://127.0.0.1:{gateway.port}/executions/{execution}/events", additional_headers=headers) as events:
            own.revoke()
            events.send('{"cancel": true}')
            with pytest.raises(ConnectionClosed):
                read_on(events)
        assert client.get(f"/executions/{execution}/result").json()["status"] == "success"
        client.delete(f"/kernels/{kernel}")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_event_streams_and_long_requests_end_with_their_token(gateway: Gateway, how: str) -> None:
    text, made = Tokens().create("test", ("run",), lifetime=1.5 if how == "expired" else None)
    with gateway.client(text) as client, gateway.client(token("admin")) as admin:
        kernel = admin.post("/kernels", json={}).json()["kernel_id"]
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(client.post, f"/kernels/{kernel}/execute", json={"code": "import time; time.sleep(60)"})
            with client.stream("GET", "/events") as stream:
                lines = stream.iter_lines()
                next(lines)
                if how == "revoked":
                    Tokens().revoke(made.id)
                assert [line for line in lines if line][-2:][0] == "event: problem"
            assert waits.result(20).status_code == 401
        admin.delete(f"/kernels/{kernel}")
