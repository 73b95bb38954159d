"""Routes of operations, generated from their declarations (`operations.base.Route`), with models of requests and answers."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Request as HttpRequest
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model
from starlette.requests import ClientDisconnect

from cellblock.errors import AccessError, CellblockError
from cellblock.fronts.gateway.access import link_of, needs
from cellblock.fronts.gateway.answers import json_response, packed_response, while_there
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.descriptions import documented
from cellblock.fronts.gateway.models import Done, Strict, shown
from cellblock.model.sessions import SessionRecord
from cellblock.operations import OPERATIONS
from cellblock.operations.base import Limits, Request, Route
from cellblock.operations.data import answer_type
from cellblock.service.store.tokens import Scope, Token

_RequestT = TypeVar("_RequestT", bound=Request[Any])
Answer = Callable[[HttpRequest, Token, _RequestT], Awaitable[Any]]
"""Answers an operation for a caller: asks the daemon, and looks at what the caller may see."""


class _Names(NamedTuple):
    """Names of an operation's function and models in OpenAPI, if they differ from the default."""

    function: str = ""
    request: str = ""
    answer: str = ""


_NAMES = {
    "make checkpoint": _Names("make", "WantedCheckpoint"),
    "checkpoints": _Names("list_checkpoints", "", "CheckpointList"),
    "drop checkpoint": _Names("drop"),
    "undo": _Names("", "WantedUndo"),
    "fork": _Names("", "WantedBranches", "Branches"),
    "adopt": _Names("", "WantedAdoption"),
    "variables": _Names("", "", "VariablesModel"),
    "pending": _Names("", "", "PendingListResponse"),
    "decide": _Names("", "", "DecidedResponse"),
    "allowed": _Names("", "", "PermissionListResponse"),
    "revoke": _Names("", "", "RevokedResponse"),
    "complete": _Names("", "CodeAtCursor"),
    "inspect": _Names("", "", "InspectionModel"),
    "history": _Names("", "", "HistoryModel"),
    "list": _Names("list_kernels", "", "KernelListResponse"),
    "destroy": _Names("", "", "KernelDestroyedResponse"),
    "wipe": _Names("", "", "KernelWipeResponse"),
    "executions": _Names("", "", "ExecutionListResponse"),
    "answer": _Names("", "Line"),
    "list files": _Names("", "", "FileListResponse"),
}
"""Names that there were before routes were made from operations: programs made from the description use them."""


def add(
    router: APIRouter,
    kind: type[_RequestT],
    answer: Answer[_RequestT] | None = None,
    *,
    model: type[BaseModel] | None = None,
    any_session: bool = False,
    tag: str = "",
) -> None:
    """Add the route of an operation to a router.

    Args:
        router: The router.
        kind: The operation.
        answer: The function that answers it, if a request to the daemon is not enough.
        model: The model of its answer, if it does not follow from the declaration.
        tag: Its group in the description, if it differs from the router's.
        any_session: Whether tokens for one session pass for any path. `answer` must check `Token.session`.
    """
    route = kind.route
    assert route is not None
    path, names = route.path.removeprefix(router.prefix), _names(kind)
    answers, text = shown(answer_type(kind)), documented(kind)[0]
    router.add_api_route(
        path,
        _endpoint(kind, route, answer, needs(cast("Scope", route.scope), any_session=any_session)),
        methods=[route.method],
        response_model=model or (_within(names.answer, text, route.within, answers) if route.within else answers),
        summary=route.summary,
        description=text,
        name=names.function,
        tags=[tag] if tag else None,
    )


def _endpoint(kind: type[_RequestT], route: Route, answer: Answer[_RequestT] | None, check: Any) -> Callable[..., Any]:
    """Return the function of a route, with a signature from which FastAPI derives the parameters."""
    with_ages = _names_sessions(answer_type(kind))

    async def endpoint(request: HttpRequest, caller: Token, wanted: BaseModel | None = None, **given: Any) -> Response:
        check_others(route, caller)
        if "by" in route.without:
            given["by"] = caller.name
        for name, value in wanted or ():
            if value is not None:
                given[name] = tuple(value) if isinstance(value, list) else value
        body = given.pop(route.text, "").encode("utf-8", "replace") if route.text else b""
        asked = kind(**given)
        if route.attended:
            try:
                call = link_of(request).call_packed(asked, body)
                return packed_response(await while_there(request.receive, call))
            except ClientDisconnect:
                raise CellblockError("the client has left") from None
        data = await (link_of(request).call(asked, body) if answer is None else answer(request, caller, asked))
        if with_ages:
            data = [with_age(one) for one in data] if isinstance(data, list) else with_age(data)
        return json_response({route.within: data} if route.within else data)

    endpoint.__name__ = _names(kind).function
    endpoint.__signature__ = inspect.Signature(_parameters(kind, route, check))  # type: ignore[attr-defined]
    return endpoint


