"""What a server says, cut to what somebody may want to read in an error."""

from __future__ import annotations

MAX_WORDS = 2_000


def cut(text: str) -> str:
    """Return the beginning of what may be long."""
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]} …"
