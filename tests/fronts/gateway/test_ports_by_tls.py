"""Pages below a domain, through a real proxy that ends TLS with a wildcard certificate, for a client with a cookie jar."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

import cellblock
from cellblock import Client
from fronts.gateway.test_ports import ECHO, SERVER
from gateways import Gateway, own_gateway, token
from tls_proxies import DOMAIN, TlsProxy, tls_proxy

COOKIE = "__Host-cellblock-port"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProxy]:
    with tls_proxy(tmp_path_factory.mktemp("proxy")) as made:
        yield made


@pytest.fixture(scope="module")
def public(one_gateway: Gateway, proxy: TlsProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway behind the proxy, and a session with servers."""
    cellblock.wipe()
    cellblock.get_or_create("s", working_dir=str(tmp_path_factory.mktemp("workspace")), recovery="none")
    for code in (SERVER, ECHO):
        assert cellblock.execute("s", code).ok
    with own_gateway(ports_domain=proxy.url) as made:
        proxy.to = made.port
        yield made
    cellblock.wipe()


@pytest.fixture
def browser(proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client with a cookie jar, for which all names below the domain are at 127.0.0.1."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return resolve("127.0.0.1" if str(name).endswith(f".{DOMAIN}") else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with httpx.Client(verify=proxy.trust, timeout=30) as client:
        yield client


def opened(public: Gateway, port: int) -> str:
    """Return the URL of a page, with a ticket."""
    with Client(public.url, token("run")) as client:
        return client.open_port("s", port)


def entered(browser: httpx.Client, url: str) -> str:
    """Enter a page as a browser does, by its frame; return the page's URL."""
    frame = browser.get(url)
    assert frame.status_code == 200, frame.text
    source = re.search(r'<iframe [^>]*src="([^"]+)"', frame.text)
    assert source
    inside = source[1].replace("&amp;", "&")
    assert f"frame-src {inside.partition('/?')[0]};" in frame.headers["Content-Security-Policy"]
    answered = browser.get(inside)
    assert (answered.status_code, answered.headers["Location"]) == (303, "/")
    assert re.fullmatch(rf"{COOKIE}=[\w-]+; Path=/; HttpOnly; SameSite=Lax; Secure", answered.headers["Set-Cookie"])
    return inside.partition("/?")[0]


def test_a_page_is_entered_by_tls_with_a_secure_cookie_of_its_host(
    browser: httpx.Client, public: Gateway, proxy: TlsProxy
) -> None:
    url = opened(public, 8501)
    assert re.match(rf"https://frame-p8501-[0-9a-f]{{16}}\.{re.escape(DOMAIN)}:{proxy.port}/\?", url)
    page = entered(browser, url)
    assert [(one.name, one.secure, one.domain_specified) for one in browser.cookies.jar] == [(COOKIE, True, False)]
    told = browser.post(f"{page}/a?b=c", content=b"body", headers={"Origin": page, "Referer": f"{page}/x"})
    seen = {name.lower(): value for name, value in told.json()["headers"]}
    assert (told.json()["first"], told.json()["body"]) == ("POST /a?b=c HTTP/1.1", "body")
    assert (seen["host"], seen["origin"]) == ("localhost:8501", "http://localhost:8501")
    assert "cookie" not in seen
    policy = told.headers["Content-Security-Policy"]
    assert f"connect-src 'self' data: blob: wss://{page.removeprefix('https://')};" in policy
    assert f"frame-ancestors 'self' {page.replace('https://', 'https://frame-')}" in policy


def test_the_cookie_opens_no_other_page_and_nothing_without_tls(
    browser: httpx.Client, public: Gateway, proxy: TlsProxy
) -> None:
    page = entered(browser, opened(public, 8501))
    other = opened(public, 8502).partition("/?")[0].replace("https://frame-", "https://")
    assert browser.get(page).status_code == 200
    assert browser.get(other).status_code == 403  # the jar has no cookie for it
    value = browser.cookies[COOKIE]
    assert browser.get(other, headers={"Cookie": f"{COOKIE}={value}"}).status_code == 403
    plain = page.replace("https://", "http://").replace(f":{proxy.port}", f":{public.port}")
    assert browser.get(plain).status_code == 403  # the jar does not send it
    browser.cookies.clear()
    assert browser.get(page, headers={"Cookie": f"cellblock-port={value}"}).status_code == 403


def test_requests_of_other_origins_are_refused(browser: httpx.Client, public: Gateway) -> None:
    page = entered(browser, opened(public, 8501))
    origins = (page.replace("https://", "http://"), page.replace("https://", "https://frame-"), f"https://{DOMAIN}", "null")
    for origin in origins:
        refused = browser.post(page, headers={"Origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "origin_refused")


@pytest.mark.usefixtures("public")
def test_the_api_and_the_console_are_not_below_the_domain(browser: httpx.Client, proxy: TlsProxy) -> None:
    for path in ("/console", "/kernels"):
        answered = browser.get(f"https://console.{DOMAIN}:{proxy.port}{path}")
        assert (answered.status_code, answered.json()["code"]) == (421, "host_refused")


def web_socket(proxy: TlsProxy, page: str, origin: str | None, cookie: str) -> ClientConnection:
    raw = socket.create_connection(("127.0.0.1", proxy.port), 30)
    return connect(
        f"wss{page.removeprefix('https')}/ws",
        sock=raw,
        ssl=proxy.trust,
        origin=origin,  # type: ignore[arg-type]
        additional_headers={"Cookie": cookie},
        compression=None,
    )


def test_web_sockets_need_the_https_origin_of_their_page(browser: httpx.Client, public: Gateway, proxy: TlsProxy) -> None:
    page = entered(browser, opened(public, 8502))
    cookie = f"{COOKIE}={browser.cookies[COOKIE]}"
    with web_socket(proxy, page, page, cookie) as connection:
        told = str(connection.recv(30))
        assert "http://localhost:8502" in told
        assert COOKIE not in told
        connection.send("ä" * 20)
        assert connection.recv(30) == "ä" * 20
    for origin in (None, page.replace("https", "http"), page.replace("https://", "https://frame-"), f"https://{DOMAIN}"):
        with pytest.raises(InvalidStatus) as caught:
            web_socket(proxy, page, origin, cookie)
        assert caught.value.response.status_code == 403
    with pytest.raises(InvalidStatus):
        web_socket(proxy, page, page, f"{COOKIE}=other")
