"""Secrets of sessions: real clients inside, a local HTTPS server outside."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cellblock import CodeExecutor, Host, InvalidInputError, Network, Policy, Secret, Session, UnsupportedError
from cellblock.common.secret import parse_secrets
from cellblock.host.checks import check_secrets, find_tier
from cellblock.walls.egress import gate
from cellblock.walls.keys.authority import authority_key
from cellblock.walls.keys.messages import MESSAGE
from cellblock.walls.keys.session_keys import SessionKeys, bindings_of
from cellblock.walls.keys.template_process import Template
from cellblock.walls.sandbox.policy import Filesystem
from git_repositories import Repository
from processes import eventually
from s3 import moto_server
from walls.keys.tls_servers import TlsServer

CANARY = "canary-0123456789-abcdef"

CLIENTS = {
    "urllib": "import urllib.request as u; u.urlopen(u.Request(URL, headers=HEADERS)).read().decode()",
    "requests": "import requests; requests.get(URL, headers=HEADERS).text",
    "httpx": "import httpx; httpx.get(URL, headers=HEADERS).text",
    "aiohttp": (
        "import aiohttp\nasync with aiohttp.ClientSession(trust_env=True) as s:\n"
        "    async with s.get(URL, headers=HEADERS) as r:\n        found = await r.text()\nfound"
    ),
    "curl": "!curl -sS --fail-with-body {URL} -H 'Authorization: Bearer '$KEY",
    # Node's fetch uses the proxy from version 24 on.
    "node": "open('get.js', 'w').write(NODE)\n!node get.js {URL[8:]}",
    "botocore": (
        "import boto3, botocore.config\n"
        "config = botocore.config.Config(signature_version=botocore.UNSIGNED, retries={'max_attempts': 0})\n"
        "s3 = boto3.client('s3', endpoint_url=URL, region_name='eu-west-1', config=config)\n"
        "add = lambda request, **_: request.headers.add_header('Authorization', 'Bearer ' + KEY)\n"
        "s3.meta.events.register('before-sign.s3', add)\n"
        "try:\n    s3.list_buckets()\nexcept botocore.exceptions.ClientError:  # an echo is no list\n    pass\nKEY"
    ),
    "wget": "!wget -qO- {URL} --header 'Authorization: Bearer '$KEY",
    "git": "!git -c http.extraHeader='Authorization: Bearer '$KEY ls-remote {URL} 2>&1; echo Bearer $KEY",
    "pip": "!python -m pip download --no-deps --index-url https://user:{KEY}@{URL[8:]}/simple thing 2>&1; echo Bearer $KEY",
}

NODE = """
const http = require('http'), https = require('https'), to = process.argv[2];
http.request({port: 3128, method: 'CONNECT', path: to, headers: {Host: to}}).on('connect', (_, socket) => {
  const headers = {Authorization: 'Bearer ' + process.env.KEY, Host: to};
  https.get({socket, agent: false, host: 'api.test', servername: 'api.test', headers}, r => r.pipe(process.stdout));
}).end();
"""


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> Callable[[TlsServer], None]:
    """Return a function that makes this process trust and find a server as api.test."""

    def trusting(server: TlsServer) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        monkeypatch.setenv("KEY", CANARY)
        monkeypatch.setattr(gate, "_getaddrinfo", lambda _name: ["127.0.0.1"])

    return trusting


@contextlib.asynccontextmanager
async def opened(
    host: Host, roots: Callable[[TlsServer], None], server: TlsServer, directory: Path, **places: Any
) -> AsyncIterator[Session]:
    """Make a session with a secret for a server."""
    roots(server)
    secret = Secret.from_env("KEY", hosts=[f"api.test:{server.port}"], **places)
    policy = Policy(network=Network(allow=(f"127.0.0.1:{server.port}",)))
    async with host.session(working_dir=directory, policy=policy, secrets={"KEY": secret}) as session:
        await session.execute(setup(server))
        yield session


@pytest.fixture
def server() -> Iterator[TlsServer]:
    """A server called api.test."""
    with TlsServer(host="api.test") as made:
        yield made


@pytest.fixture
async def session(
    native_host: Host, roots: Callable[[TlsServer], None], server: TlsServer, tmp_path: Path
) -> AsyncIterator[Session]:
    """A session with a secret for the server."""
    async with opened(native_host, roots, server, tmp_path) as made:
        yield made


def setup(server: TlsServer) -> str:
    """Return code that prepares requests in a session."""
    return (
        f"import os\nURL = 'https://api.test:{server.port}'\nKEY = os.environ['KEY']\n"
        f"HEADERS = {{'Authorization': 'Bearer ' + KEY}}\nNODE = {NODE!r}"
    )


async def told(session: Session, code: str) -> str:
    result = await session.execute(code, timeout=60)
    return (result.return_value or "") + (result.text or "") + (str(result.error) if result.error else "")


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_clients_inside_use_a_placeholder_and_servers_get_the_value(
    native_host: Host, server: TlsServer, roots: Callable[[TlsServer], None], tmp_path: Path
) -> None:
    async with opened(native_host, roots, server, tmp_path, header="Authorization: Bearer {}", basic="user:{}") as session:
        for name, code in CLIENTS.items():
            server.seen.clear()
            text = await told(session, code)
            assert server.seen, f"{name}: {text}"
            head = server.seen[0].decode()
            assert CANARY in head or "Authorization: Basic" in head, f"{name}: {head}"
            assert CANARY not in text, name
            assert "cellblock" in text, f"{name}: {text}"
        assert CANARY not in await told(session, "dict(os.environ)")
        await eventually(lambda: len(session.requests) >= len(CLIENTS))
        requests = session.requests
    assert requests[0].secrets == ("KEY",)
    assert CANARY not in json.dumps([one.to_dict() for one in requests])


async def test_the_certificates_and_their_mounts_cannot_be_changed(session: Session) -> None:
    for path in ("/run/cellblock/ca.pem", "/etc/ssl/certs/ca-certificates.crt"):
        assert "Read-only" in await told(session, f"open({path!r}, 'a')")
        mounts = (
            "import ctypes\nlibc, none = ctypes.CDLL(None), None\n"
            f"path, MS_REMOUNT, MS_BIND, MNT_DETACH = {path.encode()!r}, 32, 4096, 2\n"
            "libc.mount(none, path, none, MS_REMOUNT | MS_BIND, none), libc.umount2(path, MNT_DETACH)"
        )
        assert "(-1, -1)" in await told(session, mounts)


async def test_tokens_and_logins_are_not_there(native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    logins, work = tmp_path / "all" / "state" / "logins", tmp_path / "work"
    logins.mkdir(parents=True)
    work.mkdir()
    (logins / "it.json").write_text(CANARY)
    (logins.parent / "tokens").write_text(CANARY)
    monkeypatch.setenv("CELLBLOCK_HOME", str(logins.parent))
    policy = Policy(filesystem=Filesystem(read=(str(tmp_path / "all"),)))
    async with native_host.session(working_dir=work, policy=policy) as session:
        for path in (logins / "it.json", logins.parent / "tokens"):
            text = await told(session, f"open({str(path)!r}).read()")
            assert CANARY not in text
            assert "Error" in text
        assert "state" in await told(session, f"import os; os.listdir({str(tmp_path / 'all')!r})")


@pytest.mark.npm
@pytest.mark.slow
async def test_npm_inside_uses_a_placeholder(server: TlsServer, session: Session) -> None:
    settings = "open('.npmrc', 'w').write('//' + URL[8:] + '/:_authToken=${KEY}')"
    text = await told(session, f"{settings}\n!npm view thing --registry {{URL}}/ --fetch-retries=0 2>&1")
    assert server.seen, text
    assert f"Bearer {CANARY}" in server.seen[0].decode()
    assert CANARY not in text


@pytest.mark.slow
async def test_botocore_inside_signs_with_a_placeholder_and_the_server_accepts_the_key(
    native_host: Host, roots: Callable[[TlsServer], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key_id, key = "AKIAREALREALREALREAL", "canary0123456789abcdef/+0123456789"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)

    def answer(head: bytes, body: bytes) -> bytes:
        if not is_signed(head, body, key_id, key):
            return b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", aws), timeout=60) as moto:
            moto.sendall(head.replace(b"api.test", b"127.0.0.1") + b"\r\nConnection: close\r\n\r\n" + body)
            return moto.makefile("rb").read()

    code = """
