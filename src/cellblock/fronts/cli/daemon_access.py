"""The command line's connection to the daemon. Standard library only, so that `cellblock exec` starts quickly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cellblock.common import telemetry
from cellblock.errors import InvalidInputError, NotFoundError, NotRunError
from cellblock.fronts import where
from cellblock.fronts.cli.progress import Progress
from cellblock.fronts.given_options import as_meant
from cellblock.operations.base import AnswerT, Request
from cellblock.operations.sessions import Create, List
from cellblock.service import settings

if TYPE_CHECKING:
    from cellblock.service.daemon.daemon_connection import SessionConnection

_T = TypeVar("_T")
_TRIES = 5


def connect() -> SessionConnection:
    """Connect to the daemon, and start it if needed.

    Raises:
        DaemonError: The daemon cannot be started or reached.
    """
    telemetry.inherit()
    with Progress("waiting for the daemon's answer"):
        found = where.open_if_running()
    if found is not None:
        return found
    with Progress("starting the daemon"):
        return where.open_connection()


@contextmanager
def connected() -> Iterator[SessionConnection]:
    """Open a connection for a ``with`` block. Errors about missing sessions list the existing ones."""
    with closing(connect()) as connection:
        try:
            yield connection
        except NotFoundError as error:
            message = str(error)
            if not connection.usable or not message.startswith("there is no session") or "; did you mean " in message:
                raise
            raise NotFoundError(f"{message}{_known_sessions(connection)}") from None


def until_taken(work: Callable[[SessionConnection], _T]) -> _T:
    """Run requests on a connection. If the daemon ends before it takes them, run them at the next daemon.

    Raises:
        NotRunError: Several daemons ended in a row.
    """
    for _ in range(_TRIES - 1):
        with connected() as connection:
            try:
                return work(connection)
            except NotRunError:
                if connection.usable:
                    raise
    with connected() as connection:
        return work(connection)


def ask(request: Request[AnswerT], body: bytes = b"") -> AnswerT:
    return until_taken(lambda connection: connection.call(request, body))


def call_in_session(connection: SessionConnection, session: str, request: Request[AnswerT], body: bytes = b"") -> AnswerT:
    """Run an operation in a session, and create the session if it does not exist."""
    try:
        return connection.call(request, body)
    except NotFoundError:
        connection.call(Create(session, session_options()))
        return connection.call(request, body)


def _known_sessions(connection: SessionConnection) -> str:
    names = [record["name"] for record in connection.call(List())]
    if not names:
        return "; there are no sessions yet: 'cellblock create NAME' makes one"
    more = ", …" if len(names) > 10 else ""
    return f"; the sessions are {', '.join(sorted(names)[:10])}{more}"


def chosen(*names: str | None) -> str:
    """Return the only name or id that was given.

    Raises:
        InvalidInputError: None was given, more than one, or an empty one.
    """
    given = [name for name in names if name is not None]
    if len(given) != 1 or not given[0]:
        raise InvalidInputError("name one session, as NAME, --name NAME or --id ID ('cellblock list' shows them)")
    return given[0]


def session_options(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of a session: the given ones, then settings, then defaults for the current directory.

    Raises:
        InvalidInputError: The current directory was removed, or a setting is invalid.
    """
    try:
        directory = os.getcwd()
    except OSError:
        raise InvalidInputError("the current directory no longer exists; change to another one") from None
    here = {"current_dir": directory, "python": sys.executable}
    return as_meant(settings.current().session_options(here | dict(given or {})))
