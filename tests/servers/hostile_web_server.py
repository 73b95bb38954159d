"""An MCP server over HTTP, by hand: it answers as it should, but for what its tools do wrong. Prints its port.

It speaks streamable HTTP at ``/mcp`` and server-sent events at ``/sse``. The name of a tool says what is sent in place of an
answer.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

PIECE = 262_144
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n" + CHUNKED
JSON = OK + b"Content-Type: application/json\r\n" + CHUNKED
NOTICE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":""}}'
PING = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'


def event(data: bytes) -> bytes:
    return b"event: message\ndata: " + data + b"\n\n"


def many(piece: bytes) -> Iterator[bytes]:
    return repeat(piece * (PIECE // len(piece)))


def result(number: int, content: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":{"n":%s}}}' % (number, content)


def events(name: str, number: int, arguments: dict[str, Any]) -> Iterator[bytes] | None:
    """What a tool sends as events, without end or with one."""
    match name:
        case "notices":
            return many(event(NOTICE))
        case "tiny-events":
            return many(b"data:\n\n:\n\nevent:x\nid:1\n\ndata:x\n\n")
        case "long-event":
            return (piece for pieces in ([b"data: "], many(b"x")) for piece in pieces)
        case "lines":
            return many(b"data:ab\n")
        case "pings":
            return (b"".join(event(PING % (first + more)) for more in range(1000)) for first in count(0, 1000))
        case "values-in-an-event":
            return iter([event(result(number, b"[" + b"[]," * arguments["count"] + b"0]"))])
    return None


def answer(name: str, number: int, arguments: dict[str, Any]) -> tuple[bytes, Iterator[bytes]]:
    """What a tool sends: a head, and chunks of a body."""
    if (said := events(name, number, arguments)) is not None:
        return EVENTS, said
    match name:
        case "raw":
            return JSON, iter([arguments["line"].replace("ID", str(number)).encode("latin-1")])
        case "body":
            return JSON, many(b"x")
        case "values":
            return JSON, iter([result(number, b"[" + b"[]," * arguments["count"] + b"0]")])
        case "text":
            return JSON, iter([result(number, json.dumps("[]," * arguments["count"]).encode())])
        case "nested":
            return JSON, iter([result(number, b"[" * arguments["count"] + b"]" * arguments["count"])])
        case "headers":
            return OK + b"a:\r\n" * arguments["count"] + CHUNKED, iter([])
        case "cookies":
            new = b"".join(b"Set-Cookie: %d%d=1\r\n" % (number, cookie) for cookie in range(arguments["count"]))
            return OK + new + b"Content-Type: application/json\r\n" + CHUNKED, iter([result(number, b"1")])
    return JSON, iter([result(number, b"1")])


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Visit:
    """One connection of a client."""

    stream: socket.socket | None = None
    """Where the events of a client of ``/sse`` go."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.file = client.makefile("rb")
        try:
            while self.serve():
                pass
        except (OSError, ValueError):
            pass
        client.close()

    def serve(self) -> bool:
        words = self.file.readline().split()
        if len(words) != 3:
            return False
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        body = self.file.read(int(headers.get(b"content-length", b"0")))
        if words[0] == b"GET" and words[1] == b"/sse":
            self.client.sendall(EVENTS + chunked(b"event: endpoint\ndata: /post\n\n"))
            Visit.stream = self.client
        elif words[0] == b"GET" and words[1] == b"/mcp":
            self.client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
        elif words[0] == b"POST":
            self.take(json.loads(body), over_sse=words[1] == b"/post")
        else:
            self.client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    def take(self, message: dict[str, Any], *, over_sse: bool) -> None:
        number, params = message.get("id"), message.get("params") or {}
        if "method" not in message:
            threading.Event().wait()  # an answer to a ping: the client never hears that it arrived
        if not isinstance(number, int) or over_sse:
            self.client.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        if not isinstance(number, int):
            return
        name, arguments = params.get("name", ""), params.get("arguments") or {}
        if message["method"] == "initialize":
            said = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {},
                "serverInfo": {"name": "", "version": ""},
            }
            head, pieces = JSON, iter([json.dumps({"jsonrpc": "2.0", "id": number, "result": said}).encode()])
        elif message["method"] != "tools/call":
            said = {"code": -32601, "message": "Method not found"}
            head, pieces = JSON, iter([json.dumps({"jsonrpc": "2.0", "id": number, "error": said}).encode()])
        elif name == "interim":
            self.client.sendall(b"".join([b"HTTP/1.1 102 \r\n\r\n" * 1000] * arguments["count"]))
            head, pieces = answer("", number, {})
        elif name == "tiny-chunks":
            self.client.sendall(JSON)
            while True:
                self.client.sendall(b"1\r\nx\r\n" * 40_000)
        else:
            head, pieces = answer(name, number, arguments)
        if over_sse:
            assert Visit.stream is not None
            for piece in pieces:
                Visit.stream.sendall(chunked(piece if head is EVENTS else event(piece)))
            return
        self.client.sendall(head)
        for piece in pieces:
            self.client.sendall(chunked(piece))
        self.client.sendall(b"0\r\n\r\n")


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=Visit, args=(listener.accept()[0],), daemon=True).start()


main()
