"""A gateway for tests: a process of its own, and its tokens."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from cellblock.store.tokens import Tokens

_PROGRAM = """
import json, sys
from pathlib import Path
from cellblock.gateway.options import GatewayOptions
from cellblock.gateway.serve import serve
given = json.loads(sys.argv[1])
if "workspaces" in given:
    given["workspaces"] = Path(given["workspaces"])
serve(given.pop("host", "127.0.0.1"), 0, options=GatewayOptions(**given))
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
        return httpx.Client(base_url=self.url, headers=headers | options.pop("headers", {}), timeout=60, **options)


@contextmanager
def own_gateway(**options: Any) -> Iterator[Gateway]:
    """Run a gateway for the daemon of `own_daemon`, with options of `GatewayOptions`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(options)], stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"listens at (\S+)", line)
        assert found, line + process.stderr.read()
        yield Gateway(found[1], process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()


def token(*scopes: str, session: str = "", **more: Any) -> str:
    """Return a fresh token."""
    return Tokens().create("test", scopes, session=session, **more)[0]
