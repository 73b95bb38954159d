"""What waits in the inbox, said as a rule: the rule allows exactly such calls, or is not said."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cellblock.tools.approvals.call import Call
from cellblock.tools.approvals.rules import Rules

pytestmark = pytest.mark.clients

RULE = Path(__file__).parents[2] / "console" / "src" / "rule.js"
SCRIPT = f"""
import {{ ruleOf }} from {json.dumps(RULE.as_uri())};
import {{ readFileSync }} from "node:fs";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(([pending, scope]) => ruleOf(pending, scope))));
"""

HARMLESS: list[tuple[Any, ...]] = [
    ("tool", "git", "push", {"branch": "main", "force": True, "depth": 3, "ratio": 0.5}),
    ("tool", "my server", "a.b", {"text": 'line\nand "quotes" \\ and \x00 \x7f \u202e \u2028 é 🐍', "": 1}),
    ("tool", "files", "write", {"where": {"path": "/srv", "more": [1, [2, {"x": []}]]}, "tags": []}),
    ("tool", "files", "list", {}),
    ("shell", "shell", "shell", {"command": "date; echo '$HOME'", "environment": {"A": "1"}}),
    ("network", "network", "connect", {"host": "example.org", "port": 443}),
    ("http", "api.example.org", "POST", {"host": "api.example.org", "method": "POST", "path": "/a b"}),
    ("server", "git", "start", {"command": ["git-server", "--all"]}),
]
UNSAYABLE: list[tuple[Any, ...]] = [
    ("tool", "git", "push", {"branch": "feature/*"}),
    ("tool", "git?", "push", {}),
    ("shell", "shell", "shell", {"command": "ls ?"}),
    ("tool", "git", "push", {"branch": None}),
    ("tool", "git", "push", {"deep": [{"x": None}]}),
    ("tool", "git", "push", {"text": "\ud800"}),
]


def said(calls: list[tuple[Any, ...]], scope: str) -> list[dict[str, str]]:
    names = ("kind", "server", "tool", "arguments")
    given = json.dumps([[dict(zip(names, call, strict=True)), scope] for call in calls])
    done = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT], input=given.encode(), stdout=subprocess.PIPE, check=True
    )
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_rule_allows_the_call_from_which_it_was_made() -> None:
    for scope in ("call", "tool"):
        for (kind, server, tool, arguments), rule in zip(HARMLESS, said(HARMLESS, scope), strict=True):
            rules = Rules.parse(tomllib.loads(rule["text"]))
            assert rules.rules[0].matches(Call.freeze(kind, server, tool, arguments)), rule
            for name in {*arguments} - ({"host", "method"} if kind == "http" else set()):
                other = {**arguments, name: "another"}
                assert rules.rules[0].matches(Call.freeze(kind, server, tool, other)) == (scope == "tool"), (rule, name)


def test_what_no_rule_says_exactly_is_not_said() -> None:
    assert all("text" not in rule and rule["why"] for rule in said(UNSAYABLE, "call"))
