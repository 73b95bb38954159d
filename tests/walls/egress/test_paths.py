"""Paths of requests: one reading for ordinary ones, both for an encoded slash, and a refusal for the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.walls.egress.paths import LONGEST, AmbiguousPathError, loosely, readings


def test_an_ordinary_path_is_decoded() -> None:
    cases: list[tuple[str, tuple[str, ...]]] = [
        ("/", ("/",)),
        ("/a/b?x=../..&y=%2e%2e", ("/a/b",)),
        ("/a%20b/%C3%A9", ("/a b/é",)),
        ("/a%2Fb", ("/a%2Fb", "/a/b")),
        ("/a%2fb/", ("/a%2Fb/", "/a/b/")),
        ("/...", ("/...",)),
        ("/a.b/.git", ("/a.b/.git",)),
    ]
    for target, found in cases:
        assert readings(target) == found


AMBIGUOUS = {
    "dots": "/a/../b",
    "one dot": "/a/./b",
    "dots at the end": "/a/..",
    "encoded dots": "/a/%2e%2E/b",
    "half encoded": "/a/.%2e/b",
    "encoded slash": "/a%2f..%2fb",
    "encoded twice": "/a/%252e%252e/b",
    "slash encoded twice": "/a%252fb",
    "backslash": "/a\\..\\b",
    "encoded backslash": "/a/..%5cb",
    "two slashes": "//b",
    "two slashes inside": "/a//b",
    "slashes by encoding": "/a/%2fb",
    "nul": "/a%00/b",
    "line end": "/a%0d%0a",
    "percent": "/a%",
    "percent and letters": "/a%zz",
    "overlong": "/a/%c0%ae%c0%ae/b",
    "parameters": "/a/..;x=1/b",
    "encoded parameters": "/a/%2e%2e%3b/b",
    "full-width dots": "/a/%EF%BC%8E%EF%BC%8E/b",
    "full-width slash": "/a%EF%BC%8F..%EF%BC%8Fb",
    "hidden": "/a%E2%80%8Bb",
    "fragment": "/a#b",
    "no path": "*",
    "method in the query": "/a?_method=DELETE",
    "method in the query, encoded": "/a?x=1&%5fmethod=DELETE",
    "method in the query, after a semicolon": "/a?x=1;_method=DELETE",
    "long": "/" + "a" * LONGEST,
}


def test_a_path_that_servers_read_differently_is_refused() -> None:
    for name in AMBIGUOUS:
        with pytest.raises(AmbiguousPathError):
            readings(AMBIGUOUS[name])


@given(st.text("/.%2efF5cC;a\\?é", max_size=24))
def test_no_reading_leaves_its_directory(text: str) -> None:
    try:
        found = readings(f"/{text}")
    except AmbiguousPathError:
        return
    for path in found:
        assert path.startswith("/")
        assert "//" not in path
        assert "\\" not in path
        assert not {".", ".."} & {part.partition(";")[0] for part in path.split("/")}


def test_lenient_servers_read_these_as_the_same() -> None:
    cases: list[tuple[str, str]] = [("/Admin/", "/admin"), ("/a;v=1/b;c", "/a/b"), ("/", "/"), ("/a/", "/a"), ("/;x", "/")]
    for path, found in cases:
        assert loosely(path) == found
