"""Replaces secrets in responses by their placeholders: in every form in which the request contained them."""

from __future__ import annotations

import base64
import functools
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

# What frameworks escape in JSON: Go, Gson and .NET.
_ESCAPES = (("<>&", "\\u{:04x}"), ("<>&='", "\\u{:04x}"), ("<>&+'`", "\\u{:04X}"))
_CODE = re.compile("%[0-9A-F]{2}")


class Scan:
    """A filter for the head and the streamed body of one response.

    Args:
        replacements: What to replace, and by what (`forms`).
    """

    def __init__(self, replacements: Iterable[tuple[bytes, bytes]]) -> None:
        # Longer ones first: one may contain another.
        self._pairs = sorted(replacements, key=lambda pair: -len(pair[0]))
        self._kept = b""

    def whole(self, text: bytes) -> bytes:
        """Return a complete text with the replacements."""
        for needle, by in self._pairs:
            if needle in text:
                text = text.replace(needle, by)
        return text

    def feed(self, data: bytes) -> bytes:
        """Return the next part of a body. Bytes that may begin a secret are kept until more is known."""
        text = self.whole(self._kept + data)
        kept = self._beginning(text)
        self._kept = text[len(text) - kept :]
        return text[: len(text) - kept]

    def end(self) -> bytes:
        """Return the kept rest of a body."""
        rest, self._kept = self._kept, b""
        return rest

    def _beginning(self, text: bytes) -> int:
        """Return the length of the longest end of the text that may begin a secret."""
        longest = 0
        for needle, _ in self._pairs:
            start = max(len(text) - len(needle) + 1, 0)
            while (start := text.find(needle[:1], start)) >= 0:
                if needle.startswith(text[start:]):
                    longest = max(longest, len(text) - start)
                    break
                start += 1
        return longest


@functools.lru_cache(maxsize=256)
def forms(value: str, placeholder: str, pair: str = "") -> tuple[tuple[bytes, bytes], ...]:
    """Return the forms of a secret to replace, and their replacements: raw, percent-encoded, in JSON, HTML and Base64.

    Args:
        value: The secret.
        placeholder: Its placeholder.
        pair: The form of Basic authentication that the request contained, with ``{}`` for the secret.
    """
    by = placeholder.encode()
    escaped = json.dumps(value)[1:-1]
    percent = {quote(value, safe=safe) for safe in ("", "/", ":", "!'()*")} | {quote_plus(value)}
    percent |= {_CODE.sub(lambda code: code[0].lower(), text) for text in percent}
    spelled = {value, escaped, escaped.replace("/", "\\/"), html.escape(value), *percent}
    for signs, form in _ESCAPES:
        spelled.add("".join(form.format(ord(sign)) if sign in signs else sign for sign in escaped))
    found = [(text.encode(), by) for text in spelled]
    found.append(("\0".join(value).encode(), "\0".join(placeholder).encode()))  # UTF-16 in both orders of bytes
    for before in ("", "x", "xx"):
        found += _inside(before + value, len(before), placeholder)
    if pair:
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.append((encode(pair.replace("{}", value).encode()), encode(pair.replace("{}", placeholder).encode())))
    return tuple(dict(found).items())


def _inside(text: str, skipped: int, placeholder: str) -> list[tuple[bytes, bytes]]:
    """Return the part of a Base64 text that depends on the secret alone, wherever it begins in the encoded data."""
    size = len(text) // 3 * 3
    found = []
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        needle = encode(text[:size].encode())[4 if skipped else 0 :]
        if len(needle) >= 8:
            filler = encode(placeholder.encode()).rstrip(b"=") * (len(needle) // len(placeholder) + 1)
            found.append((needle, filler[: len(needle)]))
    return found
