"""Makes a server's text safe to put into a docstring."""

from __future__ import annotations

import re
import unicodedata

_MOST = 4000
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[^\W\d_])(?![a-z])")  # not after "e.g."
# Control, format (including text direction), surrogate, private and unassigned characters, separators.
_SHOWN_AS_ESCAPES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def plain(words: str, most: int = _MOST) -> str:
    """Return text without hidden characters.

    Args:
        words: The server's text.
        most: Maximum characters to keep.

    Returns:
        The text, with escapes for invisible characters, and cut with an ellipsis.
    """
    cut = words[:most].replace("\r\n", "\n").replace("\t", "    ")
    if not cut.isascii() or not cut.replace("\n", "").isprintable():
        cut = "".join(map(_shown, cut))
    lines = "\n".join(line.rstrip() for line in cut.strip().split("\n"))
    return f"{lines}…" if len(words) > most else lines


def first_line(words: str, most: int = 120) -> str:
    """Return the first sentence or line of a text, on one line."""
    line = plain(words, 4 * most).partition("\n")[0]
    sentence = _SENTENCE.split(line, maxsplit=1)[0]
    return sentence if len(sentence) <= most else f"{sentence[:most].rstrip()}…"


def docstring(text: str, indent: str = "") -> str:
    r"""Render a docstring, quotes included.

    Args:
        text: A text returned by `plain`, or one of cellblock's own.
        indent: The indentation of its lines, except the first one.

    Returns:
        Source that evaluates to the text: backslashes are doubled, and three quotes never follow each other.
    """
    lines = text.replace("\\", "\\\\").replace('"""', r"\"\"\"").split("\n")
    body = "\n".join([lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])])
    if len(lines) > 1:
        return f'"""{body}\n{indent}"""'
    # Of trailing quotes, those beyond the last full triple are not escaped yet, and would end the docstring early.
    open_quotes = (len(text) - len(text.rstrip('"'))) % 3
    return f'"""{body[:-1]}\\""""' if open_quotes else f'"""{body}"""'


def _shown(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _SHOWN_AS_ESCAPES:
        return character
    return character.encode("unicode_escape").decode("ascii")
