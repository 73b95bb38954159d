"""A gateway for tests: a process of its own, and its tokens."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from cellblock.service.store.tokens import Tokens

_PROGRAM = """
import json, sys
from pathlib import Path
from importlib import import_module
from cellblock.fronts.gateway.gateway_options import GatewayOptions
serve = import_module(f"cellblock.fronts.{sys.argv[2]}.serve").serve
given = json.loads(sys.argv[1])
if "workspaces" in given:
    given["workspaces"] = Path(given["workspaces"])
ports = [0] if given.pop("port", 0) is not None else []  # None: those that the front has by default
serve(given.pop("host", "127.0.0.1"), *ports, options=GatewayOptions(**given))
"""


class Gateway:
    """A gateway that runs.

    Attributes:
        url: Where it listens.
        process: Its process.
    """

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = process

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.url.rpartition(":")[2])

    def client(self, token: str = "", **options: Any) -> httpx.Client:
        """Return an HTTP client with a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Without TLS there is nothing to verify, and loading the machine's certificates would take 50 ms for each client.
        return httpx.Client(
            base_url=self.url, headers=headers | options.pop("headers", {}), timeout=60, verify=False, **options
        )


@contextmanager
def own_gateway(front: str = "gateway", **options: Any) -> Iterator[Gateway]:
    """Run a gateway for the daemon of `own_daemon`, or the server of another front, with options of `GatewayOptions`."""
    # Its words go to a file: a pipe that nobody empties would stop it some day.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, json.dumps(options), front], stderr=said, text=True)
        try:
            yield Gateway(_address(process, said), process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _address(process: subprocess.Popen[str], said: IO[str]) -> str:
    """Return where a gateway listens, as soon as it does."""
    deadline = time.monotonic() + 60
    while True:
        text = os.pread(said.fileno(), 65536, 0).decode()  # it writes where this would seek to
        if found := re.search(r"listens at (\S+) ", text):
            return found[1]
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.01)


def token(*scopes: str, session: str = "", **more: Any) -> str:
    """Return a fresh token."""
    return Tokens().create("test", scopes, session=session, **more)[0]


def certificate_for_localhost(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost, and its key. The test is skipped if that is not possible."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
