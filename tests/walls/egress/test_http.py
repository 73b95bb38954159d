"""Heads of requests and responses, understood in one way or refused."""

from __future__ import annotations

import time

import h11
import pytest

from cellblock.walls.egress.http import (
    CHUNKED_READ,
    MAX_LINES,
    BadRequestError,
    check_between_chunks,
    check_head,
    plain_response,
    read_request,
    response_headers,
)
from cellblock.walls.egress.names import BadTargetError


def parsed(text: str) -> h11.Request:
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(text.replace("\n", "\r\n").encode() + b"\r\n")
    event = reader.next_event()
    assert isinstance(event, h11.Request)
    return event


def test_a_request_goes_where_its_target_says_without_what_is_for_one_hop() -> None:
    request = read_request(
        parsed(
            "GET http://A.example:8080/x?y HTTP/1.1\nHost: a.example:8080\nX-One: 1\nConnection: x-mine, host\nX-Mine: 2\n"
            "Proxy-Authorization: secret\nKeep-Alive: 5\n"
        )
    )
    assert (request.method, str(request.target)) == ("GET", "a.example:8080")
    assert request.forwarded is not None
    assert request.forwarded.target == b"/x?y"
    assert [*request.forwarded.headers] == [(b"host", b"a.example:8080"), (b"x-one", b"1"), (b"connection", b"close")]


def test_a_target_without_a_path_has_the_shortest_one() -> None:
    cases: list[tuple[str, str, bytes]] = [
        ("http://a.example", "GET", b"/"),
        ("http://a.example?q", "GET", b"/?q"),
        ("http://a.example", "OPTIONS", b"*"),
    ]
    for target, method, path in cases:
        forwarded = read_request(parsed(f"{method} {target} HTTP/1.1\nHost: a.example\n")).forwarded
        assert forwarded is not None
        assert forwarded.target == path


def test_connect_names_a_host_and_a_port_and_forwards_nothing() -> None:
    request = read_request(parsed("CONNECT a.example:443 HTTP/1.1\nHost: a.example\n"))
    assert (str(request.target), request.forwarded) == ("a.example:443", None)


def test_what_is_not_for_a_proxy_or_could_be_read_in_two_ways_is_refused() -> None:
    cases: list[tuple[str, str]] = [
        ("GET https://a.example/ HTTP/1.1\nHost: a.example\n", "CONNECT"),
        ("GET ftp://a.example/ HTTP/1.1\nHost: a.example\n", "only http://"),
        ("GET / HTTP/1.1\nHost: a.example\n", "absolute"),
        ("GET http://a.example/ HTTP/1.1\nHost: b.example\n", "does not name the target"),
        ("GET http://a.example/ HTTP/1.1\nHost: a@b\n", "Host header is wrong"),
        ("CONNECT a.example:443 HTTP/1.1\nHost: a.example\nContent-Length: 1\n", "no body"),
        (
            "POST http://a.example/ HTTP/1.1\nHost: a.example\nContent-Length: 1\nTransfer-Encoding: chunked\n",
            "cannot be combined",
        ),
        ("POST http://a.example/ HTTP/1.0\nTransfer-Encoding: chunked\n", "needs HTTP/1.1"),
    ]
    for head, complaint in cases:
        with pytest.raises(BadRequestError, match=complaint):
            read_request(parsed(head))


def test_a_host_without_a_canonical_form_is_told_as_it_was_sent() -> None:
    with pytest.raises(BadTargetError) as raised:
        read_request(parsed("CONNECT 1.2.3.4.5.:443 HTTP/1.1\nHost: x\n"))
    assert raised.value.named == "1.2.3.4.5.:443"


def test_the_length_of_a_chunked_response_is_not_passed_on() -> None:
    headers = [(b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked"), (b"X-One", b"1"), (b"Upgrade", b"h2c")]
    response = h11.Response(status_code=200, headers=headers[1:], reason=b"OK")
    assert [name for name, _ in response_headers(response)] == [b"X-One"]
    plain = h11.Response(status_code=200, headers=headers[:1], reason=b"OK")
    assert response_headers(plain) == [(b"Content-Length", b"3")]


def test_an_answer_of_the_proxy_itself_cannot_be_split_by_its_reason() -> None:
    said = plain_response(403, "no\r\nX: y", "no rule for fa\xdf")
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 no??X: y\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == b"no rule for fa\\xdf\n"
    assert plain_response(403, "", "x", body=False).endswith(b"\r\n\r\n")
    assert plain_response(403, "", "x", body=False, final=True).endswith(b"close\r\nX-Should-Retry: false\r\n\r\n")


@pytest.mark.parametrize(("lines", "refused"), [(MAX_LINES - 2, False), (MAX_LINES + 1, True)])
def test_a_head_has_few_lines_and_a_body_after_it_does_not_count(lines: int, refused: bool) -> None:
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"GET http://a.example/ HTTP/1.1\r\n" + b"a: b\r\n" * lines + b"\r\n" + b"\n" * 2 * MAX_LINES)
    if not refused:
        check_head(reader)
        return
    with pytest.raises(h11.RemoteProtocolError, match="header lines") as raised:
        check_head(reader)
    assert raised.value.error_status_hint == 431


@pytest.mark.parametrize(("size", "refused"), [(CHUNKED_READ, False), (CHUNKED_READ + 1, True)])
def test_little_may_wait_between_chunks(size: int, refused: bool) -> None:
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"x" * size)
    if not refused:
        check_between_chunks(reader)
        return
    with pytest.raises(h11.RemoteProtocolError, match="between chunks"):
        check_between_chunks(reader)


def test_a_long_host_takes_no_time() -> None:
    request = parsed("GET / HTTP/1.1\nHost: a.example\n")
    request = h11.Request(method="GET", target=b"http://" + b"a" * 60_000 + b"#", headers=request.headers)
    began = time.process_time()
    with pytest.raises(BadRequestError):
        read_request(request)
    assert time.process_time() - began < 2  # quadratic time is 25 s
