"""Streams of events, split by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.tools.mcp import events
from cellblock.tools.mcp.events import Event, EventError, Events


def read(*pieces: bytes, limit: int = 1000) -> list[Event]:
    found, splitter = [], Events(limit)
    for piece in pieces:
        splitter.feed(piece)
        while (event := splitter.next()) is not None:
            found.append(event)
    return found


STREAM = (
    b": hello\n\nevent: endpoint\ndata: /post\n\nid: 7\nretry: 100\ndata:\n\ndata: {\ndata:  1}\nid: 8\n\n"
    b"event: odd\nid: 9\ndata: x\n\nretry: 99999999\nretry: 0\ndata: 2\n\ndata: not whole"
)
EVENTS = [
    Event(b"endpoint", b"/post", b""),
    Event(b"", b"", b"id: 7\nretry: 100\n"),
    Event(b"", b"{  1}", b"id: 8\n"),
    Event(b"", b"", b"id: 9\n"),
    Event(b"", b"2", b""),
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, len(STREAM) * 2), max_size=20))
def test_a_stream_is_the_same_however_it_is_cut(end: bytes, cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", end)
    edges = [0, *sorted(cuts), len(stream)]
    assert read(*(stream[begin:stop] for begin, stop in pairwise(edges))) == EVENTS


@given(cut=st.integers(0, 8))
def test_a_byte_order_mark_may_come_first(cut: int) -> None:
    stream = b"\xef\xbb\xbfdata: {}\n\ndata: \xef\xbb\xbf\n\n"
    assert read(stream[:cut], b"", stream[cut:]) == [Event(b"", b"{}", b""), Event(b"", b"\xef\xbb\xbf", b"")]
    assert read(b"", b"\xefdata: {}\n\n") == []


def test_an_event_is_sent_on_in_as_few_lines_as_possible() -> None:
    sent = b"".join(event.encoded() for event in EVENTS)
    assert sent.startswith(b"event: endpoint\ndata: /post\n\nid: 7\nretry: 100\n\ndata: {  1}\nid: 8\n\n")
    assert read(sent) == EVENTS


def test_an_event_over_its_limit_is_refused() -> None:
    cases: list[bytes] = [
        b"data: " + b"x" * 2000,
        b"data: " + b"x" * 2000 + b"\n\n",
        b"data: xxxx\n" * 100,
        b"id: " + b"1" * 1000 + b"\n",
    ]
    for piece in cases:
        with pytest.raises(EventError, match="more than 1000 bytes"):
            read(piece)


def test_an_event_of_too_many_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_LINES", 10)
    assert len(read(b"data: x\n" * 10 + b"\n")) == 1
    with pytest.raises(EventError, match="more than 10 lines"):
        read(b"data:\n" * 12)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_nothing_but_an_event_or_its_error_comes_of_garbage(pieces: list[bytes]) -> None:
    try:
        for event in read(*pieces, limit=100):
            assert len(event.data) <= 100
            assert b"\n" not in event.data
    except EventError:
        pass
