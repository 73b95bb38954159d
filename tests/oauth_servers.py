"""A server behind OAuth for tests, and a person who logs in there."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "servers" / "oauth_server.py"


class OAuthServer:
    """The server, in another process."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.visited: list[str] = []

    def control(self, **given: Any) -> dict[str, int]:
        """Replace what the server does wrong, if given; return what it has counted."""
        body = json.dumps(given).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/control", body)
        with urllib.request.urlopen(request) as response:
            counts: dict[str, int] = json.load(response)
        return counts

    def params(self, **auth: Any) -> dict[str, Any]:
        return {"url": self.url, "auth": auth or "oauth"}

    def visit(self, url: str) -> str:
        """Return the URL that the browser is sent back to."""
        self.visited.append(url)

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None: ...

        try:
            urllib.request.build_opener(Stay).open(url)
        except urllib.request.HTTPError as answer:
            return str(answer.headers["Location"])
        raise AssertionError("the browser was not sent back")

    async def ask(self, url: str, listener: socket.socket, is_answer: Callable[[str], bool]) -> str:
        return await asyncio.to_thread(self.visit, url)


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    with subprocess.Popen([sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield OAuthServer(int(process.stdout.readline()))
        process.kill()