import boto3, os
options = dict(region_name='eu-west-1', endpoint_url=URL)
s3 = boto3.client('s3', **options)
s3.create_bucket(Bucket='bucket', CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})
s3.put_object(Bucket='bucket', Key='a b/ä', Body=b'content')
found = s3.get_object(Bucket='bucket', Key='a b/ä')['Body'].read()
tables = boto3.client('dynamodb', **options).list_tables(Limit=3)['TableNames']
found, tables, os.environ['AWS_SECRET_ACCESS_KEY']
"""
    with moto_server() as aws, TlsServer(answer, host="api.test") as server:
        roots(server)
        secret = Secret.aws(hosts=[f"api.test:{server.port}"])
        policy = Policy(network=Network(allow=(f"127.0.0.1:{server.port}",)))
        async with native_host.session(working_dir=tmp_path, policy=policy, secrets={"AWS": secret}) as session:
            await session.execute(f"URL = 'https://api.test:{server.port}'")
            text = await told(session, code)
            assert "(b'content', [], 'AKIAcellblock" in text
            assert "canary" not in text
            await session.remove_secret("AWS")
            assert "An error occurred (403)" in await told(session, "s3.get_object(Bucket='bucket', Key='a')")
    assert len(server.seen) == 4
    assert b"canary" not in b"".join(server.seen)


def is_signed(head: bytes, body: bytes, key_id: str, key: str) -> bool:
    """Return whether a request has the signature that botocore makes."""
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    given = headers.pop("authorization")
    scope, names = given.split("Credential=")[1].split(", ")[0], given.split("SignedHeaders=")[1].split(",")[0]
    _, _, region, service, _ = scope.split("/")
    signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(Credentials(key_id, key), service, region)
    request = AWSRequest(method, f"https://{headers['host']}{target}", {n: headers[n] for n in names.split(";")}, body)
    request.context["timestamp"] = headers["x-amz-date"]
    canonical = signer.canonical_request(request)
    return given.endswith(signer.signature(signer.string_to_sign(request, canonical), request))


@pytest.mark.slow
async def test_further_certificates_are_trusted_inside_and_by_the_proxy(
    native_host: Host, server: TlsServer, roots: Callable[[TlsServer], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    roots(server)
    monkeypatch.delenv("SSL_CERT_FILE")
    file, at = tmp_path / "corp.pem", f"api.test:{server.port}"
    file.write_text("-----BEGIN PRIVATE KEY-----\ncanary\n" + Path(server.roots).read_text())
    secrets = {"KEY": Secret.from_env("KEY", hosts=[at])}
    network = Network(allow=(f"127.0.0.1:{server.port}",), trust=str(file))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for name in ("KEY", ""):  # opened by the proxy, and through a tunnel
        policy = Policy(network=network if name else replace(network, allow=(*network.allow, at)))
        given = {"secrets": secrets} if name else {"kernel_env": {"KEY": "x"}}
        async with native_host.session(working_dir=workspace, policy=policy, **given) as session:
            await session.execute(setup(server))
            assert "GET / HTTP" in await told(session, CLIENTS["urllib"])
            assert "canary" not in await told(session, "print(open('/run/cellblock/ca.pem').read())")
    for content, why in (("", "has no certificate"), ("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----", "")):
        file.write_text(content)
        with pytest.raises(InvalidInputError, match=f"corp.pem cannot be read: .*{why}"):
            native_host.session(working_dir=workspace, policy=Policy(network=network))
    with pytest.raises(InvalidInputError, match=r"network\.trust is not allowed"):
        Policy(network=Network(trust="/a")).narrow(Policy(network=Network(trust="/b")))


@pytest.mark.slow
async def test_placeholders_stay_and_branches_share_them(server: TlsServer, session: Session) -> None:
    before = await told(session, "KEY")
    fetched = CLIENTS["urllib"]
    (branch,) = await session.fork()
    async with branch:
        assert await told(branch, "KEY") == before
        await told(branch, fetched)
    assert len(server.seen) == 1
    await session.execute("KEY = 'lost'")
    await session.undo()
    assert await told(session, "KEY") == before
    await session.reset()
    assert await told(session, "import os; os.environ['KEY']") == before
    await told(session, setup(server))
    await told(session, fetched)
    assert len(server.seen) == 2
    assert all(CANARY.encode() in head for head in server.seen)


@pytest.mark.slow
async def test_a_secret_is_read_again_and_removed_live(
    server: TlsServer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = CLIENTS["urllib"]
    before = await told(session, "KEY")
    (listed,) = session.secrets()
    assert (listed.name, listed.source, listed.hosts) == ("KEY", "env:KEY", (f"api.test:{server.port}",))
    assert (listed.places, listed.last_used) == (("header Authorization: Bearer {}",), None)
    await told(session, fetch)
    await eventually(lambda: len(session.requests) == 1)
    assert session.secrets()[0].last_used == session.requests[0].at
    monkeypatch.setenv("KEY", "rotated-0123456789")
    await session.refresh_secret("KEY")
    await told(session, fetch)
    assert CANARY.encode() in server.seen[0]
    assert b"rotated-0123456789" in server.seen[1]
    monkeypatch.delenv("KEY")
    with pytest.raises(InvalidInputError, match="this variable is not set"):
        await session.refresh_secret("KEY")
    await told(session, fetch)
    assert b"rotated-0123456789" in server.seen[2]
    (branch,) = await session.fork()
    async with branch:
        await session.remove_secret("KEY")
        assert session.secrets() == branch.secrets() == []
        # Attack 27: neither undo, a branch, a new kernel nor the next host revives it.
        for one in (session, branch):
            assert "HTTP Error 403" in await told(one, fetch)
        await session.undo()
        assert "HTTP Error 403" in await told(session, fetch)
        (later,) = await session.fork()
        async with later:
            assert "HTTP Error 403" in await told(later, fetch)
        await session.reset()
        await told(session, setup(server))
        assert await told(session, "KEY") == before
        assert "HTTP Error 403" in await told(session, fetch)
    for attempt in (session.refresh_secret, session.remove_secret):
        with pytest.raises(InvalidInputError, match="the session has no secret 'KEY'; it has: none"):
            await attempt("KEY")
    assert len(server.seen) == 3


async def test_a_removal_holds_for_the_next_host_and_for_its_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)
    declared = parse_secrets({"KEY": Secret.from_env("KEY", hosts=["api.test"])})
    first, second, third = (SessionKeys(bindings_of(declared)) for _ in range(3))
    await first.read()
    for keys in (second, third):  # a session and its branch, in the next process
        keys.resume(first.hold())
    changes: list[str] = []
    for name, keys in (("second", second), ("third", third)):
        keys.watchers.add(partial(changes.append, name))
    await second.remove("KEY")
    assert sorted(changes) == ["second", "third"]
    assert first.removed == second.removed == third.removed == {"KEY"}
    last = SessionKeys(bindings_of(declared))
    last.resume(third.hold())
    assert last.removed == {"KEY"}
    await last.read()
    assert [one["removed"] for one in last._settings()["secrets"]] == [True]


async def test_former_values_never_fill_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["KEY", "OTHER"]
    declared = parse_secrets({name: Secret.from_env(name, hosts=["api.test"]) for name in names})
    keys = SessionKeys(bindings_of(declared))
    for number in range(8):
        for name in names:
            monkeypatch.setenv(name, f"{number}" * 16_000)
        if not number:
            await keys.read()
            continue
        for name in names:
            await keys.refresh(name)
            assert len(json.dumps(keys._settings())) <= MESSAGE
    assert [one["value"][0] for one in keys._settings()["secrets"]] == ["7", "7"]


SEEN = """
seen = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        seen.append(open(f"/proc/{pid}/comm").read())
    except OSError:  # it has ended
        pass
