"""Patterns: compared with regular expressions, and with the texts that keep those busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import InvalidInputError
from cellblock.common.glob import MAX_PATTERN, Glob


def as_expression(pattern: str, paths: bool) -> str:
    inside = "[^/]" if paths else "."
    parts = re.findall(r"\*+|.", pattern, re.DOTALL)
    return "".join(
        ".*" if part[:2] == "**" else f"{inside}*" if part == "*" else inside if part == "?" else re.escape(part)
        for part in parts
    )


@given(st.text("ab/*?é𝄞\n", max_size=8), st.text("ab/é𝄞\n", max_size=10), st.booleans())
def test_a_pattern_means_what_the_expression_means(pattern: str, text: str, paths: bool) -> None:
    wanted = re.fullmatch(as_expression(pattern, paths), text, re.DOTALL) is not None
    assert Glob(pattern, paths=paths).matches(text) is wanted


def test_half_a_character_is_a_character() -> None:
    assert Glob("a?c", paths=True).matches("a\ud800c")


def test_a_text_that_nearly_matches_is_decided_as_soon() -> None:
    for pattern in ("**a*c*b", "*a*a*a*c*b", "**?*a?*c*b", "?**?**?c**b", "*" * 3000 + "cb"):
        glob = Glob(pattern, paths=True)
        assert not glob.matches("a" * 64 * 1024 + "b")
        assert glob.matches("a" * 64 * 1024 + "cb")


def test_a_pattern_has_a_longest_length() -> None:
    Glob("a" * MAX_PATTERN, paths=True)
    with pytest.raises(InvalidInputError, match="4096 characters"):
        Glob("a" * (MAX_PATTERN + 1), paths=True)