def check_others(route: Route, caller: Token) -> None:
    """Check that a caller may affect other sessions, if a route does.

    Raises:
        AccessError: The token is for one session.
    """
    if route.others and caller.session:
        raise AccessError(f"this token is for one session, and cannot {route.others} others")


def _names_sessions(hint: Any) -> bool:
    return hint is SessionRecord or any(map(_names_sessions, typing.get_args(hint)))


def with_age(record: dict[str, Any]) -> dict[str, Any]:
    """Add the age to a session's record, as in KernelBox."""
    return {**record, "age_seconds": SessionRecord.from_dict(record).age_seconds}


# -- what is taken -----------------------------------------------------------------------------------------------------


def _parameters(kind: type[Request[Any]], route: Route, check: Any) -> list[inspect.Parameter]:
    def parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)

    made = [parameter("request", HttpRequest), parameter("caller", Annotated[Token, Depends(check)])]
    made += [parameter(name, str) for name in route.places]
    if route.method == "POST":
        return made + [parameter("wanted", *body) for body in [_body(kind, route)] if body is not None]
    explained = documented(kind)[1]
    for name, hint, default in _taken(kind, route):
        made.append(parameter(name, Annotated[hint, Query(description=explained.get(name))], default))
    return made


def _body(kind: type[Request[Any]], route: Route) -> tuple[Any, ...] | None:
    """Return the model of a request's body, and its default if it is optional; None if there is no body."""
    text, explained = documented(kind)
    taken = _taken(kind, route)
    if not taken:
        return None
    fields: dict[str, Any] = {}
    for name, hint, default in taken:
        empty = default is inspect.Parameter.empty
        known: dict[str, Any] = {"default": ...} if empty else {"default": default}
        if not empty and default in ((), {}):
            known = {"default_factory": dict if default == {} else list}
        fields[name] = (hint, Field(**known, description=explained.get(name)))
    model = create_model(_names(kind).request, __base__=Strict, __doc__=text, **fields)
    needed = any(default is inspect.Parameter.empty for _, _, default in taken)
    return (model,) if needed else (model | None, None)


def _taken(kind: type[Request[Any]], route: Route) -> list[tuple[str, Any, Any]]:
    """Return the parameters outside the path: names, JSON types, and defaults."""
    found: list[tuple[str, Any, Any]] = []
    if route.text:
        needed = route.text_default is None
        given = inspect.Parameter.empty if needed else route.text_default
        found.append((route.text, _limited(str, route.text_limits), given))
    hints, parameters = typing.get_type_hints(kind, include_extras=True), inspect.signature(kind).parameters
    for name in [one.name for one in route.sent(kind)]:
        hint, default = _json(hints[name]), parameters[name].default
        choices = typing.get_args(typing.get_args(hint)[0]) if typing.get_origin(hint) is Annotated else ()
        if default == "" and choices and "" not in choices:
            hint, default = hint | None, None  # an empty default means "not given"
        found.append((name, hint, default))
    return found


def _json(hint: Any) -> Any:
    """Return the JSON type of a field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _limited(_json(arguments[0]), arguments[1])
    if origin is tuple:
        return list[_json(arguments[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, arguments[1]]  # type: ignore[valid-type]
    return hint


def _limited(hint: Any, limits: Limits) -> Any:
    shown = Literal[limits.choices] if limits.choices else hint
    bounds: dict[str, Any] = limits.bounds
    return Annotated[shown, Field(**bounds)] if limits.bounds or limits.choices else hint


# -- what is answered --------------------------------------------------------------------------------------------------


def _within(name: str, text: str, field: str, answers: Any) -> type[BaseModel]:
    """Return the model of an answer nested in an object."""
    fields: dict[str, Any] = {field: (answers, ...)}
    return Done if (field, answers) == ("done", bool) else create_model(name, __doc__=text, **fields)


# -- names -------------------------------------------------------------------------------------------------------------


def _names(kind: type[Request[Any]]) -> _Names:
    names = _NAMES.get(kind.op, _Names())
    return _Names(
        names.function or kind.op.replace(" ", "_"),
        names.request or f"{kind.__name__}Request",
        names.answer or f"{kind.__name__}Response",
    )


# -- what needs no code ------------------------------------------------------------------------------------------------

_TAGS = {"executions": "Execution", "saving": "Sessions"}
"""Groups in the description, by module of the operations, if they are not the module's name."""


def derived(others: Iterable[APIRouter]) -> APIRouter:
    """Return a router for all operations with a route that is in none of the other routers."""
    known = [route for other in others for route in other.routes if isinstance(route, APIRoute)]
    taken = {(method, route.path) for route in known for method in route.methods or ()}
    router = APIRouter(route_class=CheckedRoute)
    for kind in OPERATIONS.values():
        if kind.route is not None and (kind.route.method, kind.route.path) not in taken:
            add(router, kind, tag=_tag(kind, kind.route))
    return router


def _tag(kind: type[Request[Any]], route: Route) -> str:
    if route.path.startswith("/kernels"):
        return "Kernels"
    module = kind.__module__.rpartition(".")[2]
    return _TAGS.get(module, module.capitalize())
