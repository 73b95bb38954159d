"""A server's words, made safe for source code and for a reader."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from cellblock.tools.calling.text import docstring, first_line, plain


def test_nothing_is_hidden() -> None:
    cases: list[tuple[str, str]] = [
        ("  a\tb \r\n c  ", "a    b\n c"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("\ud800", "\\ud800"),
        ("a\u2028b", "a\\u2028b"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("Grüße, 世界", "Grüße, 世界"),
    ]
    for words, shown in cases:
        assert plain(words) == shown


def test_long_words_are_cut_and_say_so() -> None:
    assert plain("x" * 11, 10) == "x" * 10 + "…"
    assert plain("x" * 10, 10) == "x" * 10


def test_the_first_sentence_or_line_stands_for_all() -> None:
    cases: list[tuple[str, str]] = [
        ("One. Two.", "One."),
        ("One\nTwo", "One"),
        ("a" * 200, "a" * 120 + "…"),
        ("No end", "No end"),
        ("", ""),
    ]
    for words, line in cases:
        assert first_line(words) == line


@given(st.text())
def test_a_docstring_evaluates_to_its_text(words: str) -> None:
    text = plain(words)
    source = docstring(text)
    assert ast.literal_eval(source) == (f"{text}\n" if "\n" in text else text)


def test_a_docstring_cannot_be_left() -> None:
    for text in ('"', '""" + evil()', "\\", '\\"', 'a"', '"""', '"' * 4, '"' * 5, '"' * 6, 'a""'):
        assert ast.literal_eval(docstring(text)) == text
