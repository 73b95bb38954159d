"""Requests and answers as frames: what is not one is an error that says so."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.errors import (
    BusyError,
    CellblockError,
    DaemonError,
    FilesError,
    InvalidInputError,
    OutcomeUnknownError,
    ProtocolError,
)
from cellblock.operations.approvals import Decide
from cellblock.operations.base import Request
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Create
from cellblock.service.daemon.codec import (
    MAX_FIELDS,
    decode_answer,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from cellblock.wire.frames import Frame, FrameParser
from cellblock.wire.packed import Packed, unpack


def frame(data: bytes) -> Frame:
    (found,) = FrameParser().feed(data)
    return found


def test_a_request_arrives_as_it_was_sent() -> None:
    cases: list[Request[Any]] = [
        Create("one", {"sandbox": False}, {"a": "b"}),
        Submit("one", key="k", live=True),
        Decide(("1", "2"), allow=True),
    ]
    for request_ in cases:
        assert decode_request(frame(encode_request(7, request_, b"code"))) == (7, request_, b"code")


def test_large_fields_are_sent_as_the_body() -> None:
    lock = {"packages": ["a==1"], "hashes": {"a": [f"{number:064x}" for number in range(10_000)]}, "exact": True}
    large = Create("one", {"environment": lock})
    arrived = frame(encode_request(7, large))
    assert arrived.header["fields"] is None
    assert decode_request(arrived) == (7, large, b"")
    assert decode_request(frame(encode_request(7, Create("one"), b""))) == (7, Create("one"), b"")
    for body in (b"[]", b"{", b'{"name": 1}', b"{" * 10_000, b"[" + b"0," * 50_000 + b"0]"):
        with pytest.raises(ProtocolError, match="the request 'create' is wrong"):
            decode_request(Frame({"type": "create", "id": 1, "fields": None}, body))


def test_what_is_not_a_request_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"type": "status"}, "needs an id"),
        ({"type": "status", "id": True}, "needs an id"),
        ({"type": "made up", "id": 1}, "'made up' is not a request that the daemon knows"),
        ({"type": "status", "id": 1, "fields": {}}, "the request 'status' is wrong"),
        ({"type": "status", "id": 1, "fields": {"session": 1}}, "the request 'status' is wrong"),
        ({"type": "status", "id": 1, "fields": {"session": "a", "more": 1}}, "the request 'status' is wrong"),
        ({"type": "status", "id": 1, "fields": []}, "the request 'status' is wrong"),
    ]
    for header, said in cases:
        with pytest.raises(ProtocolError, match=said):
            decode_request(Frame(header, b""))


def test_a_request_that_cannot_be_sent_is_the_callers_mistake() -> None:
    cases: list[Request[Any]] = [
        Create("a\ud800", {}, {}),
        Create("a", {"memory": float("nan")}, {}),
        Create("a", {"env": [[[[[[[[[]]]]]]]]]}, {}),
        Create("a", {"env": "a" * MAX_FIELDS}, {}),
        Create("a", {"env": [0] * 50_000}, {}),
        Submit("a" * 65536),
    ]
    for request_ in cases:
        with pytest.raises(InvalidInputError, match=f"the request {request_.op!r} cannot be sent"):
            encode_request(1, request_, b"" if isinstance(request_, Create) else b"code")


def test_an_answer_arrives_as_it_was_sent() -> None:
    cases: list[object] = [None, {"a": [1, "ü", b"\0"]}, b"raw"]
    for answer in cases:
        number, arrived, more = decode_answer(frame(b"".join(encode_reply(3, answer, more=True))))
        assert (number, unpack(arrived) if isinstance(arrived, Packed) else arrived, more) == (3, answer, True)


def test_an_error_arrives_with_its_class_and_what_it_knows() -> None:
    cases: list[CellblockError] = [
        BusyError("later", 2.5),
        OutcomeUnknownError("who knows", "1" * 32),
        FilesError("no", path="a\udcff", errno=2),
    ]
    for error in cases:
        number, arrived, more = decode_answer(frame(encode_error(1, error)))
        assert (number, type(arrived), str(arrived), more) == (1, type(error), str(error), False)
        known = {name: value for name, value in vars(error).items() if name != "path"}
        assert {name: vars(arrived)[name] for name in known} == known


def test_an_error_of_a_class_that_the_client_does_not_have_is_one_of_the_daemon() -> None:
    header = {"type": "error", "id": 1, "error": "os", "details": {}}
    assert type(decode_answer(Frame(header, b"text"))[1]) is DaemonError


def test_what_is_not_an_answer_is_refused() -> None:
    cases: list[dict[str, Any]] = [
        {"type": "reply"},
        {"type": "error", "id": 1},
        {"type": "reply", "id": 1, "more": 1, "raw": True},
    ]
    for header in cases:
        with pytest.raises(ProtocolError, match="is not an answer of the daemon"):
            decode_answer(Frame(header, b""))
