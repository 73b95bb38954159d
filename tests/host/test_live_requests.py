"""Request lines that a running session gets: real clients inside, a local HTTPS server outside."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, Network, Policy, Session, StateError, UnsupportedError
from cellblock.common import extras
from cellblock.walls.egress import gate
from cellblock.walls.keys import trust
from cellblock.walls.keys.template_process import Template
from processes import eventually
from walls.keys.tls_servers import TlsServer

SETUP = """
import http.client, os, requests, ssl, urllib.request
def get(path, method='GET'):
    answer = requests.request(method, URL + path)
    return answer.status_code, answer.text
def connect():
    found = http.client.HTTPSConnection('127.0.0.1', 3128)
    host, port = URL[8:].split(':')
    found.set_tunnel(host, int(port))
    found.connect()
    return found
def on(connection, path):
    connection.request('GET', path)
    answer = connection.getresponse()
    return answer.status, answer.read()
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsServer]:
    """A server called api.test, which this process trusts and finds."""
    monkeypatch.setattr(gate, "_getaddrinfo", lambda _name: ["127.0.0.1"])
    with TlsServer(host="api.test") as made:
        monkeypatch.setenv("SSL_CERT_FILE", made.roots)
        yield made


@pytest.fixture
def at(server: TlsServer) -> str:
    """The name and the port of the server."""
    return f"api.test:{server.port}"


@pytest.fixture
async def session(native_host: Host, server: TlsServer, at: str, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that reaches the server through a tunnel."""
    policy = Policy(network=Network(allow=(at, f"127.0.0.1:{server.port}")))
    async with native_host.session(working_dir=tmp_path, policy=policy) as session:
        await session.execute(f"URL = 'https://{at}'\n{SETUP}")
        yield session


async def told(session: Session, code: str) -> str:
    result = await session.execute(code, timeout=60)
    return (result.return_value or "") + (result.text or "") + (str(result.error) if result.error else "")


@pytest.mark.slow
async def test_a_running_session_gets_its_first_request_line(server: TlsServer, at: str, session: Session) -> None:
    (before,) = await session.fork()
    assert "(200," in await told(session, "get('/a', 'DELETE')")
    await told(session, "tunnel = connect()\non(tunnel, '/tunnel')")
    seen = len(server.seen)
    changed = await session.change_network(http=[f"GET {at}/a/**"])
    assert (changed.http, changed.revision, changed.closed) == ((f"GET {at}/a/**",), 1, 1)
    # The open tunnel would have avoided the line.
    assert "Error" in await told(session, "on(tunnel, '/tunnel')")
    async with before:
        for one in (session, before):
            assert "(200," in await told(one, "get('/a/b')")
            text = await told(one, "get('/a/b', 'DELETE')")
            assert "(403," in text
            assert f"cellblock network NAME --allow-http 'DELETE {at}/a/b'" in text
        assert len(server.seen) == seen + 2
        # An undo does not reverse it, and a fresh kernel obeys it.
        await session.execute("x = 1")
        await session.undo()
        assert "(403," in await told(session, "get('/other')")
        await session.reset()
        await session.execute(f"URL = 'https://{at}'\n{SETUP}")
        assert "(200," in await told(session, "get('/a/c')")
        assert "(200," in await told(session, "urllib.request.urlopen(URL + '/a/d').status, get('/a/e')")
        # Each request of an open connection is decided about by the present lines.
        await told(session, "kept = connect()")
        assert "200," in await told(session, "on(kept, '/a/f')")
        changed = await session.change_network(http=[f"GET {at}/b"], remove=[f"GET {at}/a/**"], expect=1)
        assert changed.closed == 0
        assert "403," in await told(session, "on(kept, '/a/f')")
        assert "(200," in await told(before, "get('/b')")
        # Without its last line, the host is not allowed either.
        changed = await session.change_network(remove=[f"GET {at}/b"])
        assert at not in changed.allow
        assert "403" in await told(session, "get('/b')")


@pytest.mark.slow
async def test_another_host_gets_a_turnkey_with_its_certificate_and_connections_of_the_last_one_go_on(
    server: TlsServer, at: str, session: Session
) -> None:
    other = f"localhost:{server.port}"
    await session.change_network(http=[f"GET {at}/**"])
    await told(session, "kept = connect()")
    assert "200," in await told(session, "on(kept, '/a')")
    await session.change_network(http=[f"GET {other}/**"])
    fetch = f"urllib.request.urlopen(urllib.request.Request('https://{other}/b')).status"
    await session.execute("os.environ['NO_PROXY'] = os.environ['no_proxy'] = ''")
    assert "200" in await told(session, fetch)
    template = Template.current().pid
    children = Path(f"/proc/{template}/task/{template}/children")
    assert len(children.read_text().split()) == 2
    assert "200," in await told(session, "on(kept, '/c')")
    await told(session, "kept.close()")
    # The one without connections ends at once.
    await eventually(lambda: len(children.read_text().split()) == 1)
    (last,) = children.read_text().split()
    os.kill(int(last), signal.SIGKILL)
    await eventually(lambda: not children.read_text().split())
    assert "200" in await told(session, fetch)
    assert [head.split()[1] for head in server.seen] == [b"/a", b"/b", b"/c", b"/b"]


@pytest.mark.slow
async def test_branches_obey_lines_after_the_first_session_has_ended(at: str, session: Session) -> None:
    (branch,) = await session.fork()
    await session.close()
    async with branch:
        await branch.change_network(http=[f"GET {at}/a"])
        assert "(200," in await told(branch, "get('/a')")
        assert "(403," in await told(branch, "get('/b')")


@pytest.mark.slow
async def test_a_session_that_cannot_get_lines_says_what_to_do(
    native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "GET api.test/**"
    async with native_host.session(working_dir=tmp_path) as session:
        with pytest.raises(StateError, match="was made without a network"):
            await session.change_network(http=[line])
    async with Host(isolate="none") as host, host.session() as session:
        with pytest.raises(UnsupportedError, match="isolate='none'"):
            await session.change_network(http=[line])
    policy = Policy(network=Network(allow=("a.example",)))
    async with native_host.session(working_dir=tmp_path, policy=policy) as session:
        before = session.network
        for wrong in ("api.test", "get api.test/"):
            with pytest.raises(InvalidInputError, match="The request line"):
                await session.change_network(http=[wrong])
        monkeypatch.setattr(extras, "_is_installed", lambda _name: False)
        with pytest.raises(UnsupportedError, match=r"cellblock\[keys\]"):
            await session.change_network(http=[line])
        assert session.network == before
        monkeypatch.undo()
    monkeypatch.setattr(trust, "machine_roots", str)
    async with native_host.session(working_dir=tmp_path, policy=policy) as session:
        assert "SSL_CERT_FILE" not in await told(session, "import os; dict(os.environ)")
        with pytest.raises(StateError, match="ca-certificates"):
            await session.change_network(http=[line])
        assert session.network == before
