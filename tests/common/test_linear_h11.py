"""Header lines take linear time to parse, whatever they contain."""

from __future__ import annotations

import re
import time
from pathlib import Path

import h11
import pytest

from cellblock.common import linear_h11


@pytest.mark.parametrize("line", [b"A:" + b" " * 60_000 + b"\0", b"A: b" + b" \t" * 30_000 + b"\0"])
def test_blanks_before_an_illegal_character_take_no_time(line: bytes) -> None:
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
    reader.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n")
    began = time.process_time()
    with pytest.raises(h11.RemoteProtocolError, match="illegal header line"):
        reader.next_event()
    assert time.process_time() - began < 2  # quadratic time is 25 s


def test_ordinary_lines_are_read_as_before() -> None:
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"GET / HTTP/1.1\r\nHost:a\r\nB: \r\nC:\t d  e \t\r\n\r\n")
    head = reader.next_event()
    assert isinstance(head, h11.Request)
    assert [*head.headers] == [(b"host", b"a"), (b"b", b""), (b"c", b"d  e")]


@pytest.mark.parametrize(
    "module", ["fronts/gateway/forwarding", "tools/mcp/paced", "walls/egress/http", "walls/packages/mirror"]
)
def test_modules_that_parse_hostile_bytes_import_it(module: str) -> None:
    code = (Path(linear_h11.__file__).parents[1] / f"{module}.py").read_text()
    assert re.search(
        r"^(import cellblock\.common\.linear_h11|from cellblock\.common import .*\blinear_h11)\b", code, re.MULTILINE
    )


def test_h11_has_the_pattern() -> None:
    assert b"]*+" in h11._readers.header_field_re.pattern