seen
"""
"""The names of all processes that code sees."""


async def test_a_killed_turnkey_is_replaced(server: TlsServer, session: Session) -> None:
    await told(session, CLIENTS["urllib"])
    template = Template.current()
    children = Path(f"/proc/{template.pid}/task/{template.pid}/children").read_text().split()
    assert children
    assert "Max core file size        0" in Path(f"/proc/{children[0]}/limits").read_text()
    assert "turnkey" not in await told(session, SEEN)
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{children[0]}").exists())
    await told(session, CLIENTS["urllib"])
    assert len(server.seen) == 2


async def test_hosts_without_a_secret_stay_tunnels_and_plain_http_carries_none(
    native_host: Host, roots: Callable[[TlsServer], None], tmp_path: Path
) -> None:
    with TlsServer() as server:
        async with opened(native_host, roots, server, tmp_path) as session:
            plain = "import requests; requests.get(URL.replace('https', 'http'), headers=HEADERS).text"
            assert "http:// carries no secrets" in await told(session, plain)
            tunnel = (
                "import socket, ssl\ns = socket.create_connection(('127.0.0.1', 3128))\n"
                f"s.sendall(b'CONNECT 127.0.0.1:{server.port} HTTP/1.1\\r\\nHost: 127.0.0.1:{server.port}\\r\\n\\r\\n')\n"
                "s.recv(1000)\n"
                "c = ssl._create_unverified_context(); t = c.wrap_socket(s)\n"
                f"head = 'GET / HTTP/1.1\\r\\nHost: 127.0.0.1:{server.port}\\r\\nAuthorization: Bearer ' + KEY\n"
                "t.sendall(head.encode() + b'\\r\\n\\r\\n')\n"
                "t.recv(1000).decode()"
            )
            assert "cellblock" in await told(session, tunnel)
    (head,) = server.seen
    assert b"Bearer cellblock" in head
    assert CANARY.encode() not in head


@pytest.mark.parametrize("isolate", ["landlock", "srt", "none"])
def test_other_isolations_refuse_secrets(isolate: str) -> None:
    with pytest.raises(UnsupportedError, match=f"secrets need isolate='native': with isolate='{isolate}'"):
        check_secrets(find_tier(isolate))


async def test_a_missing_value_fails_the_start_and_a_ceiling_holds(
    native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KEY", raising=False)
    secrets = {"KEY": Secret.from_env("KEY", hosts=["api.test"])}
    with pytest.raises(InvalidInputError, match="secret KEY cannot be read from env:KEY: this variable is not set"):
        await native_host.session(working_dir=tmp_path, secrets=secrets).start()
    with pytest.raises(InvalidInputError, match="KEY is also the name of a secret"):
        native_host.session(working_dir=tmp_path, secrets=secrets, kernel_env={"KEY": "x"})
    narrow = Host(isolate="native", policy=Policy())  # which is not started
    with pytest.raises(InvalidInputError, match=r"'api\.test' is not allowed by the host's policy"):
        narrow.session(working_dir=tmp_path, secrets=secrets)
    await narrow.close()


async def test_the_next_host_has_the_same_placeholders_certificates_and_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEY", CANARY)
    declared = parse_secrets({"KEY": Secret.from_env("KEY", hosts=["api.test"], refresh=3600)})
    first, second = (SessionKeys(bindings_of(declared)) for _ in range(2))
    assert first.environment["KEY"] != second.environment["KEY"]
    await first.read()
    second.resume(first.hold())
    assert first.environment == second.environment
    assert authority_key(first._seed).private_numbers() == authority_key(second._seed).private_numbers()
    monkeypatch.setenv("KEY", "rotated-0123456789")
    await second.read()
    (secret,) = second._settings()["secrets"]
    # Read again after a restart, because it is one that changes.
    assert (secret["value"], secret["former"]) == ("rotated-0123456789", [CANARY])
    held = first.hold()
    with pytest.raises(PermissionError):
        os.write(held, b"x")
    os.close(held)


GUIDE = Path(__file__).parents[2] / "docs" / "keys.md"


async def run_example(number: int, host: Host, directory: Path, changes: Mapping[str, str]) -> str:
    """Run an example of the guide with some words changed, and return the text of its result."""
    example = GUIDE.read_text().split("```py\n")[number].partition("```")[0]
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    lines = "\n    ".join(example.splitlines())
    names: dict[str, Any] = {"host": host, "directory": directory, "CodeExecutor": CodeExecutor, "Secret": Secret}
    exec(f"async def run():\n    {lines}\n    return result.text", names)  # the guide's own code
    return str(await names["run"]())


async def test_the_example_of_the_guide(
    native_host: Host, server: TlsServer, roots: Callable[[TlsServer], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACME_KEY", CANARY)
    roots(server)
    options = f"secrets=secrets, host=host, hosts=['127.0.0.1:{server.port}'], working_dir=directory"
    changes = {"api.acme.example": f"api.test:{server.port}", "secrets=secrets": options}
    answer = await run_example(1, native_host, tmp_path, changes)
    assert f"X-Key: {CANARY}" in server.seen[0].decode()
    assert "X-Key: cellblock" in answer


async def test_the_example_of_the_guide_clones_a_private_repository(
    native_host: Host, roots: Callable[[TlsServer], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served, workspace = tmp_path / "served", tmp_path / "workspace"
    workspace.mkdir()
    repository, bare = Repository(tmp_path / "made"), served / "you" / "private.git"
    repository.commit(**{"a.txt": "private"})
    repository.git("clone", "--quiet", "--bare", ".", str(bare))
    Repository.at(bare).git("update-server-info")
    login = base64.b64encode(f"x-access-token:{CANARY}".encode())

    def answer(head: bytes, _body: bytes) -> bytes:
        path = served / head.split()[1].decode().partition("?")[0].strip("/")
        if b"Basic " + login not in head:
            return b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
        if not path.is_file():
            return b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
        content = path.read_bytes()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)

    with TlsServer(answer, host="api.test") as server:
        roots(server)
        monkeypatch.setenv("GITHUB_TOKEN", CANARY)
        secret = f"{{'GITHUB_TOKEN': Secret.from_env('GITHUB_TOKEN', hosts=['api.test:{server.port}'])}}"
        options = f"secrets={secret}, host=host, hosts=['127.0.0.1:{server.port}'], working_dir=directory"
        changes = {'secrets="GITHUB_TOKEN"': options, "github.com": f"api.test:{server.port}"}
        said = await run_example(2, native_host, workspace, changes)
        assert any(b"Basic " + login in head for head in server.seen)
    assert (workspace / "private" / "a.txt").exists(), said
