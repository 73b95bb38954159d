"""Request lines: which they are, and what they cover."""

from __future__ import annotations

import pytest

from cellblock import InvalidInputError
from cellblock.walls.egress.lines import MOST, WEBSOCKET, Lines, RequestHead, RequestLine
from cellblock.walls.egress.names import parse_authority
from cellblock.walls.egress.paths import readings


def head(text: str) -> RequestHead:
    method, _, place = text.partition(" ")
    host, _, path = place.partition("/")
    return RequestHead(parse_authority(host, 443), method, readings(f"/{path}"))


def test_a_line_is_written_as_it_was_read() -> None:
    cases: list[str] = [
        "GET api.example/**",
        "ask POST api.example:8443/repos/*/issues",
        "deny * api.example/admin/**",
        "WEBSOCKET api.example/socket",
        "* [::1]:8080/",
        "GET api.example/with blanks/*",
    ]
    for text in cases:
        assert str(RequestLine.parse(text)) == text


def test_a_wrong_line_says_what_to_write() -> None:
    cases: list[tuple[object, str]] = [
        ("GET api.example", "the path is missing"),
        ("api.example/", "it needs a method"),
        ("get api.example/", "in capitals"),
        ("allow GET api.example/", "it needs a method"),
        ("GET https://api.example/", "not a URL"),
        ("GET *.example/", "exact name"),
        ("GET */", "exact name"),
        ("GET api.example/a//b", "decoded paths"),
        ("GET api.example/%2e", "decoded paths"),
        ("GET api.example:0/", "port"),
        ("GET api..example/", "host name"),
        ("TRACE api.example/", "never possible"),
        ("CONNECT api.example/", "never possible"),
        ("GET a.example/" + "a" * 5000, "too long"),
        (3, "not a text"),
    ]
    for text, why in cases:
        with pytest.raises(InvalidInputError, match=why):
            RequestLine.parse(text)


def test_lines_are_a_bounded_list() -> None:
    with pytest.raises(InvalidInputError, match="list"):
        Lines.parse("GET a.example/")
    with pytest.raises(InvalidInputError, match=f"{MOST} request lines"):
        Lines.parse([f"GET a.example/{number}" for number in range(MOST + 1)])


COVERED = [
    ("GET api.example/**", "GET api.example/a/b", True),
    ("GET api.example/**", "HEAD api.example/", True),
    ("GET api.example/**", "POST api.example/", False),
    ("GET api.example/*", "GET api.example/a/b", False),
    ("GET api.example/a", "GET api.example/a/", False),
    ("GET api.example/a", "GET api.example/A", False),
    ("GET api.example/a", "GET b.example/a", False),
    ("GET api.example/a", "GET api.example:80/a", True),
    ("GET api.example/a", "GET api.example:8443/a", False),
    ("GET api.example:8443/a", "GET api.example:8443/a", True),
    ("GET api.example:443/a", "GET api.example:80/a", False),
    ("* api.example/**", "DELETE api.example/a", True),
    ("* api.example/**", f"{WEBSOCKET} api.example/a", False),
    ("GET api.example/**", f"{WEBSOCKET} api.example/a", False),
    (f"{WEBSOCKET} api.example/**", f"{WEBSOCKET} api.example/a", True),
    # An encoded slash must be allowed in both readings.
    ("GET api.example/files/*", "GET api.example/files/a%2Fb", False),
    ("GET api.example/files/a/b", "GET api.example/files/a%2Fb", False),
    ("GET api.example/files/**", "GET api.example/files/a%2Fb", True),
    # Lines that restrict cover what lenient servers read as the same.
    ("deny * api.example/admin", "GET api.example/admin/", True),
    ("deny * api.example/admin", "GET api.example/Admin", True),
    ("deny * api.example/admin", "GET api.example/admin;a=b", True),
    ("deny * api.example/a/b", "GET api.example/a%2Fb", True),
    ("deny * api.example/**", f"{WEBSOCKET} api.example/a", True),
    ("deny GET api.example/**", f"{WEBSOCKET} api.example/a", True),
    ("deny GET api.example/**", "HEAD api.example/a", True),
    ("ask POST api.example/a", "GET api.example/a", False),
]


def test_what_a_line_covers() -> None:
    for line, request_, covered in COVERED:
        assert RequestLine.parse(line).covers(head(request_)) is covered


def test_deny_overrides_ask_and_ask_overrides_the_rest() -> None:
    lines = Lines.parse(["* a.example/**", "ask POST a.example/**", "deny * a.example/secret/**"])
    assert lines.judge(head("GET a.example/")) == "allow"
    assert lines.judge(head("POST a.example/")) == "ask"
    assert lines.judge(head("POST a.example/secret/x")) == "deny"
    assert lines.judge(head("POST b.example/")) is None
    assert lines.patterns == ("a.example",)
    assert lines.authorities == ("a.example:80", "a.example:443")
    assert lines.allowed(parse_authority("a.example:443")) == "* /**, POST /** (after a question)"
