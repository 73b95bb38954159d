"""Programs beside the kernel over HTTP: by hand, and by both clients."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import cellblock
from cellblock import AsyncClient, InvalidInputError, NotFoundError, ProcessError
from cellblock.service.daemon import control
from gateways import Gateway, token
from processes import eventually

NAP = ["sleep", f"{4000 + os.getpid()}"]
P = "/sessions/s/processes"


@pytest.fixture(autouse=True)
def session(api: httpx.Client, tmp_path: Path) -> Iterator[str]:
    """A session in a directory of its own."""
    api.post("/kernels", json={"name": "s", "options": {"working_dir": str(tmp_path)}})
    yield "s"
    api.delete("/kernels")


def running(api: httpx.Client) -> list[list[str]]:
    """Return the commands of the session's programs that run."""
    answered = api.get(P)
    assert answered.status_code == 200, answered.text
    return [one["command"] for one in answered.json()["processes"] if one["running"]]


def test_exec(api: httpx.Client) -> None:
    body = {"command": ["sh", "-c", "cat; echo $A >&2; exit 3"], "env": {"A": "1", "B": None}, "input": "ü\n"}
    result = api.post("/sessions/s/exec", json=body).json()
    assert (result["status"], result["exit_code"], result["stdout"], result["stderr"]) == ("exited", 3, "ü\n", "1\n")
    binary = api.post("/sessions/s/exec", json={"command": ["printf", r"a\377"]}).json()
    assert (binary["stdout"], base64.b64decode(binary["stdout_base64"])) == ("a\ufffd", b"a\xff")
    late = api.post("/sessions/s/exec", json={"command": NAP, "timeout": 100}).json()
    assert (late["status"], late["exit_code"]) == ("timeout", 143)
    large = api.post("/sessions/s/exec", json={"command": ["head", "-c", "3000000", "/dev/zero"]}).json()
    assert large["stdout"] == "\0" * 3_000_000


