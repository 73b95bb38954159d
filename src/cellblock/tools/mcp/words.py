"""Shortens text of a server for error messages."""

from __future__ import annotations

MAX_WORDS = 2_000


def cut(text: str) -> str:
    """Return the start of a text that may be long."""
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]} …"
