"""Rules: the first that is about a call decides, and a file that is wrong is named."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.common.glob import Glob
from cellblock.errors import InvalidInputError
from cellblock.tools.approvals.call import Call, Hints
from cellblock.tools.approvals.rules import Rule, Rules, decide

LETTERS = "ab/.*?"


def call(server: str = "files", tool: str = "read_file", hints: Hints | None = None, **arguments: Any) -> Call:
    return Call.freeze("tool", server, tool, arguments, hints)


def outcome(rule: dict[str, Any], asked: Call) -> str:
    return decide(Rules.parse({"rule": [rule]}), asked).outcome


@given(st.text(LETTERS, max_size=8), st.text("ab/.", max_size=10))
def test_patterns_match_what_the_equivalent_expression_matches(pattern: str, text: str) -> None:
    parts = re.findall(r"\*+|.", pattern)
    meaning = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(meaning.get(part[:2], re.escape(part)) for part in parts)
    assert Glob(pattern, paths=True).matches(text) == bool(re.fullmatch(expression, text, re.DOTALL))
    expression = "".join(".*" if part[0] == "*" else "." if part == "?" else re.escape(part) for part in parts)
    assert Glob(pattern, paths=False).matches(text) == bool(re.fullmatch(expression, text, re.DOTALL))


def test_no_text_keeps_a_pattern_busy() -> None:
    hostile = "a" * 60_000
    began = time.process_time()
    for pattern in ("**a*a*a*a*a*b", "*a" * 30 + "b", "**x*y"):
        assert outcome({"decision": "deny", "arguments": {"p": pattern}}, call(p=hostile)) == "ask"
    assert time.process_time() - began < 5


OUTCOMES: list[Literal["allow", "deny", "ask"]] = ["allow", "deny", "ask"]
RULES = st.builds(
    Rule, st.sampled_from(OUTCOMES), server=st.sampled_from(["*", "files", "g*"]), tool=st.sampled_from(["*", "read_*", "w?"])
)


@given(st.lists(RULES), st.sampled_from(OUTCOMES), st.sampled_from(["files", "git"]), st.sampled_from(["read_x", "wx", "z"]))
def test_the_first_match_decides(rules: list[Rule], default: Any, server: str, tool: str) -> None:
    asked = call(server, tool)
    verdict = decide(Rules(tuple(rules), default), asked)
    about = [rule for rule in rules if rule.matches(asked)]
    assert verdict.outcome == (about[0].decision if about else default)
    assert verdict.rule == (str(about[0]) if about else "default")
    # What comes after the rule that decided has no say.
    assert decide(Rules((*rules, Rule("allow")), default), asked).outcome == (about[0].decision if about else "allow")


def test_arguments_that_are_allowed() -> None:
    cases: list[tuple[Any, Any, bool]] = [
        ("/data/*", "/data/a", True),
        ("/data/*", "/data/a/b", False),
        ("/data/**", "/data/a/b", True),
        ("/data/**", "/data/../etc/passwd", False),
        ("/data/**", "/data/a/..", False),
        ("/data/**", "/data/a..b", True),
        ("/data/../x", "/data/../x", True),
        ("SELECT **", "SELECT a/b\nFROM c", True),
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (True, 1, False),
        (["a"], ["a"], True),
        (["*"], ["a"], False),
        ({"a": 1}, {"a": True}, False),
        ("1", 1, False),
        ("*", None, False),
    ]
    for pattern, value, matches in cases:
        rule = {"decision": "allow", "arguments": {"path": pattern}}
        assert outcome(rule, call(path=value)) == ("allow" if matches else "ask")


def test_detours_do_not_avoid_a_rule_that_denies() -> None:
    for path in ("/etc/shadow", "/srv/../etc/shadow", "/etc/../etc/shadow", "/etc/x/../../srv"):
        assert outcome({"decision": "deny", "arguments": {"path": "/etc/**"}}, call(path=path)) == "deny"


def test_what_is_too_long_to_compare_is_not_allowed_and_is_denied() -> None:
    long = call(path="/data/" + "a" * 100_000)
    assert outcome({"decision": "allow", "arguments": {"path": "/data/**"}}, long) == "ask"
    assert outcome({"decision": "deny", "arguments": {"path": "/etc/**"}}, long) == "deny"


def test_a_missing_argument_matches_nothing() -> None:
    assert outcome({"decision": "allow", "arguments": {"path": "**"}}, call()) == "ask"


def test_rules_are_about_tools_unless_they_say_otherwise() -> None:
    shell = Call.freeze("shell", "shell", "shell", {"command": "ls"})
    assert outcome({"decision": "allow"}, shell) == "ask"
    assert outcome({"decision": "allow", "kind": "shell", "arguments": {"command": "ls"}}, shell) == "allow"


def test_the_text_of_a_command_is_not_enough_where_the_code_has_changed_variables() -> None:
    ls = Call.freeze("shell", "shell", "shell", {"command": "ls", "environment": {"PATH": "/mine"}})
    by_text = {"kind": "shell", "arguments": {"command": "l*"}}
    assert outcome({"decision": "allow", **by_text}, ls) == "ask"
    assert outcome({"decision": "deny", **by_text}, ls) == "deny"
    assert outcome({"decision": "allow", "kind": "shell"}, ls) == "allow"
    named = {"command": "ls", "environment": {"PATH": "/mine"}}
    assert outcome({"decision": "allow", "kind": "shell", "arguments": named}, ls) == "allow"


def test_the_text_of_a_script_is_not_enough_without_the_program_that_reads_it() -> None:
    for tool in ("shell", "shell_magic"):
        evil = Call.freeze("shell", "shell", tool, {"command": "git status", "program": ["sh", "-c", "evil"]})
        for arguments in (
            {"command": "git status"},
            {"command": "git *"},
            {"cwd": "/work"},
            {"command": "*", "environment": {}},
        ):
            rule = {"decision": "allow", "kind": "shell", "arguments": arguments}
            assert outcome(rule, evil) == "ask"
        assert outcome({"decision": "deny", "kind": "shell", "arguments": {"command": "git *"}}, evil) == "deny"
        assert outcome({"decision": "allow", "kind": "shell", "tool": tool}, evil) == "allow"
        named = {"command": "git status", "program": ["sh", "-c", "evil"]}
        assert outcome({"decision": "allow", "kind": "shell", "arguments": named}, evil) == "allow"
        named["program"] = ["sh"]
        assert outcome({"decision": "allow", "kind": "shell", "arguments": named}, evil) == "ask"


def test_hints_make_a_rule_match() -> None:
    rule = {"decision": "allow", "read_only": True}
    assert outcome(rule, call(hints=Hints(read_only=True))) == "allow"
    assert outcome(rule, call()) == "ask"
    assert outcome({"decision": "deny", "destructive": True}, call()) == "deny"
    assert outcome({"decision": "deny", "destructive": True}, call(hints=Hints(destructive=False))) == "ask"


FILE = """
default = "deny"

