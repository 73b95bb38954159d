"""The package index for pip, served by the host on a listener in pip's own sandbox.

It only answers GET requests for pages of an index and for files on these pages. The host fetches them, with credentials that
pip never sees.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPResponse
from types import TracebackType
from typing import NamedTuple, Self, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

import h11

import cellblock.common.linear_h11  # noqa: F401  # h11 takes quadratic time otherwise
from cellblock.walls.packages import pages
from cellblock.walls.packages.archives import Archive, Archives
from cellblock.walls.packages.fetch import Fetcher, read_page
from cellblock.walls.packages.index import PackageIndex, local_path
from cellblock.walls.packages.pages import File

Value = TypeVar("Value")

_LOGIN = "cellblock"
_HEAD = 16 * 1024
_HEAD_SECONDS = 10.0
_SEND_SECONDS = 60.0
_CONNECTIONS = 16
_PAGE = 64 * 1024 * 1024
_ALL_PAGES = 256 * 1024 * 1024
_PIECE = 256 * 1024
_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_METADATA = ".metadata"


class _NotServedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Page(NamedTuple):
    """A page of an index.

    Attributes:
        size: Its size in bytes.
        text: The page for pip.
        files: Its files by name.
        too_new: Number of files that were left out.
    """

    size: int
    text: bytes
    files: dict[str, File]
    too_new: int


class PackageMirror:
    """The index server of one installation, as an async context manager.

    Attributes:
        fetcher: Fetches what the pages name.
        unreachable: Whether a page could not be fetched because there was no answer.
        too_new: Number of files that were left out because of their age, or because the index does not tell it.
    """

    def __init__(
        self,
        listener: socket.socket,
        index: PackageIndex,
        size: int,
        archives: Archives | None = None,
        on_archive: Callable[[], object] = lambda: None,
    ) -> None:
        """Store the arguments. Nothing is served yet.

        Args:
            listener: The listener in pip's sandbox; closed at the end.
            index: The source of packages.
            size: Maximum total size of served files, in bytes.
            archives: Provides the archives that it has, and gets those that are served.
            on_archive: Called when an archive is served that was missing.
        """
        self._listener = listener
        self._index = index
        self._archives = archives
        self._on_archive = on_archive
        self.fetcher = Fetcher(index)
        self.unreachable = False
        self.too_new = 0
        self._newest = _time_before(index.age) if index.age else ""
        # Without a sandbox, the listener is on the machine's interface, and other users' programs can reach it. The URLs do
        # not contain the secret: they are on command lines of pip and its builds, which all users can read.
        self._secret = secrets.token_hex(16)
        self._sources = [url for url in (*index.indexes, *index.links) if local_path(url) is None]
        self._known: dict[str, tuple[bytes, dict[str, File]]] = {}
        self._pages_left = _ALL_PAGES
        self._files_left = size
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, sock=self._listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def options(self, port: int) -> list[str]:
        """Return pip's options for taking packages from here, and from the host's local directories."""
        options = ["--pre"] if self._index.prereleases else []
        first = True
        for source in self._index.indexes:
            options += ["--index-url" if first else "--extra-index-url", self._served(source, port)]
            first = False
        for source in self._index.links:
            options += ["--find-links", self._served(source, port)]
        return [*options, "--no-index"] if first else options

    def _served(self, source: str, port: int) -> str:
        if local_path(source) is not None:
            return source
        return f"http://127.0.0.1:{port}/{self._sources.index(source)}/"

    @property
    def credentials(self) -> str:
        """The content of the file (netrc) that gives pip access."""
        return f"machine 127.0.0.1 login {_LOGIN} password {self._secret}\n"

    # -- one request ---------------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= _CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        try:
            try:
                async with asyncio.timeout(_HEAD_SECONDS):
                    request = await client.request()
                await self._answer(request, client)
            except _NotServedError as error:
                text = f"cellblock: {error}\n".encode(errors="backslashreplace")
                await client.begin(error.status, "text/plain; charset=utf-8", len(text))
                await client.send(text)
                await client.end()
            writer.close()
            async with asyncio.timeout(_SEND_SECONDS):
                await writer.wait_closed()
        except (OSError, ValueError, h11.ProtocolError):
            pass  # pip, or a program of it, disconnected or violated HTTP; or the index sends more than announced
        finally:
            writer.transport.abort()

    async def _answer(self, request: h11.Request, client: _Client) -> None:
        _check_fetches(request)
        given = dict(request.headers).get(b"authorization", b"")
        expected = b"Basic " + base64.b64encode(f"{_LOGIN}:{self._secret}".encode())
        if not secrets.compare_digest(given, expected):
            raise _NotServedError(404, "the page does not exist")
        names = request.target.decode("ascii")[1:].split("/")
        source, project, name = self._named([unquote(part) for part in names])
        if not name:
            page, _ = await self._page(source, project)
            await client.begin(200, "text/html; charset=utf-8", len(page))
            await client.send(page)
            await client.end()
            return
        url, digest = await self._file(source, project, name)
        archives = self._archives
        if archives is not None and digest and name.endswith(_METADATA):
            if (data := await _in_thread(functools.partial(archives.metadata, digest))) is not None:
                await client.begin(200, "application/octet-stream", len(data))
                await client.send(data)
                await client.end()
                return
        elif archives is not None and digest and await _in_thread(functools.partial(archives.has, digest)):
            await self._serve_archive(archives.path(digest), client)
            return
        await self._pass_on(url, client, "" if name.endswith(_METADATA) else digest)

    def _named(self, names: list[str]) -> tuple[str, str, str]:
        """Return the source, the project ("" for a page of links) and the file ("" for a page) of a path."""
        number, *rest = names
        if not number.isdecimal() or int(number[:4]) >= len(self._sources):
            raise _NotServedError(404, "the index does not exist")
        source = self._sources[int(number[:4])]
        if source in self._index.links:
            rest = ["", *rest]
        if len(rest) == 1:
            rest.append("")
        if (
            len(rest) != 2
            or (rest[0] and not _PROJECT.fullmatch(rest[0]))
            or (not rest[0] and source not in self._index.links)
        ):
            raise _NotServedError(404, "an index has only project pages and files")
        return source, rest[0], rest[1]

    async def _page(self, source: str, project: str) -> tuple[bytes, dict[str, File]]:
        """Return a page for pip, and its files. Each page is fetched once."""
        url = _with_path(source, f"{urlsplit(source).path.rstrip('/')}/{project}/") if project else source
        if (known := self._known.get(url)) is not None:
            return known
        if self._pages_left <= 0:
            raise _NotServedError(429, "this installation requested too many pages")
        try:
            page = await _in_thread(functools.partial(_read, self.fetcher, url, self._newest, self._archives))
        except HTTPError as error:
            raise _NotServedError(
                error.code if 400 <= error.code < 600 else 502, f"the index answered: {error.reason}"
            ) from error
        except (OSError, ValueError) as error:
            self.unreachable = self.unreachable or isinstance(error, OSError)
            raise _NotServedError(502, f"the index cannot be read: {_without_urls(error)}") from error
        self._pages_left -= page.size + 1024
        self.too_new += page.too_new
        return self._known.setdefault(url, (page.text, page.files))

    async def find(self, path: str) -> File:
        """Return a file by the path of its URL here, from the index's own page.

        Raises:
            ValueError: There is no such file.
        """
        try:
            source, project, name = self._named([unquote(part) for part in path.removeprefix("/").split("/")])
            _, files = await self._page(source, project)
            return files[name]
        except (_NotServedError, KeyError) as error:
            raise ValueError(f"the index has no file {path[:200]!r}") from error

    async def _file(self, source: str, project: str, name: str) -> tuple[str, str]:
        """Return a file's URL, and the SHA-256 hash of the archive, if known."""
        _, files = await self._page(source, project)
        if (file := files.get(name)) is not None:
            return file.url, file.sha256
        if name.endswith(_METADATA) and (file := files.get(name.removesuffix(_METADATA))) is not None:
            return _with_path(file.url, urlsplit(file.url).path + _METADATA), file.sha256
        raise _NotServedError(404, "the index does not name this file")

    async def _serve_archive(self, path: str, client: _Client) -> None:
        with open(path, "rb") as file:  # noqa: ASYNC230  # a local file, in pieces
            await client.begin(200, "application/octet-stream", os.fstat(file.fileno()).st_size)
            while piece := file.read(_PIECE):
                await client.send(piece)
        await client.end()

    async def _pass_on(self, url: str, client: _Client, digest: str) -> None:
        """Fetch a file, and forward it as it arrives. Keep it if its hash is known."""
        try:
            response = await _in_thread(functools.partial(self.fetcher.open, url), late=HTTPResponse.close)
        except HTTPError as error:
            raise _NotServedError(
                error.code if 400 <= error.code < 600 else 502, f"the index answered: {error.reason}"
            ) from error
        except (OSError, ValueError) as error:
            raise _NotServedError(502, f"the file cannot be fetched: {_without_urls(error)}") from error
        reading: asyncio.Future[bytes] | None = None
        keeping = contextlib.ExitStack()
        kept: Archive | None = None
        if self._archives is not None and digest:
            self._on_archive()
            kept = keeping.enter_context(self._archives.adding(digest))
        try:
            length = response.getheader("Content-Length")
            await client.begin(200, "application/octet-stream", int(length) if length and length.isdecimal() else None)
            while True:
                reading = asyncio.get_running_loop().run_in_executor(_pool(), response.read, _PIECE)
                piece = await asyncio.shield(reading)
                self._files_left -= len(piece)
                if self._files_left < 0:
                    raise ValueError("too much data")  # pip has a part of the file, as the end of the connection tells it
                if not piece:
                    keeping.close()
                    await client.end()
                    return
                if kept is not None:
                    kept.write(piece)
                await client.send(piece)
        except BaseException as error:
            keeping.__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            if reading is None or reading.done():
                response.close()
            else:  # a thread uses it
                reading.add_done_callback(lambda _: response.close())


