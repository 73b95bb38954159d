"""Attacks 23 to 30 on the proxy, over each of its protocols, with the exact outcome of each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from cellblock.errors import allowing
from cellblock.walls.egress import addresses
from cellblock.walls.egress.addresses import Objection
from cellblock.walls.egress.names import Address
from cellblock.walls.egress.rules import Denial

from .conftest import Starter

FORBIDDEN = [
    ("127.0.0.1", "loopback"),
    ("127.1", "loopback"),
    ("127.0.0.1.", "loopback"),
    ("2130706433", "loopback"),
    ("0x7f.1", "loopback"),
    ("0X7F000001", "loopback"),
    ("0177.0.0.1", "loopback"),
    ("017700000001", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("0", "unspecified"),
    ("10.1.2.3", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "carrier-grade NAT"),
    ("169.254.169.254", "a cloud's metadata service"),
    ("0xa9fea9fe", "a cloud's metadata service"),
    ("100.100.100.200", "a cloud's metadata service"),
    ("168.63.129.16", "a cloud's metadata service"),
    ("169.254.1.1", "link-local"),
    ("224.0.0.1", "multicast"),
    ("255.255.255.255", "reserved"),
    ("192.0.0.192", "reserved for protocols"),
    ("198.18.0.1", "reserved for benchmarks"),
    ("[::1]", "loopback"),
    ("[::]", "unspecified"),
    ("[::ffff:127.0.0.1]", "loopback"),
    ("[::ffff:7f00:1]", "loopback"),
    ("[0:0:0:0:0:ffff:a9fe:a9fe]", "a cloud's metadata service"),
    ("[::127.0.0.1]", "reserved"),
    ("[64:ff9b::127.0.0.1]", "NAT64 for 127.0.0.1, loopback"),
    ("[64:ff9b::a00:1]", "NAT64 for 10.0.0.1, private"),
    ("[64:ff9b:1::1]", "reserved"),
    ("[2002:7f00:1::1]", "a 6to4 tunnel"),
    ("[2002:808:808::1]", "a 6to4 tunnel"),
    ("[2001:0:7f00:1::1]", "a Teredo tunnel"),
    ("[2a00::5efe:7f00:1]", "ISATAP for 127.0.0.1, loopback"),
    ("[fe80::1]", "link-local"),
    ("[fd00::1]", "private"),
    ("[fd00:ec2::254]", "a cloud's metadata service"),
    ("[ff02::1]", "multicast"),
]


def plain(host: str, extra: str = "") -> bytes:
    return f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode("latin-1")


async def test_23_addresses_by_any_spelling(start: Starter) -> None:
    """Refused over each protocol, even where every public host is allowed; nothing is looked up or dialled."""
    for host, what in FORBIDDEN:
        running = await start.proxy("*")
        assert await running.connect_status(f"{host}:443") == 403
        answer = await running.ask(plain(host))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden: it is ")
        assert await running.socks_name(host.encode(), 443) == 2
        assert await running.socks_name(host.strip("[]").encode(), 443) == 2
        reasons = {denial.reason for denial in running.denials}
        # On this machine its own addresses are refused as such, whatever else they are.
        assert reasons <= {f"it is {what}", "it is an address of this machine"}
        assert [denial.method for denial in running.denials] == ["CONNECT", "GET", "SOCKS5", "SOCKS5"]
        assert running.lookups == running.dialled == []


async def test_23_addresses_in_binary(start: Starter) -> None:
    running = await start.proxy("*")
    for text in ("127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"):
        raw = ip_address(text).packed
        kind = b"\x01" if len(raw) == 4 else b"\x04"
        assert await running.socks_code(b"\x05\x01\x00" + kind + raw + b"\x01\xbb") == 2
    assert len(running.denials) == 7
    assert running.dialled == []


async def test_24_names_of_forbidden_addresses(start: Starter) -> None:
    """One bad address among good ones is enough, and none is dialled."""
    cases: list[Sequence[str]] = [
        ["127.0.0.1"],
        ["10.0.0.7"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
        ["::ffff:192.168.0.1"],
        ["64:ff9b::a9fe:a9fe"],
        ["93.184.216.34", "127.0.0.1"],
        ["93.184.216.34", "2606:2800:220:1::1", "fd00::1"],
    ]
    for found in cases:
        running = await start.proxy("rebound.test", names={"rebound.test": found})
        assert await running.connect_status("rebound.test:443") == 403
        assert (await running.ask(plain("rebound.test"))).startswith(b"HTTP/1.1 403 Forbidden: it has the address ")
        assert await running.socks_name(b"rebound.test", 80) == 2
        assert running.lookups == ["rebound.test"] * 3
        assert running.dialled == []


async def test_24_the_machines_own_addresses(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address that is the host's own is refused; it needs a rule that names it."""
    public = ip_address("93.184.216.34")

    def own(address: Address) -> Objection | None:
        return Objection("an address of this machine") if address == public else None

    monkeypatch.setattr(addresses, "own", own)
    running = await start.proxy("me.test", names={"me.test": [str(public)]})
    assert await running.connect_status("me.test:443") == 403
    [denial] = running.denials
    assert denial == Denial(
        "me.test", 443, "it has the address 93.184.216.34, which is an address of this machine", "93.184.216.34", "CONNECT"
    )


