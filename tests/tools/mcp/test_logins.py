"""The store of logins: bindings, files, the keyring."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cellblock.errors import StoreError
from cellblock.tools.mcp.logins import Login, LoginStore, refusal_of
from cellblock.tools.mcp.params import OAuth, RemoteServer

URL = "https://mcp.example/mcp"
LOGIN = Login(
    server="it",
    url=URL,
    issuer="https://as.example/",
    client={"client_id": "me", "issuer": "https://as.example"},
    token={"access_token": "secret", "refresh_token": "more", "scope": "read write"},
    metadata={"issuer": "https://as.example/"},
    resource=None,
    expires=1.0,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "keyring", None)
    return tmp_path / "logins"


def store(server: str = "it", url: str = URL, auth: OAuth | None = None) -> LoginStore:
    return LoginStore(server, RemoteServer(url, auth=auth or OAuth()))


async def put(login: Login) -> None:
    async with store().locked():
        store().write(login)


async def test_a_login_is_bound_to_name_url_client_and_issuer(home: Path) -> None:
    version = store().version()
    await put(LOGIN)
    assert store().version() > version
    assert store().read() == replace(LOGIN, written=store().read().written)  # type: ignore[union-attr]  # it is there
    assert store(auth=OAuth(client_id="me")).read() is not None
    assert store(auth=OAuth(client_id="other")).read() is None
    assert "secret" not in repr(LOGIN)
    assert store("other").read() is None
    assert store(url="https://mcp.example/other").read() is None
    (file,) = home.glob("*.json")
    copied = file.read_text()
    Path(store("other")._path).write_text(copied)
    assert store("other").read() is None
    for changed in ({"issuer": "https://evil.example/"}, {"metadata": {"issuer": "https://evil.example/"}}):
        await put(replace(LOGIN, **changed))
        assert store().read() is None


async def test_damage_is_an_error_that_a_new_login_repairs(home: Path) -> None:
    await put(LOGIN)
    (file,) = home.glob("*.json")
    file.write_text("{")
    with pytest.raises(StoreError, match=r"the login at 'it' in .* cannot be used: .*; cellblock tools login it"):
        store().read()
    assert await store().log_out()
    assert not await store().log_out()
    home.chmod(0o755)
    with pytest.raises(StoreError, match="others can read or change"):
        await put(LOGIN)


async def test_the_keyring_is_used_if_it_protects_entries(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KeyringError(Exception): ...

    entries: dict[tuple[str, str], str] = {}
    backend = SimpleNamespace(priority=5)
    working = True

    def put_entry(service: str, name: str, text: str) -> None:
        if not working:
            raise KeyringError("locked")
        entries[service, name] = text

    def remove(service: str, name: str) -> None:
        if entries.pop((service, name), None) is None:
            raise KeyringError("there is none")

    keyring: Any = ModuleType("keyring")
    keyring.errors = SimpleNamespace(KeyringError=KeyringError)
    keyring.get_keyring = lambda: backend
    keyring.get_password = lambda service, name: entries.get((service, name))
    keyring.set_password, keyring.delete_password = put_entry, remove
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", keyring.errors)
    await put(LOGIN)
    assert len(entries) == 1
    assert not [*home.glob("*.json")]
    assert store().read() is not None
    working = False  # a renewed token must be stored in any case
    await put(replace(LOGIN, expires=2.0))
    found = store().read()
    assert found is not None
    assert found.expires == 2.0
    working = True
    await put(replace(LOGIN, expires=3.0))
    assert not [*home.glob("*.json")]
    assert await store().log_out()
    assert not entries
    backend.priority = 0.5
    await put(LOGIN)
    assert not entries
    assert [*home.glob("*.json")]


@pytest.mark.parametrize(
    ("status", "header", "said"),
    [
        (401, "", "'it' needs a login: cellblock tools login it"),
        (403, 'Bearer error="insufficient_scope", scope="a:b c"', "'it' needs more scopes (a:b c): cellblock tools login it"),
        (403, 'Bearer error="insufficient_scope", error_description="Required: a"', "'it' needs more scopes (Required: a)"),
        (403, 'Bearer error="other", scope="a"', ""),
        (500, "", ""),
    ],
)
def test_refusals_name_the_command(status: int, header: str, said: str) -> None:
    found = refusal_of("it", RemoteServer(URL, auth=OAuth()), status, header)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    for params in (RemoteServer(URL, headers={"authorization": "x"}), RemoteServer("https://a:b@mcp.example/mcp")):
        assert refusal_of("it", params, status, header) == ""


def test_a_wrong_key_is_no_login() -> None:
    params = RemoteServer(URL, headers={"X-Key": "wrong"})
    assert refusal_of("it", params, 401, "") == ""
    assert refusal_of("it", params, 401, 'Bearer resource_metadata="https://mcp.example/x"')
