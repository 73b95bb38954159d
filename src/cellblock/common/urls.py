"""File URLs: which are supported, and their parts. `url_folder` accesses them."""

from __future__ import annotations

import os
import re

from cellblock.errors import InvalidInputError

_MAX = 2000
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a text is a URL, not a path: it begins with a scheme and ``://``. ``./a://b`` is a path."""
    return isinstance(path, str) and _URL.match(path) is not None


def split(url: str) -> tuple[str, str]:
    """Return the URL of a file's folder, and its name.

    Raises:
        InvalidInputError: The URL cannot be the URL of a file.
    """
    scheme, rest = check(url)
    folder, _, name = rest.rpartition("/")
    if not name or not (folder or scheme == "memory"):
        raise InvalidInputError(f"{url!r} is not the URL of a file: name one, such as {url.rstrip('/')}/session.cellblock")
    return f"{scheme}://{folder}", name


def local_path(url: str) -> str | None:
    """Return the path of a ``file:`` URL; None for any other.

    Raises:
        InvalidInputError: The path is not absolute, or the URL names another machine.
    """
    scheme, rest = check(url)
    if scheme not in ("file", "local"):
        return None
    from urllib.parse import unquote

    path = unquote(rest)
    if not path.startswith("/") or "\0" in path:
        raise InvalidInputError(f"a file: URL has an absolute path, such as file:///tmp/session.cellblock, not {url!r}")
    return path


def check(url: str) -> tuple[str, str]:
    """Return the scheme of a URL, and the rest.

    Raises:
        InvalidInputError: The URL is not supported.
    """
    scheme, _, rest = url.partition("://")
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise InvalidInputError(
            f"a {scheme}: URL with a password is not supported, as URLs are stored and shown: use the settings of fsspec, or "
            "of its package for this scheme"
        )
    if not is_url(url) or not url.isprintable() or len(url) > _MAX:
        raise InvalidInputError(f"{url[:200]!r} is not a URL, such as s3://bucket/folder")
    if "::" in url:
        raise InvalidInputError(f"{url!r} is a chain of URLs, which are not supported")
    if any(part in (".", "..") for part in rest.split("/")):
        raise InvalidInputError(f"{url!r} has '.' or '..' in its path")
    return scheme.lower(), rest
