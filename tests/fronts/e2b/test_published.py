"""Servers of the sandbox at ports of this machine: which one answers, and who gets in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import cellblock
from cellblock import InvalidInputError
from cellblock.fronts.cli import main
from cellblock.fronts.e2b.serve import check_publishing, serve, workspace_for
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from fronts.e2b.conftest import run
from fronts.gateway.test_ports import ECHO, SERVER
from gateways import Gateway, token

MOZILLA = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"


@pytest.fixture(scope="module")
def published(server: Gateway, ports: list[int]) -> Gateway:
    """The server, with an HTTP server and a WebSocket server in its sandbox at the published ports."""
    with server.client() as api:
        assert run(api, SERVER.replace("8501", str(ports[0])))[-1]["type"] != "error"
        assert run(api, ECHO.replace("8502", str(ports[1])))[-1]["type"] != "error"
    return server


@pytest.fixture
def at(published: Gateway, ports: list[int]) -> Iterator[httpx.Client]:
    """A program's client of the published port, as a program addresses ``sandbox.get_host(PORT)``."""
    with httpx.Client(base_url=f"http://localhost:{ports[0]}", timeout=30, verify=False) as client:
        yield client


def test_programs_reach_the_server_of_the_sandbox(at: httpx.Client, ports: list[int]) -> None:
    headers = {
        "e2b-traffic-access-token": "secret",
        "Authorization": f"Bearer {token('read')}",
        "X-Forwarded-For": "1.2.3.4",
        "Sec-Fetch-Mode": "cors",  # as Node does
        "Origin": f"http://localhost:{ports[0]}",
    }
    answered = at.post("/a?b=c", content=b"body", headers=headers)
    told = answered.json()
    assert (told["first"], told["body"]) == ("POST /a?b=c HTTP/1.1", "body")
    seen = {name.lower(): value for name, value in told["headers"]}
    assert seen["host"] == f"localhost:{ports[0]}"
    assert not {"e2b-traffic-access-token", "authorization", "x-forwarded-for"} & {*seen}
    assert answered.headers["Content-Security-Policy"] == "sandbox"


def test_programs_have_web_sockets(published: Gateway, ports: list[int]) -> None:
    with connect(f"ws://localhost:{ports[1]}/ws", compression=None) as opened:
        opened.recv(10)
        opened.send("ä")
        assert opened.recv(10) == "ä"
    for headers in ({"Origin": "http://evil.example"}, {"User-Agent": MOZILLA}):
        with pytest.raises(InvalidStatus) as caught:
            connect(f"ws://localhost:{ports[1]}/ws", additional_headers=headers, user_agent_header=None, compression=None)
        assert caught.value.response.status_code == 403


def test_a_browser_is_sent_to_the_pages_own_origin(at: httpx.Client, ports: list[int]) -> None:
    """All ports of localhost share cookies: code could read those of other programs."""
    navigation = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none", "Cookie": "other=1"}
    for headers in (navigation, {"User-Agent": MOZILLA}):
        sent = at.get("/", headers=headers)
        assert (sent.status_code, sent.headers["Cache-Control"]) == (303, "no-store")
        place, _, query = sent.headers["Location"].removeprefix("http://frame.").partition("/?")
        entered = at.get(f"/?{query}", headers={"Host": place})
        cookie = entered.headers["Set-Cookie"].partition(";")[0]
        at.cookies.clear()
        assert place.startswith(f"p{ports[0]}-")
        assert at.get("/x", headers={"Host": place, "Cookie": cookie}).json()["first"] == "GET /x HTTP/1.1"
        assert at.get("/x", headers={"Host": place}).status_code == 403


def test_web_pages_and_rebound_names_are_refused(at: httpx.Client, ports: list[int]) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"Host": "evil.example:{port}"}, "host_refused"),
        ({"Host": "localhost:{other}"}, "host_refused"),
        ({"Host": "localhost"}, "host_refused"),
        ({"Origin": "https://evil.example"}, "origin_refused"),
        ({"Origin": "null"}, "origin_refused"),
        ({"Origin": "http://localhost:{other}"}, "origin_refused"),
        ({"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Site": "cross-site"}, "origin_refused"),
        ({"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-site"}, "origin_refused"),
        ({"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, "origin_refused"),
        ({"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, "origin_refused"),
    ]
    for headers, code in cases:
        given = {name: value.format(port=ports[0], other=ports[1]) for name, value in headers.items()}
        assert at.get("/", headers=given).json()["code"] == code


def test_a_form_of_a_browser_is_refused(at: httpx.Client) -> None:
    assert at.post("/", headers={"User-Agent": MOZILLA}).status_code == 403


def test_the_api_is_not_at_published_ports(at: httpx.Client, published: Gateway) -> None:
    assert at.get("/contexts").json()["first"] == "GET /contexts HTTP/1.1"
    with published.client() as api:
        assert isinstance(api.get("/contexts").json(), list)


@pytest.mark.slow
def test_servers_of_two_contexts_are_ambiguous(at: httpx.Client, published: Gateway, ports: list[int]) -> None:
    cellblock.get_or_create("private", recovery="none")  # not a context of the sandbox
    assert cellblock.execute("private", SERVER.replace("8501", str(ports[0]))).ok
    with published.client() as api:
        context = api.post("/contexts", json={}).json()["id"]
        run(api, SERVER.replace("8501", str(ports[0])), context_id=context)
        answered = at.get("/")
        assert answered.status_code == 409
        assert f"servers of 2 contexts listen at port {ports[0]}: stop all but one of" in answered.json()["detail"]
        assert api.delete(f"/contexts/{context}").status_code == 200
        assert at.get("/").status_code == 200
        run(api, "server.close(); await server.wait_closed()")
        answered = at.get("/")
        assert answered.status_code == 502
        assert (
            answered.json()["detail"] == f"nothing listens at port {ports[0]} of the sandbox: its servers listen at {ports[1]}"
        )
    cellblock.destroy("private")


@pytest.mark.parametrize(
    ("host", "options", "certificate", "why"),
    [
        ("127.0.0.1", {"isolate": "landlock"}, None, "needs isolate='native'"),
        ("127.0.0.1", {"sandbox": False}, None, "needs isolate='native'"),
        ("0.0.0.0", {}, None, "for programs on this machine"),
        ("127.0.0.1", {}, Path("x"), "for programs on this machine"),
    ],
)
def test_what_cannot_be_published_is_refused(
    tmp_path: Path, host: str, options: dict[str, Any], certificate: Path | None, why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        check_publishing(host, workspace_for({"working_dir": str(tmp_path), **options}), certificate)


def test_a_domain_is_not_ignored() -> None:
    with pytest.raises(InvalidInputError, match=r"with --e2b, name the ports to show at localhost \(--publish PORT\)"):
        serve(options=GatewayOptions(ports_domain="https://ports.example.org"))


def test_the_option_is_for_e2b_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--publish", "8501"]) == 2
    assert "--publish needs --e2b" in capsys.readouterr().err
