"""Real clients, unchanged: what the environment says is all that they are told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import ssl
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellblock.walls.proxy.proxy import environment

from .conftest import Running, Starter

URLLIB = """
import sys, urllib.request
sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())
"""
REQUESTS = """
import sys, requests
with requests.Session() as session:
    for _ in range(2):
        answer = session.get(sys.argv[1])
    if not answer.ok:
        print(answer.status_code)
    sys.stdout.write(answer.text)
"""
HTTPX = """
import sys, httpx
if sys.argv[2:]:
    client = httpx.Client(proxy=sys.argv[2])
else:
    # As where the package for SOCKS is not installed: ALL_PROXY must not need it.
    sys.modules["socksio"] = None
    client = httpx.Client()
with client:
    sys.stdout.write(client.get(sys.argv[1]).text)
"""
AIOHTTP = """
import asyncio, ssl, sys, aiohttp
async def main():
    trust = ssl.create_default_context()
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.get(sys.argv[1], ssl=trust) as answer:
            sys.stdout.write(await answer.text())
asyncio.run(main())
"""


@dataclass
class World:
    """A machine's worth of clients, whose only way out is a proxy to web.test."""

    running: Running
    port: int
    tls_port: int
    home: Path
    certificate: Path

    def environment(self) -> dict[str, str]:
        certificate = str(self.certificate)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "SSL_CERT_FILE": certificate,
            "REQUESTS_CA_BUNDLE": certificate,
            "CURL_CA_BUNDLE": certificate,
            "GIT_SSL_CAINFO": certificate,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "PIP_CERT": certificate,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **environment(self.running.port),
        }

    async def run(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """Run a program, and return what it wrote."""
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment(), cwd=cwd or self.home
        )
        output, _ = await process.communicate()
        assert not check or process.returncode == 0, output.decode()
        return output.decode()

    async def python(self, program: str, *arguments: str, check: bool = True) -> str:
        """Run a Python program, and return what it wrote."""
        return await self.run(sys.executable, "-c", program, *arguments, check=check)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for web.test, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "web.pem"
    names = ["-subj", "/CN=web.test", "-addext", "subjectAltName=DNS:web.test"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*made, *names, "-keyout", f"{path}.key", "-out", path], check=True, capture_output=True)
    return path


