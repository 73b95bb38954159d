"""Parses pages of an index in both forms, and writes the form that every pip reads."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

# The attributes of an anchor that pip reads, in addition to its target.
_ATTRIBUTES = ("data-requires-python", "data-yanked", "data-core-metadata", "data-dist-info-metadata")


_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_ABSOLUTE = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?/[!-~]*")
_SCHEMES = ("http://", "https://")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")


@dataclass(frozen=True, slots=True)
class File:
    """A file on a page.

    Attributes:
        name: Its name.
        url: Its URL.
        hash: For example ``sha256=...``; empty if the page has none.
        attributes: The attributes of its anchor.
        uploaded: When it was uploaded, in UTC and ISO 8601; empty if the page does not say so.
    """

    name: str
    url: str
    hash: str
    attributes: tuple[tuple[str, str], ...]
    uploaded: str = ""

    @property
    def sha256(self) -> str:
        """Its SHA-256 hash; empty if the page has none."""
        name, _, value = self.hash.partition("=")
        return value.lower() if name == "sha256" and _SHA256.fullmatch(value) else ""

    def with_metadata(self) -> File:
        """Return the file with the note that its metadata can be fetched alone."""
        others = tuple(item for item in self.attributes if "metadata" not in item[0])
        return replace(self, attributes=(*others, ("data-dist-info-metadata", "true"), ("data-core-metadata", "true")))


def read(url: str, kind: str, body: bytes) -> dict[str, File]:
    """Return the files on a page by name, except those that http and https do not reach.

    Args:
        url: The page's URL, the base of its links.
        kind: Its content type.
        body: The page.

    Raises:
        ValueError: It is not a page of an index.
    """
    found = _of_json(url, body) if kind.partition(";")[0].strip().lower() == JSON else _of_html(url, body)
    return {file.name: file for file in found if file.name and file.url.lower().startswith(_SCHEMES)}


def write(files: Iterable[File]) -> bytes:
    """Return a page with links to files next to it."""
    lines = ["<!DOCTYPE html><html><body>"]
    for file in files:
        target = quote(file.name, safe="") + (f"#{file.hash}" if file.hash else "")
        attributes = "".join(f' {name}="{html.escape(value)}"' for name, value in file.attributes)
        lines.append(f'<a href="{html.escape(target)}"{attributes}>{html.escape(file.name)}</a>')
    return "\n".join([*lines, "</body></html>"]).encode()


def _of_json(base: str, body: bytes) -> Iterable[File]:
    data = json.loads(body)
    entries = data.get("files") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the page names no files")  # noqa: TRY004  # it is the page that is wrong
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("url"), str) and isinstance(entry.get("filename"), str):
            url, time = _joined(base, entry["url"]), entry.get("upload-time")
            uploaded = time if isinstance(time, str) and _TIME.fullmatch(time) else ""
            yield File(entry["filename"], url, _hash(entry.get("hashes")), tuple(_attributes(entry)), uploaded)


def _attributes(entry: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if isinstance(needed := entry.get("requires-python"), str):
        yield "data-requires-python", needed
    if yanked := entry.get("yanked"):
        yield "data-yanked", yanked if isinstance(yanked, str) else ""
    metadata = entry.get("core-metadata", entry.get("data-dist-info-metadata", entry.get("dist-info-metadata")))
    if metadata:
        yield "data-core-metadata", _hash(metadata) or "true"


def _hash(hashes: object) -> str:
    if not isinstance(hashes, dict):
        return ""
    known = {name: value for name, value in hashes.items() if isinstance(value, str) and value.isalnum()}
    name = "sha256" if "sha256" in known else next((name for name in known if name.isalnum()), None)
    return f"{name}={known[name]}" if name else ""


def _of_html(base: str, body: bytes) -> Iterable[File]:
    reader = _Anchors(base)
    reader.feed(body.decode("utf-8", "replace"))
    return reader.files


class _Anchors(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.files: list[File] = []
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "base" and values.get("href"):
            self._base = _joined(self._base, values["href"])
        elif tag == "a" and values.get("href"):
            url, _, fragment = _joined(self._base, values["href"]).partition("#")
            name, _, value = fragment.partition("&")[0].partition("=")
            known = tuple((key, values[key]) for key in _ATTRIBUTES if key in values)
            self.files.append(File(_name(url), url, f"{name}={value}" if name.isalnum() and value.isalnum() else "", known))


def _joined(base: str, url: str) -> str:
    if _ABSOLUTE.fullmatch(url):  # a page has thousands, and urljoin takes 60 µs for each
        return url
    try:
        return urljoin(base, url)
    except ValueError:
        return ""  # an invalid URL leads nowhere


def _name(url: str) -> str:
    try:
        return unquote(urlsplit(url).path).rpartition("/")[2]
    except ValueError:
        return ""
