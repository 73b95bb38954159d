"""Checks a caller's token for the scope and the session that a route needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from fastapi.requests import HTTPConnection

from cellblock.errors import AccessError, CellblockError, NotFoundError
from cellblock.fronts.problems import Problem, problem_of
from cellblock.operations.executions import Lookup
from cellblock.operations.sessions import Status
from cellblock.service.daemon.link import SessionLink
from cellblock.service.settings import Settings
from cellblock.service.store.tokens import Scope, Token


def caller_of(connection: HTTPConnection) -> Token:
    """Return the caller that the guard has authenticated."""
    caller: Token = connection.scope["cellblock.caller"]
    return caller


def problem_for(connection: HTTPConnection, error: CellblockError) -> Problem:
    """Convert an error to a problem for a caller. A token for one session does not learn the names of others."""
    problem = problem_of(error)
    if isinstance(error, NotFoundError) and caller_of(connection).session:
        return replace(problem, detail=problem.detail.partition("; did you mean ")[0])
    return problem


def link_of(connection: HTTPConnection) -> SessionLink:
    link: SessionLink = connection.app.state.link
    return link


def settings_of(connection: HTTPConnection) -> Settings:
    settings: Settings = connection.app.state.settings
    return settings


def needs(scope: Scope, *, any_session: bool = False) -> Callable[[HTTPConnection], Awaitable[Token]]:
    """Return a dependency that admits callers with a scope who may use the session in the path.

    A token for one session passes only if the path names that session (``{session}``) or an execution in it
    (``{execution}``), because any other path concerns more than that session.

    Args:
        scope: The scope.
        any_session: Whether tokens for any one session pass. The route then checks `Token.session` itself.
    """

    async def check(connection: HTTPConnection) -> Token:
        caller = caller_of(connection)
        check_scope(caller, scope)
        if caller.session and not any_session:
            await check_session(connection, caller)
        return caller

    check.scope = scope  # type: ignore[attr-defined]  # for the description of the API, and for a test
    return check


def check_scope(caller: Token, scope: Scope, why: str = "") -> None:
    """Check that a caller has a scope.

    Args:
        caller: The token.
        scope: The scope.
        why: The reason, appended to the message, if the URL does not show it.

    Raises:
        AccessError: The token lacks the scope.
    """
    if not caller.may(scope):
        raise AccessError(f"this token does not have the scope {scope!r}{why}")


async def check_session(connection: HTTPConnection, caller: Token) -> None:
    """Check that a request concerns only the session of its token.

    Raises:
        AccessError: It concerns another session, or a session that does not exist, which the token must not reveal.
    """
    asked = connection.path_params.get("session", "")
    link = link_of(connection)
    try:
        if number := connection.path_params.get("execution", ""):
            asked = (await link.call(Lookup(number)))["session"]
        if asked == caller.session:
            return
        found = await link.call(Status(asked)) if asked else {}
    except CellblockError:
        found = {}
    if caller.session not in (found.get("name"), found.get("kernel_id")):
        raise AccessError("this token is for another session")
