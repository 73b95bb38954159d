"""Makes untrusted text safe for a terminal: control sequences are shown instead of obeyed."""

from __future__ import annotations

import re

# Control characters of both sets (a lone C1 character begins a sequence, too); what turns the direction of text around, so
# that it reads otherwise than it is; line ends that only some programs know; and halves of characters, which cannot be
# written.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_STEERING_IN_LINES = re.compile(_STEERING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return text in which everything is escaped that a terminal would act on: colours, titles, the clipboard, the cursor.

    Results are data and hold what the code wrote. Use this to print output, names or tracebacks of a session: a sequence in
    them could otherwise set the title, fill the clipboard (OSC 52), or overwrite earlier lines. Colours are escaped as well,
    because nothing distinguishes harmless sequences on every terminal.

    Args:
        text: The text that the code wrote.
        lines: Keep line feeds and tabs. Without it, they are escaped, too: for names that are printed within a line.

    Returns:
        The text, with each such character as Python writes it in a string: ``\x1b``.
    """
    if lines:
        return _STEERING_IN_LINES.sub(_escaped, text.replace("\r\n", "\n"))
    return _STEERING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found.group())[1:-1]
