"""One daemon and one server for all tests here, in which each module begins without contexts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import cellblock
from daemons import asking
from gateways import Gateway, own_gateway


@pytest.fixture(scope="package")
def ports() -> list[int]:
    """Two ports at which nothing listens now: the server publishes them."""
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [one.getsockname()[1] for one in made]
    for one in made:
        one.close()
    return found


@pytest.fixture(scope="package")
def one_server(common_daemon: Path, ports: list[int]) -> Iterator[Gateway]:
    """A server."""
    with asking(common_daemon), own_gateway("e2b", publish=ports) as made:
        yield made
        cellblock.wipe()


@pytest.fixture(scope="module")
def server(one_server: Gateway) -> Gateway:
    """A server without contexts."""
    cellblock.wipe()
    return one_server


@pytest.fixture
def api(server: Gateway) -> Iterator[httpx.Client]:
    """A client."""
    with server.client() as client:
        yield client


def run(api: httpx.Client, code: str, **more: Any) -> list[dict[str, Any]]:
    """Run code; return all messages but the last, which says that this was all."""
    answer = api.post("/execute", json={"code": code, **more})
    assert answer.status_code == 200, answer.text
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert found.pop() == {"type": "end_of_execution"}
    return found


def texts(messages: list[dict[str, Any]], kind: str = "stdout") -> str:
    """Return what was printed."""
    return "".join(one["text"] for one in messages if one["type"] == kind)
