"""The heads of responses, as they come in pieces."""

from __future__ import annotations

import httpcore2
import pytest

from cellblock.tools.mcp.paced import Heads

INTERIM = b"HTTP/1.1 102 \r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"


def test_a_body_may_have_any_size() -> None:
    heads = Heads()
    for _ in range(3):
        heads.asked()
        heads.take(INTERIM * 3 + FINAL[:10])
        heads.take(FINAL[10:] + b"x" * 100_000)
        heads.take(b"\n" * 100_000)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 250, "more than 200 headers"),
        (b"HTTP/1.1 200 OK\r\na: " + b"x" * 17_000, "16384 bytes of them"),
        (INTERIM + b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 250, "more than 200 headers"),
        (INTERIM * 25, "more than 20 interim responses"),
    ],
)
def test_a_head_has_limits(head: bytes, said: str, end: bytes) -> None:
    head = head.replace(b"\r\n", end)
    for pieces in ([head, end], [head[begin : begin + 1] for begin in range(len(head))]):
        with pytest.raises(httpcore2.RemoteProtocolError, match=said):
            _take(pieces)


def _take(pieces: list[bytes]) -> None:
    heads = Heads()
    for piece in pieces:
        heads.take(piece)
