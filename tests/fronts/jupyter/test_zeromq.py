"""A kernel of a plain local Jupyter: what it starts, over ZeroMQ."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

import cellblock
from cellblock.errors import InvalidInputError
from cellblock.fronts.jupyter.zeromq import Sockets, signed
from daemons import own_daemon
from processes import eventually

pytestmark = pytest.mark.slow

DELIMITER = b"<IDS|MSG>"
KEY = "a key"


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_daemon(tmp_path_factory.mktemp("daemon")):
        yield


class Jupyter:
    """The client's side of a connection file."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.context = zmq.Context()
        self.sockets: dict[str, Any] = {}
        for name, kind in {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB, "hb": zmq.REQ}.items():
            made = self.sockets[name] = self.context.socket(kind)
            made.linger = 0
            made.rcvtimeo = 20_000
            made.connect(f"tcp://127.0.0.1:{given[f'{name}_port']}")
        self.sockets["iopub"].subscribe(b"")

    def send(self, kind: str, content: Any, channel: str = "shell", key: str = KEY) -> str:
        """Send a message; return its id."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "s", "username": "", "version": "5.3"}
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        signature = hmac.new(key.encode(), b"".join(parts), hashlib.sha256).hexdigest().encode()
        self.sockets[channel].send_multipart([DELIMITER, signature, *parts])
        return str(header["msg_id"])

    def receive(self, channel: str) -> tuple[str, str, Any]:
        """Return type, parent and content of the next message, whose signature is right."""
        frames = self.sockets[channel].recv_multipart()
        signature, *parts = frames[frames.index(DELIMITER) + 1 :]
        assert signature.decode() == hmac.new(KEY.encode(), b"".join(parts[:4]), hashlib.sha256).hexdigest()
        header, parent, _, content = map(json.loads, parts[:4])
        return header["msg_type"], parent.get("msg_id", ""), content

    def close(self) -> None:
        self.context.destroy(linger=0)


def ports(count: int) -> list[int]:
    """Return ports that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


@contextmanager
def kernel(path: Path, *arguments: str) -> Iterator[tuple[Jupyter, subprocess.Popen[bytes]]]:
    """Start a kernel as Jupyter does."""
    names = ("shell", "control", "stdin", "iopub", "hb")
    given: dict[str, Any] = {"ip": "127.0.0.1", "transport": "tcp", "key": KEY, "signature_scheme": "hmac-sha256"}
    given |= {f"{name}_port": port for name, port in zip(names, ports(5), strict=True)}
    file = path / "connection.json"
    file.write_text(json.dumps(given))
    process = subprocess.Popen([sys.executable, "-m", "cellblock.jupyter", "-f", str(file), *arguments])
    jupyter = Jupyter(given)
    try:
        yield jupyter, process
    finally:
        jupyter.close()
        process.kill()
        process.wait()


async def test_a_kernel_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    with kernel(tmp_path) as (jupyter, process):
        jupyter.send("execute_request", {"code": "1"}, key="another")  # is not heard
        number = jupyter.send("kernel_info_request", {})
        kind, parent, content = jupyter.receive("shell")
        assert (kind, parent, content["implementation"]) == ("kernel_info_reply", number, "cellblock")
        jupyter.sockets["hb"].send(b"ping")
        assert jupyter.sockets["hb"].recv() == b"ping"
        number = jupyter.send("execute_request", {"code": "print('out'); 1 + 1"})
        while (found := jupyter.receive("iopub"))[:2] != ("stream", number):
            pass
        assert found[2] == {"name": "stdout", "text": "out\n"}
        assert jupyter.receive("shell")[2]["execution_count"] == 1
        assert [session.tags["made by"] for session in cellblock.list_kernels()] == ["jupyter"]
        process.send_signal(signal.SIGINT)  # Ctrl-C in the server's terminal
        jupyter.send("shutdown_request", {"restart": False}, "control")
        assert jupyter.receive("control")[0] == "shutdown_reply"
        assert process.wait(20) == 0
        assert cellblock.list_kernels() == []


async def test_a_session_ends_with_the_kernel_that_is_killed(tmp_path: Path) -> None:
    with kernel(tmp_path) as (jupyter, process):
        jupyter.send("kernel_info_request", {})
        jupyter.receive("shell")
        process.kill()
        await eventually(lambda: cellblock.list_kernels() == [])


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    for text, complaint in (("{", "cannot be read"), ("[]", "not a connection file"), ("{}", "cannot be bound")):
        file.write_text(text)
        with pytest.raises(InvalidInputError, match=complaint):
            Sockets(file)
    assert signed(b"a", b"a")
    assert not signed(b"a", b"b")
