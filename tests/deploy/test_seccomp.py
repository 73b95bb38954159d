"""The container's system-call profile: Docker's own, and no more than what a native sandbox is made with."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from deploy import make_seccomp  # noqa: E402

# With a control group to start in, process 1 is made by clone3. No container gives an ordinary user a group.
_NOT_IN_CONTAINERS = {"clone3"}


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    """The profile that containers are started with."""
    loaded: dict[str, Any] = json.loads((ROOT / "deploy" / "seccomp.json").read_text())
    return loaded


def test_the_profile_is_dockers_and_what_the_list_adds(profile: dict[str, Any]) -> None:
    added = make_seccomp.added()
    assert profile["syscalls"][-len(added) :] == added
    profile = {**profile, "syscalls": profile["syscalls"][: -len(added)]}
    assert hashlib.sha256(make_seccomp.written(profile).encode()).hexdigest() == make_seccomp.DEFAULT_SHA256


def test_each_added_call_has_a_reason_and_was_refused_before(profile: dict[str, Any]) -> None:
    allowed = _allowed(profile["syscalls"][: -len(make_seccomp.ADDED)])
    for names, _, reason in make_seccomp.ADDED:
        assert reason
        assert not set(names.split()) & allowed


@pytest.mark.slow
def test_what_makes_a_sandbox_is_allowed(profile: dict[str, Any]) -> None:
    used = {name for path in Path(cellblock.__file__).parent.rglob("*.py") for name in _calls(path)}
    assert {"clone", "pivot_root", "open_tree", "openat2", "move_mount"} <= used
    assert used - _NOT_IN_CONTAINERS - _allowed(profile["syscalls"]) == set()


def test_clone_and_unshare_make_no_namespace_without_a_user_namespace() -> None:
    rules = [rule for rule in make_seccomp.added() if {"clone", "unshare"} & set(rule["names"])]
    limits = [argument for rule in rules for argument in rule["args"]]
    new_user = {"index": 0, "value": 0x10000000, "valueTwo": 0x10000000, "op": "SCMP_CMP_MASKED_EQ"}
    assert [rule["names"] for rule in rules] == [["clone"], ["unshare"], ["unshare"]]
    assert limits == [new_user, new_user, {"index": 0, "value": 0x02000000, "op": "SCMP_CMP_EQ"}]


def _allowed(rules: list[dict[str, Any]]) -> set[str]:
    """What an ordinary user's process may call, in some way at least, in a container without capabilities."""
    granted = [
        rule
        for rule in rules
        if rule["action"] == "SCMP_ACT_ALLOW"
        and not {"caps", "arches"} & {*rule.get("includes", {})}
        and "excludes" not in rule
    ]
    return {name for rule in granted for name in rule["names"]}


def _calls(path: Path) -> Iterator[str]:
    """The system calls that a module makes by name: ``call("fsopen", …)`` and ``number("clone")``."""
    text = path.read_text()
    if not re.search(r"\b(call|number)\(", text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("call", "number"):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield name
