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
    """Return who calls: what the guard has found."""
    caller: Token = connection.scope["cellblock.caller"]
    return caller


def problem_for(connection: HTTPConnection, error: CellblockError) -> Problem:
    """Return the problem that an error is for who calls. A token for one session is not told the names of others."""
    problem = problem_of(error)
    if isinstance(error, NotFoundError) and caller_of(connection).session:
        return replace(problem, detail=problem.detail.partition("; did you mean ")[0])
    return problem


def link_of(connection: HTTPConnection) -> SessionLink:
    """Return the gateway's link to the daemon."""
    link: SessionLink = connection.app.state.link
    return link


def settings_of(connection: HTTPConnection) -> Settings:
    """Return the settings that the gateway was started with."""
    settings: Settings = connection.app.state.settings
    return settings


def needs(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Token]]:
    """Return a dependency that lets callers pass who have a scope, and who may use the session in the path.

    A token for one session passes only if the path names that session (``{session}``) or an execution in it
    (``{execution}``): whatever else there is, is about more than that session. A route for which that is not so asks for
    `needs_of_any`, and looks at `Token.session` itself.
    """

    async def check(connection: HTTPConnection) -> Token:
        caller = caller_of(connection)
        check_scope(caller, scope)
        if caller.session:
            await check_session(connection, caller)
        return caller

    check.scope = scope  # type: ignore[attr-defined]  # for the description of the API, and for a test
    return check


def needs_of_any(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Token]]:
    """Return a dependency as `needs` does, which lets tokens for any one session pass."""

    async def check(connection: HTTPConnection) -> Token:
        caller = caller_of(connection)
        check_scope(caller, scope)
        return caller

    check.scope = scope  # type: ignore[attr-defined]
    return check


def check_scope(caller: Token, scope: Scope, why: str = "") -> None:
    """Check that a caller has a scope.

    Args:
        caller: Whose token it is.
        scope: The scope.
        why: The reason, appended to the message, if the address of the request does not show it.

    Raises:
        AccessError: It has not.
    """
    if not caller.may(scope):
        raise AccessError(f"this token does not have the scope {scope!r}{why}")


async def check_session(connection: HTTPConnection, caller: Token) -> None:
    """Check that a request is about the one session that its token is for.

    Raises:
        AccessError: It is not; or there is no such session, which the token is not to tell.
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