async def test_24_rebinding(start: Starter) -> None:
    """The name is looked up once, and what was checked is dialled: a second answer is never asked for."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"], ["127.0.0.1"]])
    reached: list[str] = []

    async def fickle(name: str) -> Sequence[str]:
        return next(answers)

    async def dial(address: Address, port: int) -> socket.socket:
        reached.append(f"{address}:{port}")
        raise ConnectionRefusedError(111, "refused")

    running = await start.proxy("fickle.test", resolve=fickle, dial=dial)
    assert await running.connect_status("fickle.test:443") == 502
    assert await running.connect_status("fickle.test:443") == 403
    assert reached == ["93.184.216.34:443"]
    assert running.lookups == ["fickle.test"] * 2


@pytest.mark.parametrize(
    "spelling",
    [
        b"allowed.test",
        b"ALLOWED.Test",
        b"allowed.test.",
        "ａｌｌｏｗｅｄ．ｔｅｓｔ".encode(),
        "allowed。test".encode(),
        "al\u00adlowed.test".encode(),
    ],
    ids=["plain", "case", "dot", "full width", "ideographic dot", "soft hyphen"],
)
async def test_25_one_canonical_form(start: Starter, spelling: bytes) -> None:
    """However an allowed host is spelled, the decision is the same, and one form of it is looked up."""
    port = await start.echo()
    names = {"allowed.test": ["127.0.0.1"]}
    running = await start.proxy(f"allowed.test:{port}", f"127.0.0.1:{port}", names=names)
    assert await running.socks_name(spelling, port) == 0
    if spelling.isascii():
        assert await running.connect_status(f"{spelling.decode()}:{port}") == 200
    assert set(running.lookups) == {"allowed.test"}
    denying = await start.proxy(f"*:{port}", f"127.0.0.1:{port}", denied=["allowed.test"], names=names)
    assert await denying.socks_name(spelling, port) == 2
    assert denying.lookups == []


async def test_25_international_names(start: Starter) -> None:
    for spelling in ("bücher.test", "BÜCHER.test", "bu\u0308cher.TEST.", "xn--bcher-kva.test", "XN--BCHER-KVA.test"):
        names = {"xn--bcher-kva.test": ["93.184.216.34"]}
        running = await start.proxy("*", denied=["Bücher.test"], names=names)
        assert await running.socks_name(spelling.encode(), 443) == 2
        assert [denial.host for denial in running.denials] == ["xn--bcher-kva.test"]
        assert running.lookups == []


async def test_25_names_that_have_no_canonical_form(start: Starter) -> None:
    cases: list[bytes] = [
        b"127.0.0.1\0.allowed.test",
        b"evil.test\0.allowed.test",
        b"evil.test\r\n.allowed.test",
        b"evil.test\t.allowed.test",
        b"evil.test .allowed.test",
        b"evil.test/.allowed.test",
        b"evil.test#.allowed.test",
        b"evil.test%00.allowed.test",
        b"evil%2etest",
        b"fe80::1%eth0",
        b"[fe80::1%25eth0]",
        b"[::1",
        b"::1]",
        b"a..allowed.test",
        b".allowed.test",
        b"allowed.test..",
        b"-a.allowed.test",
        b"\xff\xfe.allowed.test",
        b"a" * 64 + b".allowed.test",
        b"*.allowed.test",
        b"1.2.3.4.5",
        b"256.1.1.1",
        b"127.0.0.08",
        b"allowed.test.0x",
        b"",
    ]
    for name in cases:
        running = await start.proxy("*", "*.allowed.test", "allowed.test")
        assert await running.socks_name(name, 443) == 2
        [denial] = running.denials
        assert (denial.port, denial.rule_needed, denial.method) == (0, None, "SOCKS5")
        assert denial.host.isprintable()
        assert running.lookups == running.dialled == []


async def test_25_control_characters_in_http(start: Starter) -> None:
    """They never get as far as a decision: HTTP itself forbids them."""
    for name in ("evil.test\0.allowed.test", "evil.test\x0b.allowed.test", "évil.test"):
        running = await start.proxy("*")
        assert (await running.ask(plain(name))).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        request = f"CONNECT {name}:443 HTTP/1.1\r\nHost: x.test\r\n\r\n".encode("latin-1")
        assert (await running.ask(request)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert running.lookups == []


async def test_26_confusing_authorities(start: Starter) -> None:
    cases: list[str] = [
        "evil.test:443.allowed.test",
        "evil.test:443.allowed.test:443",
        "allowed.test@evil.test:443",
        "allowed.test:443@evil.test:443",
        "allowed.test:443:443",
        "notallowed.test:443",
        "allowed.test.evil.test:443",
        "allowed.test:",
        "allowed.test:0",
        "allowed.test:65536",
        "allowed.test:-1",
        "allowed.test:+443",
        "allowed.test:4_4_3",
        "[allowed.test]:443",
    ]
    for authority in cases:
        running = await start.proxy("allowed.test", "*.allowed.test", names={})
        assert await running.connect_status(authority) == 403
        answer = await running.ask(f"GET http://{authority}/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n".encode())
        # A name that has a canonical form is another one than the Host header's.
        assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))
        assert running.lookups == []
        assert running.denials


async def test_26_wildcards_end_at_a_dot(start: Starter) -> None:
    port = await start.echo()
    everything = ("allowed.test", "notallowed.test", "a.allowed.test", "b.a.allowed.test", "xallowed.test")
    names = {name: ["127.0.0.1"] for name in everything}
    running = await start.proxy(f"*.allowed.test:{port}", f"127.0.0.1:{port}", names=names)
    got = {name: await running.connect_status(f"{name}:{port}") for name in everything}
    assert got == {
        "allowed.test": 403,
        "notallowed.test": 403,
        "xallowed.test": 403,
        "a.allowed.test": 200,
        "b.a.allowed.test": 200,
    }


async def test_27_ports(start: Starter) -> None:
    for port in (22, 25, 8080, 444):
        running = await start.proxy("allowed.test", names={"allowed.test": ["93.184.216.34"]})
        assert await running.connect_status(f"allowed.test:{port}") == 403
        assert (await running.ask(plain(f"allowed.test:{port}"))).startswith(b"HTTP/1.1 403 ")
        assert await running.socks_name(b"allowed.test", port) == 2
        assert {denial.rule_needed for denial in running.denials} == {f"allowed.test:{port}"}
        assert running.lookups == []


async def test_28_heads_that_could_be_framed_in_two_ways(start: Starter) -> None:
    cases: list[tuple[str, bytes]] = [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nGET /"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\nGET /"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!"),
        ("Content-Length: 5, 6\r\n", b"hello!"),
        ("Content-Length: +5\r\n", b"hello"),
        ("Content-Length: 0x5\r\n", b"hello"),
        ("Content-Length: -5\r\n", b"hello"),
        ("Content-Length : 5\r\n", b"hello"),
        ("Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
        ("Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"),
        ("Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
        ("Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
        ("Transfer-Encoding: identity\r\n", b""),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n"),
        ("X: 1\rContent-Length: 5\r\n", b"hello"),
        ("X: a\0b\r\n", b""),
        ("Host: other.test\r\n", b""),
    ]
    for headers, body in cases:
        port, heard = await start.http()
        running = await start.proxy(f"127.0.0.1:{port}")
        answer = await running.ask(
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}\r\n".encode() + body
        )
        assert answer.startswith((b"HTTP/1.1 400 Bad Request\r\n", b"HTTP/1.1 501 Not Implemented\r\n"))
        assert answer.count(b"HTTP/1.1") == 1  # nothing after it was taken for a request
        assert heard == []


async def test_28_codings_before_http_1_1(start: Starter) -> None:
    """HTTP/1.0 knows no Transfer-Encoding: one reader would see a body where another sees a request."""
    port, heard = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    head = f"POST http://127.0.0.1:{port}/ HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await running.ask(head.encode() + b"0\r\n\r\n")).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert heard == []


async def test_28_a_connection_header_cannot_take_the_framing_away(start: Starter) -> None:
    port, heard = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 5\r\n"
    answer = await running.ask(f"{head}Connection: close, content-length, Host\r\n\r\nhello".encode())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    expected = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert heard == [expected.encode()]


async def test_denials_arrive_although_a_body_is_on_its_way(start: Starter) -> None:
    running = await start.proxy("allowed.test")
    reader, writer = await running.connect()
    writer.write(b"POST http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 500000\r\n\r\n")
    for _ in range(50):
        writer.write(bytes(10_000))
        await writer.drain()
    assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    writer.close()


@pytest.mark.parametrize(
    "body",
    [b"5x\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello!!\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\nGET /"],
    ids=["letters", "negative", "too long", "no end"],
)
async def test_28_bad_chunks(start: Starter, body: bytes) -> None:
    heard, broken = bytearray(), asyncio.Event()

    async def hears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                heard.extend(data)
        except ConnectionResetError:
            broken.set()

    port = await start.server(hears)
    running = await start.proxy(f"127.0.0.1:{port}")
    head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await running.ask(head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"0\r\n\r\n" not in heard  # the server never sees an end
    assert b"GET" not in heard
    await asyncio.wait_for(broken.wait(), 5)  # nor one that the end of the connection would stand for


async def test_28_the_same_length_twice_is_sent_once(start: Starter) -> None:
    port, heard = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    assert await running.ask(f"{head}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello".encode())
    assert heard[0].lower().count(b"content-length") == 1


async def test_28_what_follows_is_a_request_of_its_own(start: Starter) -> None:
    """The second request on a kept connection is decided anew: another host, another port, or a CONNECT."""
    port, heard = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    good = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    for second, reason in (
        (plain("evil.test"), b"no rule names this host"),
        (plain(f"127.0.0.1:{port + 1}"), b"no rule for this host names port %d" % (port + 1)),
        (b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n", b"no rule names this host"),
    ):
        answer = await running.ask(good + second)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"helloHTTP/1.1 403 Forbidden: " + reason in answer
    assert len(heard) == 3


async def test_28_hosts_that_disagree(start: Starter) -> None:
    port, heard = await start.http()
    running = await start.proxy(f"127.0.0.1:{port}")
    for host in ("evil.test", f"evil.test:{port}", f"127.0.0.1:{port + 1}", "", "127.0.0.1:x", "a@b"):
        answer = await running.ask(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        answer = await running.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert (await running.ask(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())).startswith(b"HTTP/1.1 400 ")
    assert heard == []


async def test_28_requests_that_are_for_no_proxy(start: Starter) -> None:
    cases: list[str] = [
        "/",
        "*",
        "https://allowed.test/",
        "ftp://allowed.test/",
        "http:/allowed.test/",
        "http://allowed.test/#x",
        "allowed.test",
    ]
    for target in cases:
        running = await start.proxy("allowed.test")
        answer = await running.ask(f"GET {target} HTTP/1.1\r\nHost: allowed.test\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert not running.lookups
        assert not running.denials


async def test_28_a_connect_with_a_body(start: Starter) -> None:
    running = await start.proxy("allowed.test")
    for framing in (b"Content-Length: 3", b"Transfer-Encoding: chunked"):
        answer = await running.ask(b"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test\r\n" + framing + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert running.lookups == []


async def test_28_a_response_that_smuggles_another(start: Starter) -> None:
    """What a server says after its response is nobody's response."""
    port, _ = await start.http(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 Evil\r\nContent-Length: 4\r\n\r\nevil"
    )
    running = await start.proxy(f"127.0.0.1:{port}")
    good = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    answer = await running.ask(good + b"\r\n" + good + b"Connection: close\r\n\r\n")
    assert answer.count(b"hello") == 2
    assert b"vil" not in answer


