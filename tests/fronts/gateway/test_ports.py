"""Pages of servers in sessions: who gets in, what the server and the browser are told, and attacks from both sides."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import cellblock
from cellblock import Client, InvalidInputError, NotFoundError
from cellblock.fronts.gateway.ports import COOKIE, TICKET, Names, Page, PageHosts
from gateways import Gateway, token

SERVER = """
import asyncio, json

async def answer(reader, writer):
    try:
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        first, *rest = head.decode("latin-1").rstrip().split("\\r\\n")
        headers = [tuple(line.split(": ", 1)) for line in rest]
        known = {name.lower(): value for name, value in headers}
        body = b""
        if "content-length" in known:
            body = await reader.readexactly(int(known["content-length"]))
        elif "transfer-encoding" in known:
            body = await reader.readuntil(b"0\\r\\n\\r\\n")
        path = first.split()[1].partition("?")[0]
        if path in RAW:
            writer.write(RAW[path])
        else:
            text = json.dumps({"first": first, "headers": headers, "body": body.decode("latin-1")}).encode()
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(text) + text)
        await writer.drain()
    finally:
        writer.close()

RAW = {}
server = await asyncio.start_server(answer, "127.0.0.1", 8501)
"""
ECHO = """
import asyncio, base64, hashlib
async def echo(reader, writer):
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
    key = [line for line in head.split("\\r\\n") if line.lower().startswith("sec-websocket-key")][0].partition(": ")[2]
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
    writer.write(b"HTTP/1.1 101 S\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n")
    writer.write(b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    text = repr([line for line in head.split("\\r\\n") if line.startswith(("Origin", "origin", "cookie", "Host"))]).encode()
    writer.write(bytes([0x81, len(text)]) + text)
    while True:
        start = await reader.readexactly(2)
        mask = await reader.readexactly(4)
        data = bytes(one ^ mask[place % 4] for place, one in enumerate(await reader.readexactly(start[1] & 127)))
        if start[0] & 15 == 8:
            writer.close()
            return
        writer.write(bytes([start[0], len(data)]) + data)
sockets = await asyncio.start_server(echo, "127.0.0.1", 8502)
"""


@pytest.fixture(scope="module")
def session(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cellblock.get_or_create("s", working_dir=str(tmp_path_factory.mktemp("workspace")), recovery="none")
    for code in (SERVER, ECHO):
        result = cellblock.execute("s", code)
        assert result.ok, result.text
    yield "s"
    cellblock.wipe()


class Browser:
    """A browser that resolves names below localhost, and has the cookies of one page."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        self.url = url
        self.host = url.partition("//")[2].partition("/")[0].removeprefix("frame.")
        self.origin = f"http://{self.host}"
        self.client = httpx.Client(base_url=gateway.url, timeout=30, verify=False)
        self.cookie = ""

    def get(self, path: str, *, method: str = "GET", host: str = "", **options: Any) -> httpx.Response:
        cookies = {"Cookie": self.cookie} if self.cookie else {}
        headers = {"Host": host or self.host, **cookies, **options.pop("headers", {})}
        self.client.cookies.clear()  # it knows only this address, and not the page's host
        return self.client.request(method, path, headers=headers, **options)

    def enter(self) -> httpx.Response:
        answered = self.get("/?" + self.url.partition("?")[2])
        if answered.status_code == 303:
            self.cookie = answered.headers.get("Set-Cookie", self.cookie).partition(";")[0]
        return answered


@pytest.fixture
def opened(gateway: Gateway, session: str) -> Iterator[Browser]:
    """A browser that has not entered yet."""
    yield from _opened(gateway, session, 8501)


def _opened(gateway: Gateway, session: str, port: int, **options: Any) -> Iterator[Browser]:
    with Client(gateway.url, token("run"), verify=False) as client:
        browser = Browser(gateway, client.open_port(session, port, **options))
    with browser.client:
        yield browser


@pytest.fixture
def browser(opened: Browser) -> Browser:
    """A browser that has entered."""
    assert opened.enter().status_code == 303
    return opened


def raw(path: str, answer: bytes) -> None:
    """Have the server answer a path with these bytes."""
    assert cellblock.execute("s", f"RAW[{path!r}] = {answer!r}").ok


# -- who gets in ---------------------------------------------------------------------------------------------------------


def test_a_ticket_becomes_a_cookie_of_this_host_once(opened: Browser) -> None:
    assert opened.get("/").status_code == 403
    entered = opened.enter()
    assert (entered.status_code, entered.headers["Location"]) == (303, "/")
    assert re.fullmatch(f"{COOKIE}=[\\w-]+; Path=/; HttpOnly; SameSite=Lax", entered.headers["Set-Cookie"])
    assert opened.get("/").status_code == 200
    again = opened.enter()
    assert (again.status_code, "Set-Cookie" in again.headers) == (303, False), "a tab that is loaded again"
    opened.cookie = ""
    replayed = opened.enter()
    assert (replayed.status_code, replayed.json()["code"]) == (403, "ticket_needed")


def test_a_ticket_is_valid_for_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("id", 80, bare=False)
    late, soon, revoked = page.ticket(lambda: True), page.ticket(lambda: True), page.ticket(lambda: False)
    assert page.enter(soon)
    assert page.enter(revoked) is None
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert page.enter(late) is None


def test_a_cookie_counts_as_long_as_its_token() -> None:
    page, valid = Page("id", 80, bare=False), [True]
    cookie = page.enter(page.ticket(lambda: valid[0]))
    assert cookie
    assert page.admits([cookie])
    assert not page.admits(["", "other"])
    valid[0] = False
    assert not page.admits([cookie])


def test_the_cookie_of_another_page_does_not_count(gateway: Gateway, session: str, browser: Browser) -> None:
    for other in _opened(gateway, session, 8502):
        other.cookie = browser.cookie
        assert other.get("/").status_code == 403


def test_a_token_needs_the_scope_run(gateway: Gateway, session: str) -> None:
    with gateway.client(token("read")) as reader:
        assert reader.post("/sessions/s/ports/8501").status_code == 403
        assert reader.get("/sessions/s/ports").status_code == 200


def test_a_port_without_a_server_is_not_opened(gateway: Gateway, session: str) -> None:
    with Client(gateway.url, token("run")) as client:
        with pytest.raises(NotFoundError, match="nothing listens at port 8503"):
            client.open_port(session, 8503)
        assert client.ports(session) == [8501, 8502]


def test_other_names_below_a_page_are_no_host(browser: Browser) -> None:
    for prefix in ("x.", "frame.frame.", "p1-0123456789abcdef."):
        assert browser.get("/console", host=prefix + browser.host).status_code in (404, 421, 502)


def test_a_foreign_name_reaches_nothing(browser: Browser) -> None:
    """DNS rebinding."""
    label, port = browser.host.partition(".")[0], browser.host.rpartition(":")[2]
    assert browser.get("/", host=f"{label}.example.org:{port}").json()["code"] == "host_refused"
    assert browser.get("/", host=f"p8501-0123456789abcdef.localhost:{port}").status_code == 502


def test_the_console_and_the_api_are_not_at_a_pages_host(browser: Browser) -> None:
    assert browser.get("/console").json()["first"] == "GET /console HTTP/1.1"
    assert browser.get("/kernels").json()["first"] == "GET /kernels HTTP/1.1"


def test_a_page_reaches_nothing_of_the_gateway(gateway: Gateway, browser: Browser) -> None:
    host = f"127.0.0.1:{gateway.port}"
    for headers in ({"Origin": browser.origin}, {"Sec-Fetch-Site": "same-site"}):
        answered = browser.get("/kernels", host=host, headers=headers)
        assert (answered.status_code, answered.json()["code"]) == (403, "origin_refused")


def test_a_request_of_another_page_is_refused(browser: Browser) -> None:
    for origin in ("http://evil.example", "null", f"http://frame.{browser.host}"):
        assert browser.get("/", method="POST", headers={"Origin": origin}).json()["code"] == "origin_refused"


async def test_a_page_has_a_limit_of_requests_at_a_time() -> None:
    """Each of its requests has a connection: a page must not take up all of them."""
    answers: list[int] = []
    held = asyncio.Event()

    @asynccontextmanager
    async def connect(_session: str, _port: int) -> AsyncIterator[Any]:
        await held.wait()
        if held.is_set():
            raise NotFoundError("gone")
        yield None

    async def nothing(*_: object) -> None:
        raise AssertionError("it is the host of a page")

    hosts = PageHosts(nothing, connect)
    url = hosts.open("id", 80, 8080, bare=True)
    (page,) = hosts._pages.values()
    cookie = page.enter(url.partition("=")[2])
    headers = [(b"host", url.split("/")[2].encode()), (b"cookie", f"{COOKIE}={cookie}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    waiting = [asyncio.ensure_future(hosts({**scope}, receive, send)) for _ in range(100)]
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(*waiting)
    assert sorted(answers) == [429] * 36 + [502] * 64
    assert page.running == 0


# -- below a domain, behind a proxy that ends TLS ------------------------------------------------------------------------


class Asked:
    """Pages below a domain, and what a browser gets that asks for them."""

    def __init__(self) -> None:
        self.hosts = PageHosts(self._other, self._connect, names=Names.parse("https://Ports.example.org:8443"))

    async def _other(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body"})

    @asynccontextmanager
    async def _connect(self, _session: str, _port: int) -> AsyncIterator[Any]:
        if _session:
            raise NotFoundError("it would be forwarded")
        yield None

    async def get(self, host: str, query: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
        given = [
            (b"host", host.encode()),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "query_string": query.encode(),
            "headers": given,
            "scheme": "http",
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        await self.hosts(scope, receive, send)
        found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]).decode()


async def test_pages_below_a_domain_have_its_scheme_and_labels() -> None:
    asked = Asked()
    url = asked.hosts.open("id", 8501, 8080)
    match = re.fullmatch(r"https://frame-(p8501-[0-9a-f]{16}\.ports\.example\.org:8443)/\?(cellblock-ticket=.*)", url)
    assert match is not None
    host, ticket = match.groups()
    status, headers, text = await asked.get(f"frame-{host}", ticket)
    assert status == 200
    assert f'src="https://{host}/?{ticket}"' in text
    assert f"frame-src https://{host};" in headers["content-security-policy"]
    status, headers, _ = await asked.get(host, ticket, origin=f"http://{host}")
    assert status == 403  # the proxy ends TLS, and the browser knows nothing of http
    status, headers, _ = await asked.get(host, ticket)
    assert (status, headers["location"]) == (303, "/")
    match = re.fullmatch(r"(__Host-cellblock-port=\S+); Path=/; HttpOnly; SameSite=Lax; Secure", headers["set-cookie"])
    assert match is not None
    cookie = match[1]
    assert (await asked.get(host, cookie=cookie, origin=f"https://{host}"))[0] == 502
    assert (await asked.get(host, cookie=cookie.removeprefix("__Host-")))[0] == 403


async def test_another_page_of_the_domain_loads_no_part_of_a_page() -> None:
    for site in ("same-site", "cross-site"):
        asked = Asked()
        url = asked.hosts.open("id", 8501, 8080, bare=True)
        host = url.split("/")[2]
        cookie = (await asked.get(host, url.partition("?")[2]))[1]["set-cookie"].partition(";")[0]
        fetch = {"sec_fetch_site": site, "cookie": cookie}
        assert (await asked.get(host, **fetch, sec_fetch_mode="no-cors"))[0] == 403
        assert (await asked.get(host, **fetch, sec_fetch_mode="navigate"))[0] == 502
        assert (await asked.get(host, cookie=cookie, sec_fetch_site="same-origin", sec_fetch_mode="cors"))[0] == 502


async def test_other_names_are_not_of_pages() -> None:
    for host in ("ports.example.org", "x.ports.example.org", "p1-0123456789abcdef.localhost", "example.org"):
        assert (await Asked().get(host))[0] == 299


def test_what_is_no_domain_for_pages_is_refused() -> None:
    for url in ("ports.example.org", "https://localhost", "https://a.b/c", "ftp://a.b", "https://*.a.b"):
        with pytest.raises(InvalidInputError, match="ports_domain \\(--ports-domain\\) must be like 'https://ports"):
            Names.parse(url)


# -- what both sides are told --------------------------------------------------------------------------------------------


def test_the_server_sees_itself_and_nothing_of_cellblock(browser: Browser) -> None:
    headers = {
        "Origin": browser.origin,
        "Referer": f"{browser.origin}/a",
        "Cookie": f"a=1; {browser.cookie}; b=2",
        "Authorization": f"Bearer {token('read')}",
        "X-Forwarded-For": "1.2.3.4",
        "Connection": "X-Secret",
        "X-Secret": "1",
    }
    told = browser.get("/p%2Fq/ä?x=1&y=%20", method="POST", headers=headers, content=b"body").json()
    assert told["first"] == "POST /p%2Fq/%C3%A4?x=1&y=%20 HTTP/1.1"
    assert told["body"] == "body"
    seen = {name.lower(): value for name, value in told["headers"]}
    assert (seen["host"], seen["origin"], seen["referer"]) == (
        "localhost:8501",
        "http://localhost:8501",
        "http://localhost:8501/a",
    )
    assert seen["cookie"] == "a=1; b=2"
    assert not {"authorization", "x-forwarded-for", "x-secret"} & {*seen}
    assert browser.cookie.partition("=")[2] not in str(told)


def test_a_body_of_unknown_length_arrives(browser: Browser) -> None:
    told = browser.get("/", method="POST", content=iter([b"one", b"two"])).json()
    assert "one" in told["body"]
    assert "two" in told["body"]


def test_the_browser_gets_no_headers_about_other_hosts(browser: Browser) -> None:
    answer = (
        b"HTTP/1.1 302 Found\r\nLocation: http://localhost:8501/next?a=1\r\nSet-Cookie: a=1; Domain=localhost; Path=/\r\n"
        b"Set-Cookie: " + COOKIE.encode() + b"=stolen\r\nStrict-Transport-Security: max-age=99\r\nAlt-Svc: h3=1\r\n"
        b"X-Frame-Options: DENY\r\nContent-Length: 0\r\n\r\n"
    )
    raw("/302", answer)
    got = browser.get("/302")
    assert got.headers["Location"] == "/next?a=1"
    assert got.headers.get_list("Set-Cookie") == ["a=1; Path=/"]
    assert not {"strict-transport-security", "alt-svc", "x-frame-options"} & {*got.headers}


def test_a_page_stays_in_its_frame(gateway: Gateway, session: str, browser: Browser) -> None:
    policy = browser.get("/").headers["Content-Security-Policy"]
    assert f"frame-ancestors 'self' http://frame.{browser.host}" in policy
    assert "default-src 'self'" in policy
    frame = browser.get("/?" + browser.url.partition("?")[2], host=f"frame.{browser.host}")
    assert f"frame-src {browser.origin};" in frame.headers["Content-Security-Policy"]
    assert f'src="{browser.origin}/?{TICKET}=' in frame.text
    assert "allow-top-navigation" not in frame.text
    assert "allow-popups" not in frame.text
    injected = browser.get('/?a="><script>x</script>', host=f"frame.{browser.host}").text
    assert "<script" not in injected
    for bare in _opened(gateway, session, 8501, bare=True):
        bare.enter()
        assert bare.get("/").headers["Content-Security-Policy"] == "frame-ancestors 'self'"


def test_a_ticket_leads_to_no_other_host(opened: Browser) -> None:
    answered = opened.get(f"{opened.client.base_url}//evil.example/?" + opened.url.partition("?")[2] + "&a=b")
    assert answered.headers["Location"] == "/evil.example/?a=b"


# -- hostile answers -----------------------------------------------------------------------------------------------------


def test_an_answer_that_is_no_http_is_an_error(browser: Browser) -> None:
    cases: list[tuple[str, bytes]] = [
        ("no-http", b"hello\r\n\r\n"),
        ("nothing", b""),
        ("half", b"HTTP/1.1 200 OK\r\nContent-"),
        ("endless", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000),
        ("long-line", b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000),
        ("long-head", b"HTTP/1.1 200 OK\r\n" + 20 * (b"A: " + b"b" * 50_000 + b"\r\n") + b"Content-Length: 0\r\n\r\n"),
        ("switch", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw"),
        ("two-lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        ("folded", b"HTTP/1.1 200 OK\r\nA: b\r\n\tc\x00d\r\nContent-Length: 0\r\n\r\n"),
    ]
    for name, answer in cases:
        raw(f"/{name}", answer)
        got = browser.get(f"/{name}")
        assert (got.status_code, got.json()["code"]) == (502, "no_answer")


def test_a_second_answer_is_dropped(browser: Browser) -> None:
    """Response splitting: the next request gets its own answer."""
    second = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    raw("/two", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + second)
    raw("/both", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + second)
    for path in ("/two", "/both"):
        assert browser.get(path).text == "ok"
        assert browser.get("/").json()["first"] == "GET / HTTP/1.1"


def test_an_answer_that_breaks_off_does_not_seem_complete(browser: Browser) -> None:
    raw("/short", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab")
    with pytest.raises(httpx.HTTPError):
        browser.get("/short")


def test_a_hidden_request_stays_a_body(gateway: Gateway, browser: Browser) -> None:
    """Request smuggling: whatever the gateway takes for one request is one for the server."""
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST /smuggled HTTP/1.1\r\nHost: {browser.host}\r\nCookie: {browser.cookie}\r\nConnection: close\r\n"
    for extra in ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "Content-Length: 4\r\nContent-Length: 40\r\n"):
        with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
            connection.sendall(head.encode() + extra.encode() + b"\r\n0\r\n\r\n" + hidden)
            answer = b""
            while data := connection.recv(65536):
                answer += data
        assert b"/hidden" not in answer.replace(hidden, b"") or b" 400 " in answer.partition(b"\r\n")[0]


def test_a_closed_server_is_an_error_that_says_so(gateway: Gateway, session: str) -> None:
    assert cellblock.execute("s", "last = await asyncio.start_server(answer, '127.0.0.1', 8504)").ok
    for browser in _opened(gateway, session, 8504):
        browser.enter()
        assert browser.get("/").status_code == 200
        assert cellblock.execute("s", "last.close(); await last.wait_closed()").ok
        got = browser.get("/")
        assert got.status_code == 502
        assert "nothing listens at port 8504" in got.json()["detail"]


@pytest.mark.slow
def test_many_requests_leave_no_connection(browser: Browser) -> None:
    for _ in range(60):
        assert browser.get("/").status_code == 200
    with httpx.stream("GET", f"http://127.0.0.1:{browser.host.rpartition(':')[2]}/", headers={"Host": browser.host}):
        pass
    assert browser.get("/").status_code == 200


# -- WebSockets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sockets(gateway: Gateway, session: str) -> Iterator[Browser]:
    for made in _opened(gateway, session, 8502):
        assert made.enter().status_code == 303
        yield made


def web_socket(browser: Browser, origin: str | None, **headers: str) -> ClientConnection:
    host, port = browser.host.rsplit(":", 1)
    raw = socket.create_connection(("127.0.0.1", int(port)), 10)
    more = {"Cookie": browser.cookie, **headers}
    return connect(f"ws://{host}:{port}/ws", sock=raw, origin=origin, additional_headers=more, compression=None)  # type: ignore[arg-type]


def test_a_web_socket_carries_messages_in_both_directions(sockets: Browser) -> None:
    with web_socket(sockets, sockets.origin) as connection:
        told = str(connection.recv(10))
        assert "http://localhost:8502" in told
        assert COOKIE not in told
        connection.send("ä")
        assert connection.recv(10) == "ä"
        connection.send(b"\xff" * 100)
        assert connection.recv(10) == b"\xff" * 100


def test_a_web_socket_that_is_no_part_of_the_page_is_refused(sockets: Browser, browser: Browser) -> None:
    cases: list[tuple[Browser, str | None, dict[str, str], int]] = [
        *((sockets, origin, {}, 403) for origin in (None, "http://evil.example", "null")),
        (sockets, sockets.origin, {"Cookie": f"{COOKIE}=other"}, 403),
        (browser, browser.origin, {}, 502),  # a server without WebSockets
    ]
    for at, origin, headers, status in cases:
        with pytest.raises(InvalidStatus) as caught:
            web_socket(at, origin, **headers)
        assert caught.value.response.status_code == status


def test_a_web_socket_ends_with_its_session(gateway: Gateway, tmp_path: Path) -> None:
    cellblock.get_or_create("short", working_dir=str(tmp_path), recovery="none")
    assert cellblock.execute("short", ECHO).ok
    for browser in _opened(gateway, "short", 8502):
        browser.enter()
        with web_socket(browser, browser.origin) as connection:
            connection.recv(10)
            cellblock.destroy("short")
            with pytest.raises(ConnectionClosed):
                connection.recv(20)
        cellblock.get_or_create("short", working_dir=str(tmp_path), recovery="none")
        assert cellblock.execute("short", ECHO).ok
        assert browser.get("/").status_code == 502, "a later session of this name is another one"
    cellblock.destroy("short")


BROWSED = """
import asyncio, http, websockets
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response
PAGES = {"/": ("text/html", "<!doctype html><title>mine</title>a page"), "/data.json": ("application/json", '{"a": 1}')}
def page(connection, request):
    if request.path != "/ws":
        kind, text = PAGES.get(request.path, ("text/plain", ""))
        body = text.encode()
        return Response(200, "OK", Headers({"Content-Type": kind, "Content-Length": str(len(body))}), body)
async def echo(connection):
    async for message in connection:
        await connection.send(message + " from " + connection.request.headers["Origin"])
browsed = await serve(echo, "127.0.0.1", 8505, process_request=page)
"""


DASHBOARDS = {
    "streamlit": (8511, "import streamlit\nstreamlit.write('hello')", "hello"),
    "dash": (8512, "import dash\napp = dash.Dash()\napp.layout = dash.html.Div('hello')\napp.run(port=8512)", "hello"),
    "flask": (8513, "import flask\napp = flask.Flask('a')\napp.route('/')(lambda: 'hello')\napp.run(port=8513)", "hello"),
    "tensorboard": (8514, "", "No dashboards are active"),
}
"""Port, program and text of a page"""
START = """
import subprocess, sys
commands = {
    "streamlit": ["-m", "streamlit", "run", "streamlit_app.py", "--server.port=8511", "--server.headless=true"],
    "dash": ["dash_app.py"],
    "flask": ["flask_app.py"],
    "tensorboard": ["-m", "tensorboard.main", "--logdir=logs", "--port=8514"],
}
servers = [subprocess.Popen([sys.executable, *command]) for command in commands.values()]
"""


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_dashboards_are_seen_in_a_browser(gateway: Gateway, tmp_path: Path) -> None:
    for name, (_, program, _) in DASHBOARDS.items():
        (tmp_path / f"{name}_app.py").write_text(program)
    cellblock.get_or_create("boards", working_dir=str(tmp_path), packages=list(DASHBOARDS), recovery="none")
    result = cellblock.execute("boards", START, timeout=300)
    assert result.ok, result.text
    shown = []
    with Client(gateway.url, token("run")) as client:
        deadline = time.monotonic() + 200
        while not {port for port, _, _ in DASHBOARDS.values()} <= {*client.ports("boards")} and time.monotonic() < deadline:
            time.sleep(0.5)
        for port, _, text in DASHBOARDS.values():
            shown += [client.open_port("boards", port), text]
        program = str(Path(__file__).with_name("dashboards_in_browser.py"))
        played = subprocess.run([sys.executable, program, *shown], capture_output=True, text=True, timeout=300)
    assert played.returncode == 0, played.stderr
    cellblock.destroy("boards")


@pytest.mark.clients
@pytest.mark.timeout(300)
def test_a_page_works_in_a_browser_and_stays_in_its_frame(gateway: Gateway, session: str) -> None:
    result = cellblock.execute(session, BROWSED)
    assert result.ok, result.text
    with Client(gateway.url, token("run")) as client:
        url = client.open_port(session, 8505)
    program = str(Path(__file__).with_name("ports_in_browser.py"))
    played = subprocess.run([sys.executable, program, url, gateway.url], capture_output=True, text=True, timeout=200)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout) == {
        "own": {"a": 1},
        "socket": "hello from http://localhost:8505",
        "gateway": "TypeError",
        "outside": "TypeError",
        "parent": "SecurityError",
        "popup": "refused",
        "top": "SecurityError",
        "cookie": "",
        "storage": "1",
        "origin": True,
        "reloaded": "mine",
        "other browser": 403,
        "foreign frame": False,
    }
