"""Reports of turnkeys: a server may control the process that sends them."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from cellblock.common.secret import Secret, parse_secrets
from cellblock.errors import InvalidInputError, ProtocolError
from cellblock.model.overview import RequestRecord
from cellblock.walls.keys.messages import MESSAGE, REPORTED, SHOWN, Ended, Log, Question, parse_report
from cellblock.walls.keys.session_keys import SessionKeys, bindings_of
from cellblock.walls.keys.turnkey_link import TurnkeyLink

HOSTS = frozenset({"api.test:443"})
ENTRY = {
    "ms": 1_500, "method": "GET", "host": "api.test:443", "path": "/a", "status": 200, "bytes": 3, "secrets": ["KEY"],
    "decision": "allowed",
}  # fmt: skip
QUESTION = {"id": 1, "method": "POST", "url": "/a?b=c", "secrets": ["KEY"]}

WRONG: dict[str, Any] = {
    "no object": [],
    "unknown": {"other": 1},
    "number": {"ended": "1"},
    "no list": {"log": {}},
    "no entry": {"log": [1]},
    "missing": {"log": [{name: value for name, value in ENTRY.items() if name != "bytes"}]},
    "more": {"log": [{**ENTRY, "body": "x"}]},
    "many": {"log": [ENTRY] * (REPORTED + 1)},
    "method": {"log": [{**ENTRY, "method": "G\nT"}]},
    "path": {"log": [{**ENTRY, "path": "/\x1b[2J"}]},
    "long path": {"log": [{**ENTRY, "path": "/" * (SHOWN + 1)}]},
    "host": {"log": [{**ENTRY, "host": "other.test:443"}]},
    "status": {"log": [{**ENTRY, "status": True}]},
    "size": {"log": [{**ENTRY, "bytes": -1}]},
    "time": {"log": [{**ENTRY, "ms": 1.5}]},
    "late": {"log": [{**ENTRY, "ms": 2**50}]},
    "secret": {"log": [{**ENTRY, "secrets": ["OTHER"]}]},
    "twice": {"log": [{**ENTRY, "secrets": ["KEY", "KEY"]}]},
    "decision": {"log": [{**ENTRY, "decision": "maybe"}]},
    "two kinds": {"log": [ENTRY], "ended": 7},
    "question without number": {name: value for name, value in QUESTION.items() if name != "id"},
    "question with a list": {**QUESTION, "url": ["/a"]},
    "question with a control character": {**QUESTION, "url": "/\x1b[2J"},
    "long question": {**QUESTION, "url": "/" * (64 * 1024 + 1)},
    "question with a strange secret": {**QUESTION, "secrets": ["OTHER"]},
    "question with a secret twice": {**QUESTION, "secrets": ["KEY", "KEY"]},
}


def test_a_report_becomes_records() -> None:
    report = parse_report(json.dumps({"log": [ENTRY]}).encode(), HOSTS, {"KEY"})
    assert isinstance(report, Log)
    assert report.records == [RequestRecord(1.5, "GET", "api.test:443", "/a", 200, 3, ("KEY",), "allowed")]


def test_other_messages_are_typed() -> None:
    cases: list[tuple[dict[str, Any], object]] = [
        ({"ended": 7}, Ended(7)),
        (QUESTION, Question(1, "POST", "/a?b=c", ("KEY",))),
    ]
    for said, report in cases:
        assert parse_report(json.dumps(said).encode(), HOSTS, {"KEY"}) == report


def test_a_wrong_report_is_refused() -> None:
    for name in WRONG:
        with pytest.raises(ProtocolError):
            parse_report(json.dumps(WRONG[name]).encode(), HOSTS, {"KEY"})


def test_a_report_is_json() -> None:
    with pytest.raises(InvalidInputError):
        parse_report(b"{", HOSTS, {"KEY"})


def test_a_full_report_fits_into_a_message() -> None:
    longest = {**ENTRY, "ms": 2**47, "method": '"' * SHOWN, "path": "\\" * SHOWN, "host": "x" * 260, "bytes": 2**62}
    assert len(json.dumps({"log": [longest] * REPORTED})) < MESSAGE


async def test_a_wrong_report_ends_the_turnkey_and_records_nothing() -> None:
    keys = SessionKeys(bindings_of(parse_secrets({"KEY": Secret.from_env("KEY", hosts=["api.test"])})))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setblocking(False)
        turnkey = TurnkeyLink(["api.test:443"], {"KEY"}, {}, keys._note)
        turnkey.attach(ours)
        theirs.send(json.dumps({"log": [ENTRY]}).encode())
        theirs.send(json.dumps({"log": [{**ENTRY, "path": "/wrong", "status": "x"}]}).encode())
        await asyncio.sleep(0.05)
        assert [one.path for one in keys.requests] == ["/a"]
        assert theirs.recv(1) == b""
        assert not turnkey.alive
