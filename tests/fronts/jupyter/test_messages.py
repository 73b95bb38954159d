"""Messages of the Jupyter protocol, as WebSockets carry them."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.fronts.jupyter.large_json import check
from cellblock.fronts.jupyter.messages import Message, checked, make, read_plain, read_v1, shown
from wire_cases import brief

HEADER = {"msg_id": "1", "msg_type": "execute_request"}
EXAMPLE = Message("shell", HEADER, {"msg_id": "0"}, {"code": "\ud800ä"}, {"m": 1}, [b"a", b"", b"bc"])


def test_both_forms_say_the_same() -> None:
    cases: list[list[bytes]] = [[], [b"a", b"", b"bc"]]
    for buffers in cases:
        message = Message("shell", HEADER, {"msg_id": "0"}, {"code": "\ud800ä"}, {"m": 1}, buffers)
        assert read_v1(message.v1) == message
        assert read_plain(message.plain) == message
        assert isinstance(message.plain, bytes if buffers else str)


def test_the_offsets_are_those_of_the_documents() -> None:
    assert struct.unpack_from("<7Q", EXAMPLE.v1)[:3] == (9, 80, 85)  # a count, and the places of nine parts' ends
    assert struct.unpack_from(">5I", EXAMPLE.plain)[:2] == (4, 20)  # type: ignore[arg-type]  # it has buffers


def test_a_message_of_a_kernel_has_a_header() -> None:
    made = make("iopub", "status", {"execution_state": "busy", "odd": float("nan")}, HEADER, "s")
    assert made.parent == HEADER
    assert made.header["version"] == "5.3"
    assert json.loads(made.plain)["content"] == {"execution_state": "busy", "odd": None}
    assert made.size > 100


def test_what_is_no_message_is_refused() -> None:
    cases: list[str | bytes] = [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"channel": "shell"}',
        '{"channel": "nowhere", "header": {"msg_id": "1", "msg_type": "x"}}',
        '{"header": {"msg_id": 1, "msg_type": "x"}}',
        '{"header": {"msg_id": "1", "msg_type": "x"}, "content": []}',
        json.dumps({"header": {"msg_id": "x" * 1000, "msg_type": "x"}}),
        b"",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\x00\x00\x00\x0c\x00\x00\x00\xff{}",
    ]
    for said in cases:
        with pytest.raises(ProtocolError):
            read_plain(said)
        with pytest.raises(ProtocolError):
            read_v1(said)


@brief
@given(st.binary(max_size=200))
def test_only_one_error_comes_out(data: bytes) -> None:
    for read in (read_plain, read_v1):
        try:
            read(data)
        except ProtocolError:
            continue


def test_a_message_of_too_many_values_is_refused() -> None:
    """Before it is parsed, which would take seconds."""
    message = Message("shell", HEADER, {}, {"many": [[]] * 60_000}, {}, [])
    for read, said in ((read_plain, message.plain), (read_v1, message.v1)):
        with pytest.raises(ProtocolError, match="more than 40,000 values"):
            read(said)


def test_there_are_not_too_many_buffers() -> None:
    with pytest.raises(ProtocolError, match="at most 64 buffers"):
        checked("shell", [HEADER, {}, {}, {}], [b""] * 65)


def test_a_bundle_is_shown_as_clients_want_it() -> None:
    bundle = {"image/png": b"\x00", "application/json": '{"a": 1}', "a/x+json": "{", "text/plain": "x"}
    assert shown(bundle) == {"image/png": "AA==", "application/json": {"a": 1}, "a/x+json": "{", "text/plain": "x"}


async def test_large_json_is_checked_in_another_process_and_sent_whole() -> None:
    rows = [{"x": number, "y": "ü\ud800", "z": math.nan} for number in range(5_000)]
    found = await check(json.dumps({"rows": rows}))
    assert found is not None
    content = {"data": shown({"application/json": found, "text/plain": "rows"}), "metadata": {"n": math.inf}}
    message = make("iopub", "display_data", content, {}, "s")
    expected = {"rows": [{"x": number, "y": "ü\ud800", "z": None} for number in range(5_000)]}
    for said in (json.loads(message.parts[3]), json.loads(str(message.plain))["content"]):
        assert said == {"data": {"application/json": expected, "text/plain": "rows"}, "metadata": {"n": None}}


async def test_what_is_not_json_is_not_put_into_a_message() -> None:
    for text in ('{"a": 1}, "content": {', "[" * 100_000, "", "[1,]", "nonsense"):
        assert await check(text) is None
