"""Makes untrusted text safe for a terminal by escaping control sequences."""

from __future__ import annotations

import re

# Control characters of both sets (a single C1 character can start a sequence). Characters that change the direction of text,
# so that it reads differently. Line ends that only some programs know. Lone surrogates, which cannot be written.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_STEERING_IN_LINES = re.compile(_STEERING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = True) -> str:
    r"""Escape everything in a text that a terminal would act on: colours, titles, the clipboard, the cursor.

    Results are data and contain what the code wrote. Use this to print a session's output, names or tracebacks. Otherwise a
    sequence in them could set the title, fill the clipboard (OSC 52), or overwrite earlier lines. Colours are escaped too,
    because nothing distinguishes harmless sequences on every terminal.

    Args:
        text: The untrusted text.
        lines: Whether to keep line feeds and tabs. Escape them for names that are printed within a line.

    Returns:
        The text, with escapes as in Python strings: ``\x1b``.
    """
    if lines:
        return _STEERING_IN_LINES.sub(_escaped, text.replace("\r\n", "\n"))
    return _STEERING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found.group())[1:-1]
