"""Handlers of operations on secrets."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cellblock
from cellblock import Secret
from cellblock.fronts.functions.connection import call
from cellblock.operations.approvals import Decide, Pending
from cellblock.operations.overview import Decisions
from cellblock.operations.secrets import ListSecrets, Requests
from cellblock.service.daemon.secret_handlers import secrets
from daemons import kill, own_daemon
from walls.keys.tls_servers import TlsServer


@pytest.mark.parametrize(
    "options",
    [{}, {"secrets": ["ACME=env:X@a.test"]}, {"secrets": {"ACME": Secret(source="env:X", hosts=("a.test",)).to_dict()}}],
)
async def test_the_secrets_of_a_session_without_a_kernel_are_listed_without_starting_one(options: dict[str, Any]) -> None:
    named = SimpleNamespace(current=None, options=options)
    server: Any = SimpleNamespace(sessions=SimpleNamespace(find=lambda _: named))
    found = await secrets(server, ListSecrets("demo"))
    assert [(one["name"], one["source"], one["hosts"]) for one in found] == [("ACME", "env:X", ["a.test:443"])] * len(options)


@pytest.mark.slow
def test_no_file_of_the_daemon_contains_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "canary-0123456789-abcdef"
    monkeypatch.setenv("KEY", value)
    with TlsServer() as server:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        with own_daemon(tmp_path) as home:
            at = f"127.0.0.1:{server.port}"
            source = {"source": "env:KEY", "hosts": [at], "header": "Authorization: Bearer {}", "body": True}
            made: Any = cellblock.get_or_create("keyed", isolate="native", secrets={"KEY": source}, http=[f"ask * {at}/**"])
            code = (
                "import os, urllib.request as u\nos.environ['NO_PROXY'] = os.environ['no_proxy'] = ''\n"
                "key = os.environ['KEY']\nheaders = {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}\n"
                f"request = u.Request('https://{at}/', ('\"' + key + '\"').encode(), headers)\n"
                "print(u.urlopen(request).read().decode())"
            )
            with ThreadPoolExecutor() as pool:
                running = pool.submit(cellblock.execute, "keyed", code)
                while not (shown := call(Pending(""))) and not running.done():
                    time.sleep(0.02)
                call(Decide(tuple(one["id"] for one in shown), allow=True))
                answer = running.result(60)
            assert server.seen, answer
            assert f"Bearer {value}" in server.seen[0].decode()
            assert server.bodies == [f'"{value}"'.encode()]
            changed = cellblock.change_network("keyed", http=[f"GET {at}/**"])
            assert f"GET {at}/**" in changed.http
            listed = [*map(call, (ListSecrets("keyed"), Requests("keyed"), Decisions("keyed")))]
            cellblock.save("keyed", "keyed.cell")
            found = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
            assert [*home.iterdir()]
    assert found == []
    assert all(listed)
    assert value not in repr((made, shown, answer, listed))


@pytest.mark.slow
def test_a_session_of_a_killed_daemon_gets_its_first_request_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TlsServer() as server:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        at = f"127.0.0.1:{server.port}"
        setup = (
            "import os, urllib.request as u\nos.environ['NO_PROXY'] = os.environ['no_proxy'] = ''\nx = 1\n"
            f"def get(path):\n    return u.urlopen('https://{at}' + path).status"
        )
        with own_daemon(tmp_path):
            cellblock.get_or_create("open", isolate="native", allow_hosts=[at])
            cellblock.execute("open", setup)
            assert "200" in str(cellblock.execute("open", "print(x, get('/tunnel'))").text)
            kill()
            cellblock.list_kernels()  # by another daemon, which continues the sessions
            assert cellblock.change_network("open", http=[f"GET {at}/a/*"]).http == (f"GET {at}/a/*",)
            assert "1 200" in str(cellblock.execute("open", "print(x, get('/a/b'))").text)
            assert "403" in str(cellblock.execute("open", "get('/b')").error)
            kill()
            cellblock.list_kernels()  # by another daemon, which continues the sessions
            assert cellblock.network("open").http == (f"GET {at}/a/*",)
            assert "1 200" in str(cellblock.execute("open", "print(x, get('/a/c'))").text)
            assert "403" in str(cellblock.execute("open", "get('/b')").error)
            assert cellblock.change_network("open", remove=[f"GET {at}/a/*"]).allow == ()
    assert [head.split()[1] for head in server.seen] == [b"/tunnel", b"/a/b", b"/a/c"]


@pytest.mark.slow
def test_a_secret_outlives_a_killed_daemon_and_its_placeholder_is_worthless_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "canary-0123456789-abcdef"
    monkeypatch.setenv("KEY", value)
    with TlsServer() as server:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        at = f"127.0.0.1:{server.port}"
        get = (
            "import os, urllib.request as u\nos.environ['NO_PROXY'] = os.environ['no_proxy'] = ''\nkey = os.environ['KEY']\n"
            f"def get(key):\n    headers = {{'Authorization': 'Bearer ' + key}}\n"
            f"    return u.urlopen(u.Request('https://{at}/', headers=headers)).status"
        )
        secrets = {"KEY": {"source": "env:KEY", "hosts": [at]}}
        with own_daemon(tmp_path):
            cellblock.get_or_create("first", isolate="native", secrets=secrets)
            cellblock.execute("first", get)
            assert "200" in str(cellblock.execute("first", "print(get(key))").text)
            cellblock.save("first", "first.cell")
            monkeypatch.setenv("KEY", "another-0123456789")  # of the next daemon
            kill()
            cellblock.list_kernels()  # by another daemon, which continues the sessions
            assert "200 True" in str(cellblock.execute("first", "print(get(key), key == os.environ['KEY'])").text)
            cellblock.get_or_create("second", isolate="native", secrets=secrets)
            cellblock.load("second", "first.cell")
            cellblock.execute("second", get.replace("key = os.environ['KEY']\n", ""))
            refused = "try:\n    get(key)\nexcept u.HTTPError as error:\n    print(error.code, error.read().decode())"
            text = str(cellblock.execute("second", refused).text)
            assert "403 cellblock: the header Authorization contains a placeholder" in text
            assert "read the variable again" in text
            assert "200" in str(cellblock.execute("second", "print(get(os.environ['KEY']))").text)
    sent = [head.decode().partition("Bearer ")[2].split()[0] for head in server.seen]
    assert sent == [value, value, "another-0123456789"]