[[rule]]
decision = "allow"
server = "files"
tool = "read_*"
arguments = { path = "/srv/data/**" }

[[rule]]
decision = "ask"
server = "files"
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(FILE)
    rules = Rules.load(path)
    assert decide(rules, call(path="/srv/data/a/b")).rule == 'allow files.read_* path="/srv/data/**"'
    assert decide(rules, call(tool="write_file")).outcome == "ask"
    assert decide(rules, call(server="git")) == decide(Rules(default="deny"), call())
    path = tmp_path / "rules.json"
    path.write_text('{"rule": [{"decision": "deny", "server": "git"}]}')
    assert Rules.load(path) == Rules((Rule("deny", server="git"),))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("defualt = 'ask'", "unknown key 'defualt'; did you mean 'default'"),
        ("[[rule]]\ndecison = 'allow'", "rule 1: unknown key 'decison'; did you mean 'decision'"),
        ("[[rule]]\nserver = 'a'", "rule 1: decision is missing"),
        ("[[rule]]\ndecision = 'permit'", "allow, deny or ask, not 'permit'"),
        ("[[rule]]\ndecision = 'allow'\n[[rule]]\ndecision='ask'\nkind='tol'", "rule 2: kind must be"),
        ("[[rule]]\ndecision = 'allow'\nserver = 1", "server must be a pattern"),
        ("[[rule]]\ndecision = 'allow'\nread_only = 'yes'", "read_only must be true or false"),
        ("[[rule]]\ndecision = 'allow'\narguments = ['a']", "arguments must be a table"),
        ("[[rule]]\ndecision = 'allow'\narguments = {a = 2026-01-01}", "arguments.a"),
        ("[rule]\ndecision = 'allow'", "must be a list of tables"),
        ("rule = [1]", "rule 1 must be a table"),
        (f"default = 0x{'f' * 5000}", "not a value that is too large to show"),
        ("default = ['ask']", "default must be"),
        ("= nothing", "cannot be parsed"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=re.escape(complaint)) as caught:
        Rules.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        Rules.load(tmp_path / "rules.toml")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("keys.toml", "a" + ".a" * 30_000 + " = 1", "200 dots"),
        ("arrays.toml", "a = " + "[" * 5_000, "nested too deeply"),
        ("arrays.json", "[" * 30_000, "nested deeper"),
        ("many.json", "[" * 200_000, "40,000 values"),
        ("many.toml", "a = [" + "1," * 30_000 + "]", "10,000 keys"),
        ("twice.json", '{"default": "ask", "default": "allow"}', "occurs twice"),
        ("wide.toml", "# " + "x" * 200_000, "131,072 bytes"),
        ("large.toml", "# " + "x" * 2_000_000, "1048576 bytes"),
    ],
)
def test_a_file_that_keeps_a_parser_busy_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError, match=said):
        Rules.load(tmp_path / name)