def test_who_may_do_what(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": ["cat"], "stdin": True})
    requests = {
        ("POST", "/sessions/{}/exec"): {"command": ["true"]},
        ("POST", "/sessions/{}/processes"): {"command": ["true"]},
        ("POST", "/sessions/{}/processes/p1/input"): {"data": "x"},
        ("POST", "/sessions/{}/processes/p1/signal"): {"number": signal.SIGCONT},
        ("GET", "/sessions/{}/processes"): None,
        ("GET", "/sessions/{}/processes/p1/output"): None,
        ("DELETE", "/sessions/{}/processes/p1"): None,
    }
    cellblock.get_or_create("other")
    with (
        gateway.client(token("read")) as reader,
        gateway.client(token("run", session="s")) as mine,
        gateway.client(token("run", session="other")) as other,
    ):
        for (method, path), body in requests.items():
            mine_path = path.format("s")
            assert other.request(method, mine_path, json=body).status_code == 403
            assert reader.request(method, mine_path, json=body).status_code == (200 if method == "GET" else 403)
            assert mine.request(method, path.format("other"), json=body).status_code == 403
        assert running(api) == [["cat"]]
        for (method, path), body in requests.items():
            assert mine.request(method, path.format("s"), json=body).status_code == 200


async def test_a_client_that_leaves_ends_its_program(gateway: Gateway, api: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as lost:
        body = b'{"command": ["sleep", "%s"]}' % NAP[1].encode()
        head = f"POST /sessions/s/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('run')}\r\n"
        lost.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await eventually(lambda: running(api) == [NAP])
    await eventually(lambda: running(api) == [])


@pytest.mark.slow
async def test_an_exec_whose_daemon_is_killed_has_an_unknown_outcome(gateway: Gateway, api: httpx.Client) -> None:
    with gateway.client(token("run")) as other:
        asking = asyncio.create_task(asyncio.to_thread(other.post, "/sessions/s/exec", json={"command": NAP}))
        await eventually(lambda: running(api) == [NAP])
        about = control.status()
        assert about is not None
        os.kill(about["pid"], signal.SIGKILL)
        answered = await asking
    assert (answered.status_code, answered.json()["code"]) == (502, "outcome_unknown")
    assert running(api) == []


@pytest.mark.slow
async def test_the_client(gateway: Gateway, api: httpx.Client) -> None:
    async with AsyncClient(gateway.url, token("run")) as client:
        assert (await client.exec_process("s", ["echo", "a b"])).out == "a b\n"
        made = await client.spawn_process("s", NAP)
        assert (await client.processes("s"))[-1] == made
        task = asyncio.create_task(client.exec_process("s", ["sleep", "1001"]))
        await eventually(lambda: len(running(api)) == 2)
        task.cancel()
        await eventually(lambda: running(api) == [NAP])
        assert (await client.stop_process("s", made)).status == "cancelled"
        shell = await client.spawn_process("s", ["sh", "-c", "read line; stty size; printf '\\377'"], pty=(10, 20))
        await client.resize_process("s", shell, 30, 40)
        assert await client.write_process("s", shell, "\n")
        while not (output := await client.read_process("s", shell, 0, 10)).finished:
            pass
        assert b"".join(piece.data for piece in output.pieces).endswith(b"30 40\r\n\xff")
        with pytest.raises(ProcessError, match="was not started") as caught:
            await client.spawn_process("s", ["no-such-program"])
        assert caught.value.errno == 2
        with pytest.raises(NotFoundError):
            await client.signal_process("s", "p99", signal.SIGINT)
        with pytest.raises(InvalidInputError):
            await client.exec_process("s", [])


# -- the WebSocket -------------------------------------------------------------------------------------------------------


@contextmanager
def stream(
    gateway: Gateway, process: str, query: str = "", scope: str = "run", session: str = ""
) -> Iterator[ClientConnection]:
    """Open the stream of a program."""
    url = f"{gateway.url.replace('http', 'ws', 1)}{P}/{process}/stream{query}"
    headers = {"Authorization": f"Bearer {token(scope, session=session)}"}
    with connect(url, additional_headers=headers, max_size=None) as opened:
        yield opened


def say(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def test_output_comes_as_json_and_then_how_it_ended(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": ["sh", "-c", "read a; echo $a; printf '\\377' >&2; exit 3"], "stdin": True, "keep": "all"})
    with stream(gateway, "p1", scope="run") as socket:
        socket.send(b"by")
        say(socket, input="tes\n")
        received = [json.loads(message) for message in socket]
    *pieces, end = received
    found = {(one["stream"], one["data"], one.get("data_base64")) for one in pieces}
    assert found == {("stdout", "bytes\n", None), ("stderr", "\ufffd", "/w==")}
    assert (end["position"], end["result"]["exit_code"], socket.close_code) == (7, 3, 1000)
    with stream(gateway, "p1", "?since=5", scope="read") as socket:  # again, from a position
        assert sum(len(json.loads(message).get("data", "")) for message in socket) == 2


@pytest.mark.slow
def test_output_comes_as_bytes_from_where_a_reader_was(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": ["sh", "-c", "cat; echo err >&2"], "stdin": True, "keep": "all"})
    with stream(gateway, "p1", "?binary=true") as socket:
        socket.send(b"one\n")
        assert socket.recv() == b"\x01one\n"
    with stream(gateway, "p1", "?binary=true&since=4") as socket:
        socket.send(b"two\xff")
        assert socket.recv() == b"\x01two\xff"
        say(socket, end=True)
        assert socket.recv() == b"\x02err\n"
        assert json.loads(socket.recv())["result"]["status"] == "exited"


@pytest.mark.slow
def test_what_was_dropped_is_told(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": ["head", "-c", "3000000", "/dev/zero"]})
    while api.get(P).json()["processes"][0]["running"]:
        pass
    with stream(gateway, "p1", "?binary=true") as socket:
        first = json.loads(socket.recv())["position"]
        received = [message for message in socket if isinstance(message, bytes)]
    assert first > 0
    assert first + sum(len(message) - 1 for message in received) == 3_000_000


@pytest.mark.slow
def test_a_terminal_takes_sizes_and_signals(gateway: Gateway, api: httpx.Client) -> None:
    script = "trap 'stty size' WINCH; trap 'echo usr; exit 4' USR1; echo ready; while :; do sleep 0.05; done"
    api.post(P, json={"command": ["sh", "-c", script], "rows": 10, "columns": 20})
    with stream(gateway, "p1", "?binary=true") as socket:
        assert socket.recv() == b"\x01ready\r\n"
        say(socket, size=[30, 40])
        assert socket.recv() == b"\x0130 40\r\n"
        say(socket, signal=int(signal.SIGUSR1))
        *shown, end = socket
        assert b"".join(bytes(message)[1:] for message in shown).endswith(b"usr\r\n")  # type: ignore[arg-type]
        assert json.loads(end)["result"]["exit_code"] == 4


@pytest.mark.slow
async def test_a_slow_reader_slows_the_program_and_nobody_else(gateway: Gateway, api: httpx.Client, tmp_path: Path) -> None:
    script = "import os\nn = 0\nwhile True:\n  n += os.write(1, b'x' * 65536)\n  open('n', 'w').write(str(n))"
    api.post(P, json={"command": [sys.executable, "-c", script], "keep": "all"})
    count, before = tmp_path / "n", -1

    async def stopped() -> bool:
        nonlocal before
        before, was = int(count.read_text() or 0) if count.exists() else 0, before
        await asyncio.sleep(0.3)
        return before == was > 0

    with socket.create_connection(("127.0.0.1", gateway.port)) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {P}/p1/stream?binary=true HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token('read')}",
            "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "",
        ]  # fmt: skip
        reader.sendall("\r\n".join(lines).encode())
        await eventually(stopped, 30)
        assert before < 16 * 1024 * 1024
        assert api.post("/sessions/s/exec", json={"command": ["echo", "quick"]}).json()["stdout"] == "quick\n"
        for _ in range(200):
            reader.recv(65536)
        await eventually(lambda: int(count.read_text() or 0) > before)
    assert api.delete(f"{P}/p1").json()["status"] == "cancelled"


async def test_a_signal_reaches_a_program_that_does_not_read(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": NAP, "stdin": True})
    with stream(gateway, "p1") as socket:
        for _ in range(4):
            socket.send(b"x" * 65536)
        say(socket, signal=int(signal.SIGINT))
        assert json.loads(socket.recv())["result"]["signal"] == signal.SIGINT


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_program(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": NAP})
    with stream(gateway, "p1"):
        pass
    assert running(api) == [NAP]


@pytest.mark.slow
def test_what_a_program_cannot_take_ends_the_stream(gateway: Gateway, api: httpx.Client) -> None:
    cases: list[tuple[Any, str]] = [
        ("{", "a text message is not valid JSON"),
        ("[" * 50_000, "a text message has more than 40,000 values"),
        ("{}", "send bytes, "),
        ('{"input": 5}', "send bytes, "),
        ('{"input": "a", "signal": 9}', "send bytes, "),
        ('{"signal": 99}', "a signal is a number"),
        ('{"size": [5, 5]}', "has no terminal"),
        ('{"size": [true, 5]}', "send bytes, "),
        (b"x" * 65537, "a message has at most 65,536 bytes"),
        (b"x", "has no standard input"),
    ]
    api.post(P, json={"command": NAP})
    for message, reason in cases:
        with stream(gateway, "p1") as socket:
            socket.send(message)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert reason in closed.value.rcvd.reason
        assert running(api) == [NAP]


def test_who_may_follow_and_send(gateway: Gateway, api: httpx.Client) -> None:
    api.post(P, json={"command": ["cat"], "stdin": True})
    cellblock.get_or_create("other")
    for number, arguments in ((404, {"process": "p9"}), (403, {"session": "other"}), (403, {"query": "?since=-1"})):
        with pytest.raises(InvalidStatus) as refused, stream(gateway, **{"process": "p1", **arguments}):
            pass
        assert refused.value.response.status_code == number
    with stream(gateway, "p1", session="s") as socket:
        socket.send(b"mine")
        assert json.loads(socket.recv())["data"] == "mine"
    with stream(gateway, "p1", "?since=4", scope="read") as socket:
        socket.send(b"x")
        with pytest.raises(ConnectionClosed, match="needs the scope run"):
            socket.recv()
    with pytest.raises(InvalidStatus), connect(f"{gateway.url.replace('http', 'ws', 1)}{P}/p1/stream"):
        pass
    with pytest.raises(InvalidStatus) as foreign:
        connect(
            f"{gateway.url.replace('http', 'ws', 1)}{P}/p1/stream",
            additional_headers={"Authorization": f"Bearer {token('run')}", "Origin": "https://example.org"},
        )
    assert foreign.value.response.status_code == 403
