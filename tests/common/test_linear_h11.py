"""Header lines take linear time to parse, whatever they contain."""

from __future__ import annotations

import subprocess
import sys
import time

import h11
import pytest

import cellblock.common.linear_h11  # noqa: F401  # what is tested


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
    "module", ["fronts.gateway.forwarding", "tools.mcp.paced", "walls.egress.http", "walls.packages.mirror"]
)
def test_modules_that_parse_hostile_bytes_import_it(module: str) -> None:
    code = f"import cellblock.{module}, h11._readers as r; assert b']*+' in r.header_field_re.pattern"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
