"""Reads the path of a request as servers may read it, and refuses paths that servers read differently."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

_ENCODED_SLASH = re.compile(r"%2[fF]")
_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")
_OVERRIDE = re.compile(r"(?:^|[&;])(?:_method|x-http-method(?:-override)?|x-method-override)(?:=|&|$)", re.IGNORECASE)
LONGEST = 8 * 1024
"""The longest target of a request that is judged: path and query."""


class AmbiguousPathError(ValueError):
    """A path that servers may read as another one. The message says why."""


def readings(target: str) -> tuple[str, ...]:
    """Return the decoded path of a request: twice if it contains ``%2F``, which some servers read as a slash.

    The first reading keeps ``%2F``.

    Args:
        target: The path and the query.

    Raises:
        AmbiguousPathError: The path is ambiguous.
    """
    if len(target) > LONGEST:
        raise AmbiguousPathError(f"the URL has more than {LONGEST:,} characters")
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise AmbiguousPathError("the path must begin with /")
    if "#" in target:
        raise AmbiguousPathError("the URL contains #")
    if _PERCENT.search(path):
        raise AmbiguousPathError("the path contains an invalid percent form")
    if _OVERRIDE.search(unquote_to_bytes(query).decode("latin-1")):
        raise AmbiguousPathError("the query replaces the method")
    parts = [_decoded(part) for part in _ENCODED_SLASH.split(path)]
    # The second reading has every slash of the first, so its check covers both.
    _check("/".join(parts))
    return tuple(dict.fromkeys(("%2F".join(parts), "/".join(parts))))


def loosely(path: str) -> str:
    """Return a path as lenient servers read it: without a final slash and parameters of segments, in lower case."""
    segments = [segment.partition(";")[0] for segment in path.split("/")]
    return "/".join(segments).rstrip("/").lower() or "/"


def _decoded(part: str) -> str:
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise AmbiguousPathError("the path is not valid UTF-8") from None
    if "%" in text:
        raise AmbiguousPathError("the path is percent-encoded twice")
    return text


def _check(path: str) -> None:
    folded = unicodedata.normalize("NFKC", path)  # a full-width dot or slash becomes an ordinary one
    if folded.count("/") != path.count("/"):
        raise AmbiguousPathError("the path contains a character that can be read as a slash")
    for text in (path, folded):
        if "\\" in text:
            raise AmbiguousPathError("the path contains a backslash")
        if "//" in text:
            raise AmbiguousPathError("the path contains //")
        if not text.isprintable():
            raise AmbiguousPathError("the path contains a hidden or control character")
        if any(segment.partition(";")[0].strip() in (".", "..") for segment in text.split("/")):
            raise AmbiguousPathError("the path contains a dot segment")
