"""The console's page is confined, and a login is exchanged once. What it looks like is tested in a browser: tests/console."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cellblock.fronts.gateway.app import make_app
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.service.daemon.place import Place
from cellblock.service.store.tokens import Tokens


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of the daemon that the gateway would ask."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
async def client(home: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without a token."""
    app = make_app(GatewayOptions(), Place(home))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as made,
    ):
        yield made


def policy(answer: httpx.Response) -> dict[str, str]:
    """Return the directives of a page's policy."""
    parts = (part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in parts}


async def test_the_page_is_confined_and_loads_what_the_gateway_has(client: httpx.AsyncClient) -> None:
    page = await client.get("/console")
    assert page.status_code == 200
    rules = policy(page)
    assert (rules["default-src"], rules["script-src"], rules["style-src"]) == ("'none'", "'self'", "'self'")
    assert (rules["connect-src"], rules["frame-ancestors"], rules["form-action"]) == ("'self'", "'none'", "'none'")
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in page.headers
    assert not re.search(r"<style|<script>|\son\w+=|style=", page.text)

    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 4
    for address in loaded:
        assert (await client.get(f"/{address}")).status_code == 200, address
    for other in ("index.htm", "..%2fapp.py", "nothing.js"):
        assert (await client.get(f"/console/{other}")).status_code == 404


async def test_frames_have_no_origin_and_no_network(client: httpx.AsyncClient) -> None:
    rules = policy(await client.get("/console/frame"))
    assert rules["script-src"].startswith("'sha256-")
    loud = policy(await client.get("/console/frame-with-scripts"))
    assert loud == {**rules, "script-src": "'unsafe-inline'"}
    drawing = policy(await client.get("/console/figure"))
    assert re.fullmatch(r"'sha256-\S+' 'sha256-\S+'", drawing["script-src"])
    assert drawing == {**rules, "script-src": drawing["script-src"]}
    assert rules["sandbox"] == "allow-scripts"
    assert (rules["default-src"], rules["connect-src"], rules["frame-ancestors"]) == ("'none'", "'none'", "'self'")
    assert not any("http" in value or "*" in value for value in rules.values())


async def test_others_pages_log_nobody_in(client: httpx.AsyncClient, home: Path) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"Host": "rebound.example"}, 421),
        ({"Host": "127.0.0.1:8080", "Origin": "https://elsewhere.example"}, 403),
        ({"Host": "127.0.0.1:8080", "Origin": "null"}, 403),
        ({"Host": "127.0.0.1:8080", "Sec-Fetch-Site": "cross-site"}, 403),
    ]
    for headers, refused in cases:
        tokens = Tokens(home)
        code = tokens.create_code(["admin"])
        assert (await client.post("/console/login", json={"code": code}, headers=headers)).status_code == refused
        assert tokens.all() == []


async def test_a_name_that_was_bound_to_the_address_gets_no_page(client: httpx.AsyncClient) -> None:
    for path in ("/console", "/console/console.js", "/events"):
        assert (await client.get(path, headers={"Host": "rebound.example"})).status_code == 421


@pytest.mark.slow
async def test_a_login_is_exchanged_once(client: httpx.AsyncClient, home: Path) -> None:
    code = Tokens(home).create_code(["read"])
    token = (await client.post("/console/login", json={"code": code})).json()["token"]
    mine = {"Authorization": f"Bearer {token}"}
    caller = (await client.get("/whoami", headers=mine)).json()
    assert (caller["scopes"], caller["session"]) == (["read"], "")
    assert (await client.get("/console/login")).status_code == 405
    again = await client.post("/console/login", json={"code": code})
    assert (again.status_code, again.json()["code"]) == (403, "access")
    assert (await client.get("/whoami")).status_code == 401
    assert (await client.get("/whoami", headers={"Authorization": f"Bearer {code}"})).status_code == 401


async def test_nothing_but_the_page_is_served_without_a_token(client: httpx.AsyncClient) -> None:
    for path in ("/events", "/sessions/a/cells", "/sessions/a/decisions", "/whoami", "/consoles", "/console/../kernels"):
        assert (await client.get(path)).status_code == 401, path
