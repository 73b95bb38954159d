"""Lines out of pieces: the same however they are cut, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellblock.tools.mcp.lines import Lines, Oversized


def ended(lines: Lines) -> list[bytes | Oversized]:
    found = []
    while (line := lines.next()) is not None:
        found.append(line)
    return found


@given(st.lists(st.binary(max_size=9) | st.sampled_from([b"\n", b"a\nb", b"\n\n"])))
def test_the_cuts_do_not_matter(pieces: list[bytes]) -> None:
    lines, found = Lines(1000), []
    for piece in pieces:
        lines.feed(piece)
        found += ended(lines)
        assert lines.waiting == 0
    *expected, rest = b"".join(pieces).split(b"\n")
    assert found == expected
    assert lines.size == len(rest)


@given(st.integers(0, 3000), st.integers(1, 700))
def test_a_line_over_the_limit_leaves_its_edges(size: int, step: int) -> None:
    data = bytes(index % 9 + 48 for index in range(size)) + b"\nnext\n"
    lines, found = Lines(1000), []
    for start in range(0, len(data), step):
        lines.feed(data[start : start + step])
        found += ended(lines)
        assert len(lines._data) <= 1000 + step
    line = data[:size]
    assert found == [line if size <= 1000 else Oversized(line[:256], line[-256:], size), b"next"]


def test_empty_lines_weigh_what_they_are() -> None:
    lines = Lines(1000)
    lines.feed(b"\n" * 5000)
    assert lines.waiting == 5000
    assert lines.next() == b""
    assert lines.waiting == 4999


def test_what_is_forgotten_is_of_no_line() -> None:
    lines = Lines(1000)
    lines.feed(b"x" * 3000)
    assert lines.next() is None
    lines.clear()
    lines.feed(b"a\n")
    assert lines.next() == b"a"