@contextlib.asynccontextmanager
async def file_server(folder: Path, *, tls: Path | None = None) -> AsyncIterator[int]:
    """Serve a folder with http.server in a process of its own."""
    program = (
        "import functools, http.server as h, ssl, sys\n"
        "handler = functools.partial(h.SimpleHTTPRequestHandler, directory=sys.argv[1])\n"
        "h.SimpleHTTPRequestHandler.protocol_version = 'HTTP/1.1'\n"
        "server = h.ThreadingHTTPServer(('127.0.0.1', 0), handler)\n"
        "if sys.argv[2:]:\n"
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "    context.load_cert_chain(sys.argv[2], sys.argv[2] + '.key')\n"
        "    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    arguments = [str(folder), *([str(tls)] if tls else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.communicate()


@pytest.fixture
async def world(start: Starter, tmp_path: Path, certificate: Path) -> AsyncIterator[World]:
    """Servers for http and https, a proxy that lets clients reach them as web.test, and nothing else."""
    site, home = tmp_path / "site", tmp_path / "home"
    site.mkdir()
    home.mkdir()
    (site / "hello.txt").write_text("hello from the web")
    async with file_server(site) as port, file_server(site, tls=certificate) as tls_port:
        patterns = [f"{host}:{number}" for host in ("web.test", "127.0.0.1") for number in (port, tls_port)]
        running = await start.proxy(*patterns, names={"web.test": ["127.0.0.1"]})
        yield World(running, port, tls_port, home, certificate)


def urls(world: World) -> tuple[str, str]:
    return f"http://web.test:{world.port}/hello.txt", f"https://web.test:{world.tls_port}/hello.txt"


@pytest.mark.slow
@pytest.mark.parametrize("program", [URLLIB, REQUESTS, HTTPX, AIOHTTP], ids=["urllib", "requests", "httpx", "aiohttp"])
async def test_python_clients(world: World, program: str) -> None:
    """Plain HTTP and TLS reach what is allowed; what is not fails with the rule that is missing."""
    plain, tls = urls(world)
    answers = await asyncio.gather(world.python(program, plain), world.python(program, tls))
    assert set(answers) == {"hello from the web"}
    assert set(world.running.lookups) == {"web.test"}
    refused, refused_tls = await asyncio.gather(
        world.python(program, "http://other.test/", check=False), world.python(program, "https://other.test/", check=False)
    )
    assert "403" in refused or "allow=" in refused
    assert "no rule names this host; to allow it: cellblock network NAME --allow other.test" in refused_tls
    hosts = {(denial.host, denial.port, denial.rule_needed) for denial in world.running.denials}
    assert hosts == {("other.test", 80, "other.test"), ("other.test", 443, "other.test")}


async def test_curl(world: World) -> None:
    plain, tls = urls(world)
    for url in (plain, tls):
        assert await world.run("curl", "-sS", url) == "hello from the web"
        assert await world.run("curl", "-sS", "--noproxy", "", "-x", f"socks5h://127.0.0.1:{world.running.port}", url)
    refused = await world.run("curl", "-sS", "http://other.test/")
    command = "cellblock network NAME --allow other.test, or change_network(allow=['other.test'])"
    reason = f"no rule names this host; to allow it: {command}"
    assert refused == f"cellblock: egress to other.test:80 denied: {reason}\n"
    assert "403" in await world.run("curl", "-sS", "https://other.test/", check=False)
    assert [denial.method for denial in world.running.denials] == ["GET", "CONNECT"]


@pytest.mark.slow
async def test_httpx_over_socks(world: World) -> None:
    for url in urls(world):
        proxy = f"socks5://127.0.0.1:{world.running.port}"
        assert await world.python(HTTPX, url, proxy) == "hello from the web"


@pytest.mark.slow
async def test_servers_of_the_sessions_own_need_no_proxy(world: World) -> None:
    for program in (URLLIB, REQUESTS, HTTPX):
        assert await world.python(program, f"http://127.0.0.1:{world.port}/hello.txt") == "hello from the web"
        assert await world.python(program, f"http://localhost:{world.port}/hello.txt") == "hello from the web"
    assert not world.running.dialled


async def git(*arguments: str, cwd: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@web.test", "-c", "init.defaultBranch=main"]
    process = await asyncio.create_subprocess_exec(
        "git", *identity, *arguments, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert await process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_git(world: World, tmp_path: Path, tls: bool) -> None:
    """A clone over HTTP, and over TLS through a tunnel."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    await git("init", "-q", ".", cwd=source)
    (source / "file").write_text("content")
    await git("add", "file", cwd=source)
    await git("commit", "-q", "-m", "one", cwd=source)
    await git("clone", "-q", "--bare", str(source), str(site / "repo.git"), cwd=source)
    await git("update-server-info", cwd=site / "repo.git")
    base = f"https://web.test:{world.tls_port}" if tls else f"http://web.test:{world.port}"
    await world.run("git", "clone", "-q", f"{base}/repo.git", "copy")
    assert (world.home / "copy" / "file").read_text() == "content"
    assert "403" in await world.run("git", "clone", "https://other.test/repo.git", check=False)


def wheel(folder: Path) -> str:
    """Write a small wheel, and return its name."""
    name = "egress_probe-1.0-py3-none-any.whl"
    info = "egress_probe-1.0.dist-info"
    files = {
        "egress_probe.py": "VALUE = 7\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: egress-probe\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return name


@pytest.mark.slow
async def test_pip(world: World, tmp_path: Path) -> None:
    """A package comes from the index that is allowed, over TLS, and from no other."""
    page = tmp_path / "site" / "simple" / "egress-probe"
    page.mkdir(parents=True)
    name = wheel(page)
    digest = hashlib.sha256((page / name).read_bytes()).hexdigest()
    (page / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{name}#sha256={digest}">{name}</a></body></html>')
    index = f"https://web.test:{world.tls_port}/simple/"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "packages", "--retries", "0"]
    await world.run(*install, "--index-url", index, "egress-probe")
    assert (world.home / "packages" / "egress_probe.py").read_text() == "VALUE = 7\n"
    assert set(world.running.lookups) == {"web.test"}
    refused = await world.run(*install, "--index-url", "https://index.example/simple/", "egress-probe", check=False)
    assert "No matching distribution" in refused
    assert {denial.rule_needed for denial in world.running.denials} == {"index.example"}


async def test_tls_is_end_to_end(world: World) -> None:
    """The proxy sees only the tunnel: the certificate that the client checks is the server's own."""
    context = ssl.create_default_context(cafile=str(world.certificate))
    reader, writer = await world.running.connect()
    writer.write(f"CONNECT web.test:{world.tls_port} HTTP/1.1\r\nHost: web.test:{world.tls_port}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await writer.start_tls(context, server_hostname="web.test")
    writer.write(b"GET /hello.txt HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"hello from the web")
    writer.close()
    await writer.wait_closed()


def test_environment() -> None:
    names = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
    given = environment(3128)
    assert set(given) == names | {name.lower() for name in names}
    assert {given[name] for name in given if "no" not in name.lower()} == {"http://127.0.0.1:3128"}
