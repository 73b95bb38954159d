"""The parts shared by both clients, apart from calls: connections, errors, retries, local files."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar

from cellblock.common.whole_file import WholeFile
from cellblock.errors import (
    BusyError,
    CellblockError,
    DaemonError,
    FilesError,
    InvalidInputError,
    OutcomeUnknownError,
    StateError,
)
from cellblock.fronts.problems import error_of
from cellblock.model.overview import Change
from cellblock.model.sessions import ExecutionEvent
from cellblock.operations.data import read_answer as read_data
from cellblock.operations.overview import Watch

if TYPE_CHECKING:
    import httpx2

    C = TypeVar("C", httpx2.Client, httpx2.AsyncClient)

EVENTS = (10.0, 60.0, 10.0, 10.0)
"""Seconds to connect, read, write, and wait in the pool. While nothing happens, the server says so every 15 seconds."""

_PATIENCE = (10.0, None, None, 60.0)  # code may run for as long as the server lets it
_MAX_CONNECTIONS = 512
"""As many requests at once as a gateway allows a token: more of them wait here, and are not refused there."""
_PIECE = 1024 * 1024
_TRIES = 10


def http_client(kind: type[C], url: str, token: str, verify: ssl.SSLContext | bool) -> C:
    """Create an HTTP client.

    Raises:
        InvalidInputError: The URL or the token cannot be used.
    """
    import httpx2

    if not url.startswith(("http://", "https://")):
        raise InvalidInputError(f"the URL of a gateway begins with http:// or https://, not {url!r}")
    if not token.isascii() or not token.isprintable():
        raise InvalidInputError("the token has characters that a token cannot have")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # Without TLS there is nothing to verify, and loading the machine's certificates would take 50 ms for each client.
    checks = verify if url.startswith("https://") else False
    limits = httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=64)
    return kind(base_url=url, headers=headers, verify=checks, timeout=_PATIENCE, limits=limits)


@contextmanager
def errors(*, once: bool = False) -> Iterator[None]:
    """Convert errors of a request to cellblock's errors.

    Raises:
        DaemonError: The server cannot be reached.
        BusyError: Too many requests of this client are in progress; this one was not sent.
        OutcomeUnknownError: The connection was lost during a request that must not be repeated.
        InvalidInputError: The URL is invalid.
        StateError: The client is closed.
    """
    import httpx2

    try:
        yield
    except RuntimeError as error:  # httpx has no specific class for it
        if "closed" in str(error):
            raise StateError("this client is closed: make a new one") from error
        raise
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise unreachable(error) from error
    except httpx2.PoolTimeout as error:
        raise BusyError(f"this client has {_MAX_CONNECTIONS} requests in progress already") from error
    except httpx2.TransportError as error:
        what = f"the connection to the gateway was lost: {_why(error)}"
        if once:
            raise OutcomeUnknownError(f"{what}; it is not known whether the request was carried out") from error
        raise DaemonError(what) from error
    except (httpx2.InvalidURL, UnicodeEncodeError) as error:
        raise InvalidInputError(f"the request is not valid: {error}") from error


def unreachable(error: Exception) -> DaemonError:
    """Return the error for an unreachable gateway."""
    import httpx2

    where = ""
    if isinstance(error, httpx2.RequestError) and (request := vars(error).get("_request")) is not None:
        where = f" at {request.url.scheme}://{request.url.netloc.decode()}"
    return DaemonError(f"the gateway{where} cannot be reached: {_why(error)}; 'cellblock serve' starts one")


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def read_answer(response: httpx2.Response) -> Any:
    """Return the JSON of an answer.

    Raises:
        CellblockError: The answer is an error.
    """
    if not 200 <= response.status_code < 300:
        raise read_error(response)
    try:
        return response.json()
    except ValueError as error:
        raise DaemonError("the server's answer is not JSON: it is not a cellblock gateway") from error


def read_error(response: httpx2.Response) -> CellblockError:
    """Convert an error answer to an exception."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return error_of(response.status_code, body)


class _Reconnecting:
    """A reader that follows something over connections that may be lost."""

    def __init__(self) -> None:
        self._failed = 0

    def pause(self, error: Exception) -> float:
        """Return the seconds to wait before reconnecting.

        Raises:
            DaemonError: The connection failed too often.
        """
        self._failed += 1
        if self._failed > _TRIES:
            raise error if isinstance(error, CellblockError) else unreachable(error)
        return float(min(0.05 * 2**self._failed, 5.0))


class Reconnecting(_Reconnecting):
    """A reader that follows an execution.

    Attributes:
        ended: Whether the last event has arrived.
    """

    def __init__(self, after: int) -> None:
        super().__init__()
        self.ended = False
        self._after = after

    @property
    def query(self) -> dict[str, str]:
        """The query for events after the last received one."""
        return {"after": str(self._after)}

    def event(self, kind: str, data: Any) -> ExecutionEvent | None:
        """Parse a received event; return None if it is already known.

        Raises:
            CellblockError: The server reports an error instead.
        """
        if kind == "problem":
            raise error_of(int(data.get("status", 500)), data)
        event = ExecutionEvent.from_dict(data)
        if event.seq <= self._after:
            return None
        self._failed = 0
        self._after = event.seq
        self.ended = event.kind in ("result", "failed")
        return event


class Watching(_Reconnecting):
    """A reader that follows all sessions across connections, each of which the gateway ends after a minute."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self._after = after
        self._heard = False

    @property
    def query(self) -> dict[str, str]:
        """The query for changes after the last received one."""
        return {"after": self._after} if self._after else {}

    def heard(self) -> None:
        """Note that the gateway has sent something."""
        self._heard = True

    def left(self) -> None:
        """Note that the gateway has ended a connection.

        Raises:
            DaemonError: It has sent nothing.
        """
        if not self._heard:
            raise DaemonError("the gateway ends the stream at once")
        self._heard = False

    def change(self, kind: str, data: Any) -> Change:
        """Parse a received change.

        Raises:
            CellblockError: The server reports an error instead.
        """
        if kind == "problem":
            raise error_of(int(data.get("status", 500)), data)
        self._failed = 0
        change: Change = read_data(Watch, data)
        self._after = change.position or self._after  # only the last part of a large change has a position
        return change


@contextmanager
def arriving(local: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file atomically: it appears under its name when complete.

    Raises:
        FilesError: The file cannot be written.
    """
    name = os.path.abspath(local)
    try:
        with WholeFile(name) as file:
            yield file
    except OSError as error:
        raise FilesError(f"cannot write {name!r}: {error.strerror}", path=name, errno=error.errno) from error


@contextmanager
def opened(local: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a local file.

    Raises:
        FilesError: The file cannot be read.
    """
    try:
        file = open(local, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise FilesError(f"cannot read {os.fspath(local)!r}: {error.strerror}", path=str(local), errno=error.errno) from error
    with file:
        yield file


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_PIECE):
        yield data


async def async_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces(file):
        yield piece