class _Client:
    """One connection: a request, and its response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)

    async def request(self) -> h11.Request:
        """Return the head of the request, and ignore the rest.

        Raises:
            RemoteProtocolError: It is not HTTP, or too long, or the connection ends in it.
        """
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_HEAD))
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("the connection was closed")
        return event

    async def begin(self, status: int, kind: str, length: int | None) -> None:
        """Send the head of the response.

        Args:
            status: Its status.
            kind: The type of the body.
            length: Size of the body in bytes, if known.
        """
        headers = [("Content-Type", kind), ("Connection", "close")]
        if length is not None:
            headers.append(("Content-Length", str(length)))
        await self._send(h11.Response(status_code=status, headers=headers, reason=b"-"))

    async def send(self, data: bytes) -> None:
        """Send a part of the body, and wait until there is room for the next.

        Raises:
            LocalProtocolError: The body exceeds the announced length.
        """
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the body.

        Raises:
            LocalProtocolError: The body is shorter than the announced length.
        """
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(_SEND_SECONDS):
            await self._writer.drain()


def _check_fetches(request: h11.Request) -> None:
    """Check that a request is a GET of a path here.

    Raises:
        _NotServedError: It is not.
    """
    if request.method != b"GET" or not request.target.startswith(b"/"):
        raise _NotServedError(405, "only pages and files of the package index can be fetched, with GET only")


