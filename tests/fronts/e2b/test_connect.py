"""The Connect protocol: messages, streams of them, and what is wrong with them."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from cellblock.errors import AccessError, BusyError, FilesError, StateError, UnsupportedError
from cellblock.fronts.e2b.connect import DeadlineError, Message, stream, unary, unsupported

TYPES = {False: "application/json", True: "application/connect+json"}


class Asked(Message):
    """What a client asks for."""

    count_of: int = 0
    fails: str = ""


ERRORS = {
    "missing": FilesError("gone", errno=2),
    "access": AccessError("no"),
    "busy": BusyError("later"),
    "state": StateError("not now"),
    "late": DeadlineError("too late"),
    "unsupported": UnsupportedError("cannot"),
}


async def one(_: Request, message: Asked) -> dict[str, Any]:
    """Answer with what was asked."""
    if message.fails:
        raise ERRORS[message.fails]
    return {"count": message.count_of}


async def many(_: Request, message: Asked) -> AsyncGenerator[dict[str, Any], None]:
    """Count."""

    async def count() -> AsyncGenerator[dict[str, Any], None]:
        for number in range(message.count_of):
            yield {"number": number}
        if message.fails:
            raise ERRORS[message.fails]

    return count()


@pytest.fixture(scope="module")
def client() -> TestClient:
    """A client of three methods."""
    routes = [unary("/one", Asked, one), stream("/many", Asked, many), unsupported("/none", "never")]
    return TestClient(Starlette(routes=routes))


def envelope(data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(data)) + data


def opened(data: bytes) -> list[tuple[int, Any]]:
    """Return the messages of a stream, with their flags."""
    found = []
    while data:
        flags, size = struct.unpack_from(">BI", data)
        found.append((flags, json.loads(data[5 : 5 + size])))
        data = data[5 + size :]
    return found


def call(client: TestClient, path: str, body: bytes, *, streams: bool = False, headers: dict[str, str] | None = None) -> Any:
    return client.post(path, content=body, headers={"Content-Type": TYPES[streams], **(headers or {})})


def test_one_message_is_answered_by_one(client: TestClient) -> None:
    assert call(client, "/one", b'{"countOf": 3, "later": true}').json() == {"count": 3}
    assert call(client, "/one", b"{}").json() == {"count": 0}
    assert call(client, "/one", b'{"count_of": 4}').json() == {"count": 4}


@pytest.mark.parametrize(
    ("fails", "status", "code"),
    [
        ("missing", 404, "not_found"),
        ("access", 403, "permission_denied"),
        ("busy", 503, "unavailable"),
        ("state", 400, "failed_precondition"),
        ("late", 504, "deadline_exceeded"),
        ("unsupported", 501, "unimplemented"),
    ],
)
def test_errors_have_codes(client: TestClient, fails: str, status: int, code: str) -> None:
    answer = call(client, "/one", json.dumps({"fails": fails}).encode())
    assert (answer.status_code, answer.json()) == (status, {"code": code, "message": str(ERRORS[fails])})
    answer = call(client, "/many", envelope(json.dumps({"countOf": 1, "fails": fails}).encode()), streams=True)
    assert answer.status_code == 200
    assert opened(answer.content) == [(0, {"number": 0}), (2, {"error": {"code": code, "message": str(ERRORS[fails])}})]


def test_a_stream_has_an_end(client: TestClient) -> None:
    answer = call(client, "/many", envelope(b'{"countOf": 2}'), streams=True)
    assert answer.headers["content-type"] == "application/connect+json"
    assert opened(answer.content) == [(0, {"number": 0}), (0, {"number": 1}), (2, {})]


@pytest.mark.parametrize("body", [b'{"countOf": "x"}', b"[]", b"{", b"\xff"])
def test_what_is_no_message_is_refused(client: TestClient, body: bytes) -> None:
    answer = call(client, "/one", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    ((flags, end),) = opened(call(client, "/many", envelope(body), streams=True).content)
    assert (flags, end["error"]["code"]) == (2, "invalid_argument")


BAD = [b"", b"\0\0\0", envelope(b"{}")[:-1], envelope(b"{}") * 2, envelope(b"{}", 1), b"\0\xff\xff\xff\xff"]


@pytest.mark.parametrize("body", BAD)
def test_a_stream_begins_with_one_whole_message(client: TestClient, body: bytes) -> None:
    ((flags, end),) = opened(call(client, "/many", body, streams=True).content)
    assert (flags, end["error"]["code"]) == (2, "invalid_argument")


def test_only_json_is_spoken_and_nothing_compressed(client: TestClient) -> None:
    for headers in ({"Content-Type": "application/proto"}, {"Content-Encoding": "gzip"}):
        answer = call(client, "/one", b"{}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_what_is_not_served_is_said_so_in_both_forms(client: TestClient) -> None:
    answer = call(client, "/none", b"{}")
    assert (answer.status_code, answer.json()) == (501, {"code": "unimplemented", "message": "never"})
    answer = call(client, "/none", envelope(b"{}"), streams=True)
    assert opened(answer.content) == [(2, {"error": {"code": "unimplemented", "message": "never"}})]
