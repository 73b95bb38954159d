"""Bounds what the HTTP library takes from a server in one turn of the loop, and the heads of responses.

The library parses everything from one read before it yields to the loop. 64 KB can be ten thousand chunks of a body, or ten
thousand interim responses.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any

import httpcore2

_PIECE = 4096
"""Bytes of one turn. What they can cost at most is about 20 ms."""
_MAX_HEAD = 16 * 1024
_MAX_HEADERS = 200
_MAX_INTERIM = 20  # interim responses before the final one
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d")


class Heads:
    """Watches the heads of the responses on one connection. Bytes in, no I/O."""

    def __init__(self) -> None:
        self._head: bytearray | None = bytearray()  # None while a body is read
        self._interim = 0

    def asked(self) -> None:
        """Take note of a request: the head of a response comes next."""
        self._head, self._interim = bytearray(), 0

    def take(self, data: bytes) -> None:
        """Look at what was read.

        Raises:
            httpcore2.RemoteProtocolError: A head is larger than it may be, or too many come ahead of the last.
        """
        if self._head is None:
            return
        self._head += data
        while (end := _END_OF_HEAD.search(self._head)) is not None:
            self._check(bytes(self._head[: end.end()]))
            if not _INTERIM.match(self._head):
                self._head = None
                return
            self._interim += 1
            del self._head[: end.end()]
        self._check(self._head)

    def _check(self, head: bytes | bytearray) -> None:
        """Refuse what takes long to parse."""
        if len(head) > _MAX_HEAD or head.count(b"\n") > _MAX_HEADERS:
            raise httpcore2.RemoteProtocolError(f"it sent more than {_MAX_HEADERS} headers, or {_MAX_HEAD} bytes of them")
        if self._interim > _MAX_INTERIM:
            raise httpcore2.RemoteProtocolError(f"it sent more than {_MAX_INTERIM} interim responses")


class PacedBackend(httpcore2.AsyncNetworkBackend):
    """Makes the connections of another backend, and paces them."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Connect to a host."""
        return _Paced(await self._backend.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Connect to a socket with a path."""
        return _Paced(await self._backend.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        """Wait before another attempt."""
        await self._backend.sleep(seconds)


class _Paced(httpcore2.AsyncNetworkStream):
    """A connection that is read in small pieces, each in a turn of its own."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._heads = Heads()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)  # what TLS has already decrypted needs no wait
        data = await self._stream.read(min(max_bytes, _PIECE), timeout)
        self._heads.take(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._heads.asked()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Paced(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
