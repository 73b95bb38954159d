"""Pages of an index, in both forms, and what of them is not passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.walls.packages.pages import JSON, File, read, write

URL = "https://index.example/simple/a/"


def of_json(*files: dict[str, Any]) -> dict[str, File]:
    return read(URL, f"{JSON}; charset=utf-8", json.dumps({"files": files}).encode())


def test_what_is_written_is_what_was_read() -> None:
    page = b'<a href="../../a-1.whl#sha256=ab12" data-requires-python="&gt;=3.9" data-yanked="bad">a-1.whl</a>'
    file = read(URL, "text/html", page)["a-1.whl"]
    known = (("data-requires-python", ">=3.9"), ("data-yanked", "bad"))
    assert file == File("a-1.whl", "https://index.example/a-1.whl", "sha256=ab12", known)
    again = read("http://127.0.0.1:1/a/", "text/html", write([file]))["a-1.whl"]
    assert (again.url, again.hash, again.attributes) == ("http://127.0.0.1:1/a/a-1.whl", file.hash, file.attributes)


def test_both_forms_say_the_same() -> None:
    entry = {
        "filename": "a-1.whl",
        "url": "a-1.whl",
        "hashes": {"md5": "00", "sha256": "ab12"},
        "requires-python": ">=3.9",
        "yanked": True,
        "core-metadata": {"sha256": "cd"},
    }
    page = (
        b'<a href="a-1.whl#sha256=ab12" data-requires-python="&gt;=3.9" data-yanked data-core-metadata="sha256=cd">a-1.whl</a>'
    )
    assert of_json(entry) == read(URL, "text/html", page)


def test_files_that_are_not_reached_by_http_are_left_out() -> None:
    for url in ("file:///etc/passwd", "ftp://a.example/a.whl", "javascript:x", "http://[x/a.whl", "git+https://a/a"):
        assert of_json({"filename": "a.whl", "url": url}) == {}
        assert read(URL, "text/html", f'<a href="{url}">a.whl</a>'.encode()) == {}


def test_urls_of_files_are_absolute() -> None:
    cases: list[tuple[str, str | None]] = [
        ("https://files.example/a%20b/x.whl?q=1", "https://files.example/a%20b/x.whl?q=1"),
        ("HTTPS://files.example/x.whl", "HTTPS://files.example/x.whl"),
        ("../x.whl", "http://index/x.whl"),
        ("//files.example/x.whl", "http://files.example/x.whl"),
        ("https://[/x.whl", None),
        ("ftp://files.example/x.whl", None),
    ]
    for url, expected in cases:
        found = read("http://index/simple/", JSON, json.dumps({"files": [{"filename": "x", "url": url}]}).encode())
        assert [file.url for file in found.values()] == ([] if expected is None else [expected])


def test_a_base_moves_what_follows_it() -> None:
    found = read(URL, "text/html", b'<base href="https://files.example/x/"><a href="a-1.whl">a</a>')
    assert found["a-1.whl"].url == "https://files.example/x/a-1.whl"


def test_a_page_without_files_is_refused() -> None:
    for body in (b"[]", b"{}", b'{"files": {}}', b"{", b'{"files": 1}'):
        with pytest.raises(ValueError):  # of json, or ours
            read(URL, JSON, body)


def test_entries_that_say_nothing_are_left_out() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"url": "a"},
        {"filename": "a"},
        {"url": 1, "filename": "a"},
        {"url": "a", "filename": None},
    ]
    for entry in cases:
        assert of_json(entry, {"filename": "a", "url": "a"}).keys() == {"a"}


def test_names_and_attributes_cannot_end_their_anchor() -> None:
    name = '"><script>.whl'
    page = write([File(name, URL, "sha256=ab", (("data-yanked", '"><b>'),))])
    assert b"<script>" not in page
    assert b"<b>" not in page
    assert read(URL, "text/html", page).keys() == {name}


def test_a_hash_that_is_none_is_left_out() -> None:
    cases: list[object] = [{"sha256": 'ab"'}, {"sha256": 1}, {'"': "ab"}, [], "sha256=ab"]
    for hashes in cases:
        assert of_json({"filename": "a", "url": "a", "hashes": hashes})["a"].hash == ""