def _read(fetcher: Fetcher, url: str, newest: str, archives: Archives | None) -> _Page:
    found, kind, body = read_page(fetcher, url, pages.ACCEPT, _PAGE)
    named = pages.read(found, kind, body)
    files = {name: file for name, file in named.items() if not newest or "" < file.uploaded < newest}
    known = frozenset[str]() if archives is None else archives.with_metadata()
    shown = [file.with_metadata() if file.sha256 in known else file for file in files.values()]
    return _Page(len(body), pages.write(shown), files, len(named) - len(files))


def _time_before(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def _in_thread(call: Callable[[], Value], late: Callable[[Value], object] = lambda _: None) -> Value:
    """Run a call in a thread. It cannot be stopped: after a cancellation, `late` gets its result."""
    running = asyncio.get_running_loop().run_in_executor(_pool(), call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(lambda done: done.cancelled() or done.exception() or late(done.result()))
        raise


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # Not the loop's own executor: a slow index must not block the embedding program.
    return ThreadPoolExecutor(8, thread_name_prefix="cellblock-packages")


def _with_path(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path, fragment=""))


def _without_urls(error: Exception) -> str:
    """Return the text of an error without URLs, which could contain passwords."""
    return re.sub(r"\S+://\S+", "URL", str(error))[:300]
