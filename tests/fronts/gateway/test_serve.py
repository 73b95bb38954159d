"""How a gateway is started and ended: addresses, certificates, signals, and other servers than its own."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import cellblock
from cellblock.errors import InvalidInputError
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.gateway.serve import check_certificate, check_key, serve
from cli_runs import run_here
from daemons import own_daemon
from gateways import Gateway, certificate_for_localhost, own_gateway, token
from processes import eventually


@contextmanager
def started(*program: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block; what it says is in a file."""
    with open(log, "wb") as file:
        process = subprocess.Popen([sys.executable, "-m", *program], stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        number: int = found.getsockname()[1]
        return number


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    return certificate_for_localhost(tmp_path)


def test_certificates_that_cannot_be_used_are_told(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    check_certificate(None, None)
    check_certificate(certificate, key)
    (tmp_path / "garbage").write_text("x")
    for wrong in ((tmp_path / "missing", None), (tmp_path / "garbage", None), (certificate, certificate), (None, key)):
        with pytest.raises(InvalidInputError, match="certificate"):
            check_certificate(*wrong)


def test_a_private_key_is_not_where_sessions_work(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that are made over HTTP work in the gateway's directory."""
    certificate, key = pair
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    (work := tmp_path / "work").mkdir()
    (work / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for where in (key, Path("key.pem"), work / "link" / "key.pem"):
        with pytest.raises(InvalidInputError, match=r"is in .*, where sessions work and could read it: move it"):
            serve(port=-1, certificate=certificate, key=where)
    for options in (GatewayOptions(workspaces=tmp_path), GatewayOptions(session_options={"working_dir": str(tmp_path)})):
        monkeypatch.chdir(work)
        with pytest.raises(InvalidInputError, match="where sessions work"):
            check_key(key, options)
    check_key(key, GatewayOptions())
    monkeypatch.chdir(tmp_path)
    check_key(key, GatewayOptions(workspaces=work))


@pytest.mark.slow
async def test_https_and_wss(gateway: Gateway, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    log, port = tmp_path / "log", free_port()
    pair[1].chmod(0o644)
    command = ("cellblock", "serve", "--port", str(port), "--certificate", str(pair[0]), "--key", str(pair[1]))
    trusted = ssl.create_default_context(cafile=str(pair[0]))
    with started(*command, log=log):
        await eventually(lambda: b"listens" in log.read_bytes(), 60)
        assert b"Other users can read the private key" in log.read_bytes()
        with httpx.Client(verify=trusted, headers={"Authorization": f"Bearer {token('run')}"}) as client:
            answer = client.post(f"https://localhost:{port}/sessions/tls/execute", json={"code": "6 * 7"})
            assert answer.json()["return_value"] == "42"
        with (
            pytest.raises(InvalidStatus, match="404"),
            connect(f"wss://localhost:{port}/executions/x/events?token={token('read')}", ssl=trusted),
        ):
            pass
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{port}/health")


@pytest.mark.slow
async def test_any_server_serves_the_application_and_logs_no_token(gateway: Gateway, tmp_path: Path) -> None:
    """As KernelBox's service is started. uvicorn then logs addresses."""
    log, port = tmp_path / "log", free_port()
    secret = token("admin")
    with started("uvicorn", "cellblock.fronts.gateway.app:app", "--port", str(port), log=log):
        await eventually(lambda: b"running on" in log.read_bytes(), 60)
        here = f"127.0.0.1:{port}"
        for path, host, status in (
            ("/api/kernels", here, 200),
            ("/api/kernels", "evil.example", 421),
            ("/kernels", here, 401),
            ("/nowhere", here, 401),
        ):
            answer = httpx.get(f"http://{here}{path}?a=1&token={secret}&b=2", headers={"Host": host})
            assert answer.status_code == status
        for path in ("/api/kernels/x/channels", "/executions/x/events", "/nowhere"):
            with pytest.raises(InvalidStatus), connect(f"ws://{here}{path}?token={secret}"):
                pass
    text = log.read_text()
    assert "/api/kernels?a=1&b=2" in text
    assert secret[12:] not in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_gateway_and_no_code(tmp_path: Path, number: signal.Signals) -> None:
    with own_daemon(tmp_path):
        with own_gateway() as ending, ending.client(token("run")) as client:
            execution = client.post("/sessions/s/execute", json={"code": "x = 1"})
            body = {"code": "print(input())\nx", "stdin": True}
            execution = client.post("/sessions/s/executions", json=body)
            with client.stream("GET", f"/executions/{execution.json()['id']}/events") as following:
                assert following.status_code == 200
                os.kill(ending.process.pid, number)
                await eventually(lambda: ending.process.poll() is not None, 30)
            with pytest.raises(httpx.HTTPError):
                client.get("/health")
        with own_gateway() as next_one, next_one.client(token("run")) as client:
            assert client.get(f"/executions/{execution.json()['id']}").json()["state"] == "running"
            assert client.post(f"/executions/{execution.json()['id']}/input", json={"line": "on"}).json()["done"]
            await eventually(lambda: cellblock.status("s").status == "idle")
            assert cellblock.execute("s", "x").return_value == "1"


@pytest.mark.slow
async def test_two_gateways_serve_the_same_sessions(gateway: Gateway) -> None:
    secret = token("run")
    with own_gateway() as other, other.client(secret) as second, gateway.client(secret) as first:
        first.post("/sessions/both/execute", json={"code": "x = 42"})
        assert second.post("/sessions/both/execute", json={"code": "x"}).json()["return_value"] == "42"


@pytest.mark.slow
def test_a_gateway_without_a_daemon_ends_at_once_and_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would listen, and answer each request with the same error."""
    (tmp_path / "state" / "named.db").mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    done = run_here("serve", "--port", "0", "--no-auth")
    assert done.returncode not in (0, None)
    assert "the daemon did not start" in done.stderr
    assert "named.db cannot be used" in done.stderr
    assert len(done.stderr.splitlines()) == 1
