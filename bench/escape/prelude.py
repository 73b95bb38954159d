"""What each attack begins with: `suite.program` pastes this file before it. It needs nothing but the standard library."""

from __future__ import annotations

import array  # noqa: F401  # some are for attacks, whose own imports do not come along
import base64
import ctypes
import errno  # noqa: F401
import fcntl  # noqa: F401
import json
import os
import random  # noqa: F401
import resource  # noqa: F401
import signal  # noqa: F401
import socket
import sys  # noqa: F401
import time  # noqa: F401
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)


class NotHereError(Exception):
    """This sandbox has nothing that the attack is about."""


def call(number: int, *arguments: Any) -> int:
    """Make a system call, and raise its error."""
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *converted)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> str:
    """Return what is in a file."""
    with open(path, errors="replace") as file:
        return file.read(100_000)


def write(path: str, text: str, mode: str = "w") -> str:
    """Write a file, with its directory."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as file:
        file.write(text)
    return f"wrote {path}"


def rewrite(path: str) -> str:
    """Write to a file what it has."""
    with open(path, "r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text)
    return f"wrote to {path}"


def first(action: Callable[[Any], Any], choices: Iterable[Any]) -> Any:
    """Return the first true value of an action, or raise its last error."""
    error: Exception = OSError("nothing to try")
    for choice in choices:
        try:
            if found := action(choice):
                return found
        except OSError as raised:
            error = raised
    raise error


def ask(address: str, port: int) -> str:
    """Return what a server says, if it can be reached."""
    with socket.create_connection((address, port), 2) as it:
        return said(it)


def said(it: socket.socket) -> str:
    """Ask what is connected for its page."""
    it.sendall(b"GET / HTTP/1.0\r\nHost: canary\r\n\r\n")
    return answer(it)


def answer(it: socket.socket) -> str:
    """Return what comes until the end."""
    found = b""
    try:
        while piece := it.recv(65536):
            found += piece
    except TimeoutError:
        pass
    return found.decode(errors="replace")


def proxies() -> list[tuple[socket.socket, str]]:
    """Connect to the proxies that the sandbox offers: by variables, or at the usual ports. With ``name:password``."""
    found = {("127.0.0.1", 3128): "", ("127.0.0.1", 1080): ""}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "FTP_PROXY"):
        url = urllib.parse.urlsplit(os.environ.get(name, ""))
        if url.hostname and url.port:
            key = urllib.parse.unquote(f"{url.username or ''}:{url.password or ''}")
            found[url.hostname.replace("localhost", "127.0.0.1"), url.port] = key if url.username else ""
    connected = []
    for place, key in found.items():
        try:
            connected.append((socket.create_connection(place, 2), key))
        except OSError:
            continue
    if not connected:
        raise NotHereError("the sandbox has no proxy")
    return connected


def by_http(line: bytes, host: bytes) -> str:
    """Send a request to each proxy, and return what is behind the one that serves it."""
    found = "no answer"
    for it, key in proxies():
        with it:
            auth = b"Proxy-Authorization: Basic " + base64.b64encode(key.encode()) + b"\r\n" if key else b""
            it.sendall(line + b"\r\nHost: " + host + b"\r\n" + auth + b"Connection: close\r\n\r\n")
            try:
                if not line.startswith(b"CONNECT"):
                    found = answer(it)
                elif b" 200" in (head := it.recv(4096)).split(b"\r\n")[0]:
                    found = said(it)
                else:
                    found = head.decode(errors="replace")
            except OSError as error:
                found = str(error)
        if "canary:" in found:
            return found
    raise PermissionError(found[:200])


def by_socks(name: bytes, port: int) -> str:
    """Have each proxy that speaks SOCKS5 connect to a name, and return what is there."""
    found = "no answer"
    for it, key in proxies():
        with it:
            try:
                it.sendall(b"\5\2\0\2")
                if it.recv(2) == b"\5\2":
                    user, _, password = key.encode().partition(b":")
                    it.sendall(b"\1" + bytes([len(user)]) + user + bytes([len(password)]) + password)
                    it.recv(2)
                it.sendall(b"\5\1\0\3" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
                reply = it.recv(10)
                found = said(it) if reply[1:2] == b"\0" else f"reply {reply!r}"
            except OSError as error:
                found = str(error)
        if "canary:" in found:
            return found
    raise PermissionError(found[:200])


def run(attack: Callable[[dict[str, Any]], object], given: dict[str, Any]) -> None:
    """Make an attack, and print the verdict as one line of JSON."""
    verdict: dict[str, Any]
    try:
        evidence = attack(given)
        verdict = {"escaped": bool(evidence), "evidence": str(evidence)[:20_000]}
    except NotHereError as reason:
        verdict = {"escaped": False, "evidence": str(reason), "applies": False}
    except Exception as error:
        verdict = {"escaped": False, "evidence": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(verdict), flush=True)
