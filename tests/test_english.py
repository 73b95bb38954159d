"""Documents, docstrings, comments and messages avoid phrases that readers have to read twice."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "cellblock").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md")), *(ROOT / "docs/site").glob("*.md")]

PHRASES = {
    r"that of|those of": "repeat the noun",
    r"the ones? that|one that is": "repeat the noun",
    r"(?<!all )(?<!some )(?<!each )(?<!none )(?<!one )of which": "a sentence of its own",
    r"what it has|whatever|whoever": "name the thing",
    r"so many": "a number of",
    r"(?:there (?:is|are) none)": "or None; if missing",
    r"in the place of": "instead of",
    r"(?:is|are) told(?! to)": "gets, reads",
    r"(?:go|goes|going|went) on": "continue",
    r"by (?:itself|themselves)": "automatically, alone",
    r"(?:bring|brings|brought|come|comes|came|take|takes|taken|put|puts|go|goes|gone|going) back": "restore, return, reverse",
    r"ways? back": "restore",
    r"somebody|anybody|(?<!``)nobody(?!``)": "another program, a person, no one",
    r"anew|any more|any longer": "again, no longer",
    r"(?:is|are|was) gone": "has ended, was removed, was lost",
    r"for good": "permanently",
    r"all the same|nevertheless": "anyway",
    r"stays? as (?:it|they)|as it was|(?<!soon )as they were": "unchanged",
}
"""Phrase → what to write instead."""

_ANY = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b")  # in lower case: to ignore the case takes three times as long
_CONTINUED = re.compile(r"\n\s*#?")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|https?://\S+", re.DOTALL | re.MULTILINE)


def found_in(text: str, first: int = 1) -> Iterator[str]:
    """Yield each phrase in a text, with its line."""
    for match in _ANY.finditer(text.replace("\n", " ").lower()):
        yield f"{first + text.count(chr(10), 0, match.start())}: {match[0]}"


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and the strings of a module that have several words, with their first lines.

    A module without a phrase anywhere is not taken apart: that would take seconds for all.
    """
    if not _ANY.search(_CONTINUED.sub(" ", source).lower()):
        return
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds and " " in token.string:
            yield token.start[0], _CONTINUED.sub("\n", token.string)


def test_documents_are_in_standard_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place}"
        for path in DOCUMENTS
        for place in found_in(_CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_docstrings_comments_and_messages_are_in_standard_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place}"
        for path in SOURCES
        for line, text in words_of(path.read_text(encoding="utf-8"))
        for place in found_in(text, line)
    ]
    assert found == []


def test_phrases_are_found() -> None:
    for text in ("the state\nof which it is", "It goes\non", "None if there is none", "Somebody", "is gone"):
        assert len([*found_in(text)]) == 1


def test_standard_phrases_are_not() -> None:
    for text in ("all of which", "as soon as they were", "``nobody``", "is told to", "there is no session"):
        assert [*found_in(text)] == []


def test_messages_of_a_module_are_read() -> None:
    module = 'raise ValueError(\n    f"session {name} goes on"\n    " anew"\n)  # for good\n'
    assert {place.partition(": ")[2] for line, text in words_of(module) for place in found_in(text, line)} == {
        "goes on",
        "anew",
        "for good",
    }
