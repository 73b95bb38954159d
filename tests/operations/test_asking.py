"""Requests that are made from what callers pass, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.operations.asking import as_bytes, exec_of, fork_of, read_of, spawn_of, stop_of
from cellblock.operations.checkpoints import Fork
from cellblock.operations.programs import Exec, ReadProcess, Spawn, StopProcess


def test_what_callers_pass_becomes_data() -> None:
    shell = ("/bin/sh", "-c", "ls")
    assert exec_of("s", "ls", Path("a"), None, 1.5, True, "", 10, "group") == Exec(
        "s", shell, "a", {}, 1500, True, "", 10, "group"
    )
    assert spawn_of("s", ["ls"], "", {"A": None}, True, (24, 80), False, "", "all", "it") == Spawn(
        "s", ("ls",), "", {"A": None}, True, 24, 80, False, "", "all", "it"
    )
    assert spawn_of("s", "ls", "", None, False, None, False, "", "tail", "") == Spawn("s", shell)
    assert read_of("s", "p1", 5, 0) == ReadProcess("s", "p1", 5, 0)
    assert stop_of("s", "p1", 0.25, "tree") == StopProcess("s", "p1", 250, "tree")
    assert fork_of("s", ["a", "b"], None, None, True) == Fork("s", ("a", "b"), "", (), True)
    assert fork_of("s", ["a"], "copy", [7], False) == Fork("s", ("a",), "copy", (7,), False)
    assert (as_bytes("ä", "input"), as_bytes(b"\xff", "input")) == ("ä".encode(), b"\xff")


def test_what_is_wrong_is_refused_with_its_name() -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: exec_of("s", [], "", None, 1, False, "", 10, "tree"), "command must be"),
        (lambda: exec_of("s", "ls", "", None, 0, False, "", 10, "tree"), "timeout must be"),
        (lambda: spawn_of("s", "ls", "", None, False, (0, 80), False, "", "tail", ""), "the size of a terminal"),
        (lambda: read_of("s", "p1", 0, -1), "wait must be"),
        (lambda: stop_of("s", "p1", -1, "tree"), "grace must be"),
        (lambda: fork_of("s", "names", None, None, False), "a list of names"),
        (lambda: fork_of("s", ["a"], None, [2**63], False), "a seed must be"),
        (lambda: as_bytes(3, "input"), "input must be bytes or text, not int"),  # type: ignore[arg-type]
    ]
    for make, why in cases:
        with pytest.raises(InvalidInputError, match=why):
            make()