def test_what_never_ends_is_no_file_of_rules(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", "/dev/zero"):
        with pytest.raises(InvalidInputError, match="regular file"):
            Rules.load(path)


SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab*?/.\ud800", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "environment"]), inner, max_size=3),
    max_leaves=8,
)
TABLES = st.fixed_dictionaries(
    {"decision": st.sampled_from(OUTCOMES) | SETTINGS},
    optional={
        "kind": st.sampled_from(["tool", "shell", "network"]) | SETTINGS,
        "server": SETTINGS,
        "tool": SETTINGS,
        "arguments": SETTINGS,
        "read_only": SETTINGS,
        "destructive": SETTINGS,
        "other": SETTINGS,
    },
)


@given(st.fixed_dictionaries({"rule": st.lists(TABLES, max_size=3) | SETTINGS}, optional={"default": SETTINGS}) | SETTINGS)
def test_rules_of_any_form_are_refused_or_decide(data: Any) -> None:
    try:
        rules = Rules.parse(data)
    except InvalidInputError:
        return
    for asked in (call(a="ab/b", b=[{"a": None}]), Call.freeze("shell", "shell", "shell", {"environment": {"a": 1}})):
        assert decide(rules, asked).outcome in OUTCOMES


def test_a_pattern_that_is_too_long_is_refused_when_it_is_read() -> None:
    for key in ("server", "tool"):
        for length, broken in ((4096, False), (4097, True)):
            rule = {"decision": "deny", key: "a" * (length - 1) + "*"}
            arguments = {"decision": "deny", "arguments": {"a": "a" * (length - 1) + "*"}}
            for table in (rule, arguments):
                assert _is_refused(table) is broken


def test_values_of_any_depth_are_refused_or_compared() -> None:
    for depth in (50, 400, 100_000):
        deep: Any = 1
        for _ in range(depth):
            deep = [deep]
        if not _is_refused({"decision": "deny", "arguments": {"a": deep}}):
            rules = Rules.parse({"rule": [{"decision": "deny", "arguments": {"a": deep}}]})
            assert decide(rules, call(a=[[[1]]])).outcome == "ask"


def _is_refused(table: dict[str, Any]) -> bool:
    try:
        rules = Rules.parse({"rule": [table]})
    except InvalidInputError as error:
        return "the rules: rule 1" in str(error)
    decide(rules, call(a="b"))
    return False
