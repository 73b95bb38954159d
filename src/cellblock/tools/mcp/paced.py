"""HTTP connections that limit the work per iteration of the loop and the heads of responses.

The library parses everything from one read before it yields to the loop. 64 KB can be ten thousand chunks of a body, or ten
thousand interim responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

import cellblock.common.linear_h11  # noqa: F401  # h11 takes quadratic time otherwise

_PIECE = 4096
"""Bytes per turn. Parsing them takes at most about 20 ms."""
_MAX_HEAD = 16 * 1024
_MAX_HEADERS = 200
_MAX_INTERIM = 20  # interim responses before the final one
_MAX_CONNECTIONS = 100
_MAX_IDLE = 20  # connections kept for reuse
_SECONDS_IDLE = 5.0
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d")


class Heads:
    """A checker of the heads of responses on one connection, without I/O."""

    def __init__(self) -> None:
        self._head: bytearray | None = bytearray()  # None while a body is read
        self._interim = 0

    def asked(self) -> None:
        """Record a request: the head of its response follows."""
        self._head, self._interim = bytearray(), 0

    def take(self, data: bytes) -> None:
        """Check received bytes.

        Raises:
            httpcore2.RemoteProtocolError: A head is too large, or there are too many interim responses.
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
        """Refuse a head that takes long to parse."""
        if len(head) > _MAX_HEAD or head.count(b"\n") > _MAX_HEADERS:
            raise httpcore2.RemoteProtocolError(f"it sent more than {_MAX_HEADERS} headers, or {_MAX_HEAD} bytes of them")
        if self._interim > _MAX_INTERIM:
            raise httpcore2.RemoteProtocolError(f"it sent more than {_MAX_INTERIM} interim responses")


class PacedBackend(httpcore2.AsyncNetworkBackend):
    """A backend that wraps the connections of another one to pace them."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _Paced(await self._backend.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _Paced(await self._backend.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        """Wait before another attempt."""
        await self._backend.sleep(seconds)


class _Paced(httpcore2.AsyncNetworkStream):
    """A connection that is read in small pieces, one per iteration of the loop."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._heads = Heads()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)  # bytes that TLS has already decrypted need no wait
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


class PacedTransport(httpx2.AsyncBaseTransport):
    """A transport with paced connections. The library's own transport takes no backend.

    Args:
        url: The server's URL. A proxy from the environment is used.
        tls: The TLS settings.
        direct: The backend of connections without a proxy.
    """

    def __init__(self, url: str, tls: ssl.SSLContext, direct: httpcore2.AsyncNetworkBackend | None = None) -> None:
        proxy = _proxy_for(url)
        backend = httpcore2.AnyIOBackend() if direct is None or proxy is not None else direct
        self._pool = httpcore2.AsyncConnectionPool(
            tls,
            proxy=proxy,
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_IDLE,
            keepalive_expiry=_SECONDS_IDLE,
            network_backend=PacedBackend(backend),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent = httpcore2.Request(
            request.method,
            target,
            headers=request.headers.raw,
            content=cast(httpx2.AsyncByteStream, request.stream),
            extensions=request.extensions,
        )
        with _translated():
            said = await self._pool.handle_async_request(sent)
        return httpx2.Response(
            said.status, headers=said.headers, stream=_Stream(said), extensions=cast(dict[str, Any], said.extensions)
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class _Stream(httpx2.AsyncByteStream):
    """The body of a response."""

    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for part in self._response.aiter_stream():
                yield part

    async def aclose(self) -> None:
        await self._response.aclose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate connection errors to errors of the library above, which have the same names."""
    try:
        yield
    except (
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.ProxyError,
        httpcore2.TimeoutException,
        httpcore2.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx2, type(error).__name__)(str(error)) from error


def _proxy_for(url: str) -> httpcore2.Proxy | None:
    """Return the environment's proxy for a server."""
    parts, found = urlsplit(url), getproxies()
    named = found.get(parts.scheme) or found.get("all")
    if not named or proxy_bypass(parts.hostname or ""):
        return None
    proxy = httpx2.Proxy(named if "://" in named else f"http://{named}")
    return httpcore2.Proxy(str(proxy.url), auth=proxy.raw_auth)
