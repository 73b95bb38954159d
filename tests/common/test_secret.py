"""Declarations of secrets: texts, data and objects, and errors that do not repeat a value."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError, Secret
from cellblock.common.secret import parse_secrets


def test_declarations_become_data_that_means_the_same() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        ("GITHUB_TOKEN", {"GITHUB_TOKEN": {}}),
        (["A", "B=env:X"], {"A": {}, "B": {"source": "env:X"}}),
        ("K=file:~/k@api.test", {"K": {"source": "file:~/k", "hosts": ["api.test"]}}),
        ("K=file:/k@a.test,b.test:8443", {"K": {"source": "file:/k", "hosts": ["a.test", "b.test:8443"]}}),
        ("K=op://v/me@example.org/p w", {"K": {"source": "op://v/me@example.org/p w"}}),
        ({"K": "env:X"}, {"K": {"source": "env:X"}}),
        ({"K": {"hosts": ["a.test"]}}, {"K": {"hosts": ["a.test"]}}),
        (
            {"K": Secret.from_command(["pass", "show", "a b"], hosts="a.test", header="X-Key: {}", refresh=9)},
            {"K": {"source": "command:pass show 'a b'", "hosts": ["a.test"], "header": ["X-Key: {}"], "refresh": 9}},
        ),
        ({"K": Secret.from_keyring("s", "u", attach=True)}, {"K": {"source": "keyring:s/u", "attach": True}}),
        ({"K": Secret.from_file("/k", path="bot{}")}, {"K": {"source": "file:/k", "path": "bot{}"}}),
        ({"K": Secret.from_op("op://a/b/c", query="k")}, {"K": {"source": "op://a/b/c", "query": "k"}}),
        (
            {"K": Secret.from_env("X", body=True, responses="pass")},
            {"K": {"source": "env:X", "body": True, "responses": "pass"}},
        ),
        ({"K": Secret.from_env("X", basic="u:{}")}, {"K": {"source": "env:X", "basic": "u:{}"}}),
    ]
    for given, data in cases:
        assert parse_secrets(given) == data
        assert parse_secrets(data) == data


def test_a_wrong_declaration_is_refused_without_its_value() -> None:
    cases: list[tuple[Any, str]] = [
        ("1K", "name of an environment variable"),
        ("K=ghp_the_value_itself", "never the value"),
        ({"K": "ghp_the_value_itself"}, "never the value"),
        ({"K": {"value": "ghp_the_value_itself"}}, "no key 'value'"),
        ({"K": 5}, "secret K is invalid"),
        (5, "secrets must be a dict"),
        ([5], "secrets must be a dict"),
        ([f"K{number}" for number in range(65)], "at most 64"),
        ("K=file:relative", "absolute path"),
        ({"K": {"header": "X-Key"}}, "must contain {} once"),
        ({"K": {"header": "X-Key: {} {}"}}, "must contain {} once"),
        ({"K": {"basic": "{}"}}, "must contain a colon"),
        ({"K": {"path": "bot"}}, "must contain {} once"),
        ({"K": {"hosts": [5]}}, "hosts of a secret"),
        ({"K": {"query": 5}}, "query of a secret"),
        ({"K": {"attach": "yes"}}, "attach of a secret"),
        ({"K": {"body": 1}}, "body of a secret"),
        ({"K": {"responses": "both"}}, "responses of a secret"),
        ({"K": {"refresh": 0}}, "refresh of a secret"),
    ]
    for given, message in cases:
        with pytest.raises(InvalidInputError) as caught:
            parse_secrets(given)
        assert message in str(caught.value)
        assert "ghp_" not in str(caught.value)


def test_a_command_is_a_list() -> None:
    with pytest.raises(InvalidInputError, match="list of words"):
        Secret.from_command("pass show k")
