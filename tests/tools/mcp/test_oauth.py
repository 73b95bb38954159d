"""Logins with OAuth: the tokens of sessions, and the login of a person, at a server in another process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext

from cellblock import CodeExecutor, Host, McpServerError
from cellblock.tools.mcp.logins import Login, LoginStore
from cellblock.tools.mcp.named_urls import LoginError, NamedUrls
from cellblock.tools.mcp.oauth import StoredLogin
from cellblock.tools.mcp.oauth_login import by_browser, log_in
from cellblock.tools.mcp.params import RemoteServer, parse_params
from cellblock.tools.mcp.servers import Servers
from oauth_servers import OAuthServer, oauth_server

NEEDED = "'it' needs a login: cellblock tools login it"


@pytest.fixture(scope="module")
def process() -> Iterator[OAuthServer]:
    with oauth_server() as server:
        yield server


@pytest.fixture
def server(process: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OAuthServer:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    process.control(life=3600)
    return process


def remote(server: OAuthServer, **auth: Any) -> RemoteServer:
    params = parse_params("it", server.params(**auth))
    assert isinstance(params, RemoteServer)
    return params


def servers_of(server: OAuthServer) -> Servers:
    return Servers(lambda _: remote(server), connect_timeout=60)


def stored(server: OAuthServer) -> Login:
    login = LoginStore("it", remote(server)).read()
    assert login is not None
    return login


async def change(server: OAuthServer, **values: Any) -> None:
    store = LoginStore("it", remote(server))
    async with store.locked():
        store.write(replace(stored(server), **values))


async def token_of(server: OAuthServer) -> str | None:
    """Return the token that a new process would use."""
    login = StoredLogin("it", remote(server), NamedUrls(server.url))
    return await login.authorize(httpx2.Request("POST", server.url))


@pytest.mark.slow
async def test_a_login_serves_connections_until_it_is_removed(server: OAuthServer, caplog: pytest.LogCaptureFixture) -> None:
    async with servers_of(server) as servers:
        with pytest.raises(McpServerError) as caught:
            await servers.call("it", "add", {"a": 1, "b": 2})
        assert str(caught.value) == NEEDED
        login = await log_in("it", remote(server), server.ask)
        assert (login.issuer, login.scopes) == (f"http://127.0.0.1:{server.port}/", ["read"])
        assert (await servers.call("it", "add", {"a": 1, "b": 2})).text == "3"
        server.control(drop=True)  # the server forgets the token, and the refresh token replaces it
        assert (await servers.call("it", "add", {"a": 1, "b": 2})).text == "3"
        assert stored(server).token != login.token
        server.control(scope="write")
        with pytest.raises(McpServerError, match=r"'it' needs more scopes \(write\): cellblock tools login it"):
            await servers.call("it", "add", {"a": 1, "b": 2})
        await log_in("it", remote(server), server.ask)
        assert "scope=read+write" in server.visited[-1]
        assert (await servers.call("it", "add", {"a": 1, "b": 2})).text == "3"
        assert await LoginStore("it", remote(server)).log_out()
        with pytest.raises(McpServerError) as caught:
            await servers.call("it", "add", {"a": 1, "b": 2})
        assert str(caught.value) == NEEDED
    gc.collect()
    assert "asynchronous generator" not in caplog.text  # each connection was left, also those that needed a login


@pytest.mark.slow
async def test_an_expired_login_is_renewed_once_by_five_processes(server: OAuthServer) -> None:
    await log_in("it", remote(server), server.ask)
    await change(server, expires=time.time() + 30)  # less than the 60 seconds ahead
    before = server.control()
    code = (
        "import asyncio, json, sys; sys.path.insert(0, sys.argv[1]);"
        "from test_oauth import OAuthServer, token_of;"
        "print(asyncio.run(token_of(OAuthServer(int(sys.argv[2])))))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(server.port)]
    environment = {**os.environ, "PYTHONPATH": path}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(5)]
    tokens = {process.communicate()[0].strip() for process in running}
    assert tokens == {stored(server).token["access_token"]}
    after = server.control()
    assert (after["refreshed"], after["reused"]) == (before["refreshed"] + 1, before["reused"])
    assert (stored(server).expires or 0) > time.time() + 3000


@pytest.mark.slow
async def test_failures_to_renew_keep_the_login_unless_it_is_over(server: OAuthServer) -> None:
    await log_in("it", remote(server), server.ask)
    await change(server, expires=time.time() + 30)
    login = stored(server)
    server.control(token=503)
    assert await token_of(server) == login.token["access_token"]  # it is valid for half a minute
    await change(server, expires=time.time() - 1)
    with pytest.raises(LoginError, match="the login at 'it' could not be renewed, try again: HTTP 503"):
        await token_of(server)
    assert stored(server).token == login.token
    server.control(life=3600, delay=0.3)
    first = StoredLogin("it", remote(server), NamedUrls(server.url))
    request = httpx2.Request("POST", server.url)
    waiting = [asyncio.create_task(first.authorize(request)) for _ in range(10)]
    await asyncio.sleep(0.1)
    for task in waiting:
        task.cancel()
    await first.finish()  # a cancelled call loses no token
    assert (renewed := stored(server).token) != login.token
    assert await token_of(server) == renewed["access_token"]
    server.control(forget=True)
    await change(server, expires=time.time() - 1)
    with pytest.raises(LoginError, match=NEEDED):
        await token_of(server)
    refreshed = server.control()
    with pytest.raises(LoginError, match=NEEDED):
        await token_of(server)
    assert server.control() == refreshed  # it asks no more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"state": "forged"}, "is not the answer to this login"),
        ({"iss": "https://evil.example/"}, "iss mismatch"),
        ({"resource": "https://other.example/mcp"}, "does not match"),
        ({"issuer": "https://169.254.169.254/"}, "169.254.169.254, which is a cloud's metadata service"),
        ({"issuer": "https://10.1.2.3/"}, "10.1.2.3, which is private"),
        ({"metadata": "https://169.254.169.254/latest"}, "169.254.169.254, which is a cloud's metadata service"),
        ({"metadata": "http://example.org/"}, "http://example.org/ is refused: it must start with https://"),
        ({"token": 500}, "500"),
        ({"refuse": True}, "it was refused: access_denied"),
    ],
)
async def test_a_wrong_answer_is_no_login(server: OAuthServer, wrong: dict[str, Any], said: str) -> None:
    server.control(**wrong)
    with pytest.raises(McpServerError, match="the login at 'it' failed: ") as caught:
        await log_in("it", remote(server), server.ask)
    assert said in str(caught.value)
    assert LoginStore("it", remote(server)).read() is None


@pytest.mark.slow
async def test_a_forged_callback_is_not_the_answer(server: OAuthServer) -> None:
    async def ask(url: str, listener: Any, is_answer: Any) -> str:
        answer = await asyncio.to_thread(server.visit, url)

        def status(target: str, data: bytes | None = None) -> int:
            try:
                with urllib.request.urlopen(urllib.request.Request(target, data)) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                return error.code

        async def browse() -> list[int]:
            forged = answer.replace("state=", "state=x")
            elsewhere = answer.replace("/callback/", "/callback/x")
            targets = [(forged, None), (elsewhere, None), (answer.partition("?")[0], None), (answer, b"x"), (answer, None)]
            return [await asyncio.to_thread(status, *target) for target in targets]

        statuses: asyncio.Task[list[int]] | None = None

        def show(_: str) -> None:
            nonlocal statuses
            statuses = asyncio.create_task(browse())

        found = await by_browser(url, listener, is_answer, show)
        assert statuses is not None
        assert await statuses == [404, 404, 404, 404, 200]
        return found

    assert (await log_in("it", remote(server), ask)).scopes == ["read"]


@pytest.mark.slow
async def test_the_scopes_of_the_parameters_are_asked_for(server: OAuthServer) -> None:
    await log_in("it", remote(server, scopes=["write"]), server.ask)
    assert "scope=write" in server.visited[-1]
    (file,) = Path(os.environ["CELLBLOCK_HOME"], "logins").glob("*.json")
    file.write_text("{")
    await log_in("it", remote(server), server.ask)  # a damaged login is replaced


@pytest.mark.slow
async def test_servers_with_server_sent_events_have_logins_too(server: OAuthServer) -> None:
    events = OAuthServer(server.port)
    events.url = server.url.replace("/mcp", "/sse")
    server.control(resource=events.url)
    async with servers_of(events) as servers:
        with pytest.raises(McpServerError, match=NEEDED):
            await servers.call("it", "add", {"a": 1, "b": 2})
        await log_in("it", remote(events), events.ask)
        assert (await servers.call("it", "add", {"a": 1, "b": 2})).text == "3"
        server.control(drop=True)
        assert (await servers.call("it", "add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.slow
async def test_sessions_see_no_login(server: OAuthServer, tmp_path: Path) -> None:
    await log_in("it", remote(server), server.ask)
    (file,) = (tmp_path / "state" / "logins").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "work").mkdir()
    async with Host() as host, CodeExecutor(host=host, working_dir=tmp_path / "work") as executor:
        code = f"import os\nprint(os.path.exists({str(file.parent)!r}), os.path.exists({str(file)!r}))"
        assert (await executor.execute(code)).text == "False False"


async def test_tokens_are_for_the_origin_of_the_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    params = parse_params("it", {"url": "https://mcp.example/mcp", "auth": "oauth"})
    assert isinstance(params, RemoteServer)
    login = StoredLogin("it", params, NamedUrls(params.url))
    assert await login.authorize(httpx2.Request("POST", "https://mcp.example.org/mcp")) is None
    with pytest.raises(LoginError, match=NEEDED):
        await login.authorize(httpx2.Request("POST", "https://mcp.example/other"))


async def test_a_restart_renews_where_the_login_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    params = parse_params("it", {"url": "https://mcp.example/a/mcp", "auth": "oauth"})
    assert isinstance(params, RemoteServer)
    at = "https://as.example/tenant"
    login = Login(
        server="it",
        url=params.url,
        issuer=at,
        client={"client_id": "me", "client_secret": "x", "token_endpoint_auth_method": "client_secret_post"},
        token={"access_token": "old", "refresh_token": "older", "expires_in": 3600},
        metadata={"issuer": at, "authorization_endpoint": f"{at}/authorize", "token_endpoint": f"{at}/renew"},
        resource={"resource": "https://mcp.example/a", "authorization_servers": [at]},
        expires=time.time() + 59,
    )
    store = LoginStore("it", params)
    async with store.locked():
        store.write(login)
    sent: list[httpx2.Request] = []

    class Recorder(NamedUrls):
        async def send(self, request: httpx2.Request) -> httpx2.Response:
            sent.append(request)
            return httpx2.Response(200, json={"access_token": "new", "expires_in": 60}, request=request)

    renewed = StoredLogin("it", params, Recorder(params.url))
    request = httpx2.Request("POST", params.url)
    assert await renewed.authorize(request) == "new"
    assert request.headers["Authorization"] == "Bearer new"
    assert str(sent[0].url) == f"{at}/renew"
    form = parse_qs(sent[0].content.decode())
    assert form["resource"] == ["https://mcp.example/a"]
    assert form["client_secret"] == ["x"]
    found = store.read()
    assert found is not None
    assert found.token["refresh_token"] == "older"  # this server rotates none
    assert await renewed.authorize(request) == "new"  # for half of its short life
    assert len(sent) == 1
    assert sorted(renewed.secrets()) == ["new", "older"]


def test_the_sdk_has_what_the_subclasses_use() -> None:
    known = {field.name for field in fields(OAuthContext)}
    used = {"current_tokens", "client_info", "oauth_metadata", "protected_resource_metadata", "token_expiry_time"}
    assert used | {"protocol_version", "server_url"} <= known
    methods = ("is_token_valid", "can_refresh_token", "clear_tokens", "get_authorization_base_url")
    assert all(callable(getattr(OAuthContext, name)) for name in methods)
    assert list(inspect.signature(OAuthClientProvider._refresh_token).parameters) == ["self"]
    assert list(inspect.signature(OAuthClientProvider._handle_refresh_response).parameters) == ["self", "response"]
    assert list(inspect.signature(OAuthClientProvider._perform_authorization).parameters) == ["self"]
    assert list(inspect.signature(OAuthClientProvider.async_auth_flow).parameters) == ["self", "request"]
    source = inspect.getsource(OAuthClientProvider)
    assert "if not self._initialized:" in source
    assert "storage.set_tokens(token_response)" in source
    # As soon as one of these is restored, `StoredLogin._initialize` can leave it to the SDK.
    restored = inspect.getsource(OAuthClientProvider._initialize)
    assert "token_expiry_time" not in restored
    assert "oauth_metadata" not in restored