async def test_29_redirects_are_the_clients_to_follow(start: Starter) -> None:
    port, heard = await start.http(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
    running = await start.proxy(f"127.0.0.1:{port}")
    good = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    answer = await running.ask(good + plain("169.254.169.254"))
    assert answer.startswith(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n")
    refusal = b"403 Forbidden: no rule names this host; to allow it: cellblock network NAME --allow 169."
    assert b"\r\n\r\nHTTP/1.1 " + refusal in answer
    assert len(heard) == 1


async def test_denials_say_which_rule_is_missing(start: Starter) -> None:
    running = await start.proxy("allowed.test", "db.test:5432", names={"db.test": ["10.0.0.5"]})
    answer = await running.ask(plain("pypi.test"))
    remedy = f"to allow it: {allowing('pypi.test')}"
    assert answer.startswith(f"HTTP/1.1 403 Forbidden: no rule names this host; {remedy}\r\n".encode())
    line = f"egress to pypi.test:80 denied: no rule names this host; {remedy}"
    assert answer.endswith(f"\r\n\r\ncellblock: {line}\n".encode())
    assert running.denials == [Denial("pypi.test", 80, "no rule names this host", "pypi.test", "GET")]
    assert running.denials[0].message == line
    head = await running.ask(b"HEAD http://pypi.test/ HTTP/1.1\r\nHost: pypi.test\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert await running.connect_status("db.test:5432") == 403
    assert running.denials[-1].rule_needed == "db.test:5432 private"
    await running.ask(b"GET\x1b http://pypi.test/ HTTP/1.1\r\nHost: pypi.test\r\n\r\n")
    assert all(denial.method.isprintable() for denial in running.denials)


async def test_rules_reach_what_they_name(start: Starter) -> None:
    """An address that is named is reached, by its own name or by that of an allowed host; no other port of it."""
    port = await start.echo()
    names = {"dev.test": ["127.0.0.1"]}
    running = await start.proxy(f"dev.test:{port}", f"127.0.0.1:{port}", "dev.test", names=names)
    assert await running.connect_status(f"dev.test:{port}") == 200
    assert await running.connect_status(f"127.1:{port}") == 200
    assert await running.connect_status(f"[::ffff:127.0.0.1]:{port}") == 200
    assert await running.connect_status("dev.test:443") == 403
    assert running.denials[-1].rule_needed == "127.0.0.1"


async def test_a_failing_observer_lets_nothing_through(start: Starter) -> None:
    """Whoever is told of denials may fail: the client is cut off, and the mistake is reported."""
    running = await start.proxy("allowed.test")
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail(denial: Denial) -> None:
        raise RuntimeError("no log")

    running.proxy._gate._on_denied = fail
    assert await running.ask(plain("evil.test")) == b""
    loop.set_exception_handler(before)
    assert [str(error) for error in reported] == ["no log"]
