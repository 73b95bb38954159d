"""Requests that clients make from what callers pass, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.operations.base import Request
from cellblock.operations.base_client import BaseClient
from cellblock.operations.checkpoints import Fork
from cellblock.operations.programs import Exec, ReadProcess, Spawn, StopProcess


class Sent(Exception):  # noqa: N818  # not an error
    """Raised instead of an answer."""


class Recorder(BaseClient):
    def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        raise Sent(request, body)


client: Any = Recorder()  # callers pass anything


@pytest.mark.parametrize(
    ("ask", "request_", "body"),
    [
        (
            lambda: client.exec_process(
                "s", "ls", cwd=Path("a"), timeout=1.5, merge=True, max_output=10, stop="group", input="ä"
            ),
            Exec("s", ("/bin/sh", "-c", "ls"), "a", {}, 1500, True, "", 10, "group"),
            "ä".encode(),
        ),
        (
            lambda: client.spawn_process("s", ["ls"], env={"A": None}, stdin=True, pty=(24, 80), keep="all", label="it"),
            Spawn("s", ("ls",), "", {"A": None}, True, 24, 80, False, "", "all", "it"),
            b"",
        ),
        (lambda: client.spawn_process("s", "ls"), Spawn("s", ("/bin/sh", "-c", "ls")), b""),
        (lambda: client.read_process("s", "p1", 5, 0), ReadProcess("s", "p1", 5, 0), b""),
        (lambda: client.stop_process("s", "p1", 0.25), StopProcess("s", "p1", 250, "tree"), b""),
        (lambda: client.fork("s", ["a", "b"], same_random_state=True), Fork("s", ("a", "b"), "", (), True), b""),
        (lambda: client.fork("s", ["a"], files="copy", seeds=[7]), Fork("s", ("a",), "copy", (7,), False), b""),
    ],
)
def test_what_callers_pass_becomes_data(ask: Callable[[], Any], request_: Request[Any], body: bytes) -> None:
    with pytest.raises(Sent) as sent:
        ask()
    assert sent.value.args == (request_, body)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: client.exec_process("s", []), "command must be"),
        (lambda: client.exec_process("s", "ls", timeout=0), "timeout must be"),
        (lambda: client.exec_process("s", "ls", input=3), "input must be bytes or text, not int"),
        (lambda: client.spawn_process("s", "ls", pty=(0, 80)), "the size of a terminal"),
        (lambda: client.read_process("s", "p1", 0, -1), "wait must be"),
        (lambda: client.stop_process("s", "p1", -1), "grace must be"),
        (lambda: client.fork("s", "names"), "a list of names"),
        (lambda: client.fork("s", ["a"], seeds=[2**63]), "a seed must be"),
    ],
)
def test_what_is_wrong_is_refused_with_its_name(ask: Callable[[], Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        ask()
