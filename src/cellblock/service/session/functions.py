"""Functions of this program that code in a session can call, like the tools of a named server."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import keyword
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from cellblock.common.threads import in_own_thread, run_aside
from cellblock.errors import InvalidInputError, shown
from cellblock.tools.calling.content import MAX_MESSAGE, ToolOutcome
from cellblock.tools.calling.functions import REST

Functions = Mapping[str, Callable[..., Any]]
OfferedFunctions = Callable[..., Coroutine[Any, Any, ToolOutcome]]
"""Calls functions by their names with arguments, as the tools of a server are called."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MAX_DOC = 4000


def check_functions(server: str, functions: Functions) -> None:
    """Validate functions before they are offered.

    Raises:
        InvalidInputError: The name of the server or a function is invalid, or an object is not callable.
    """
    if not isinstance(server, str) or not server.isidentifier() or not server.isascii():
        raise InvalidInputError(f"the name of a server must be an ASCII identifier of Python, not {shown(server)}")
    if not isinstance(functions, Mapping):
        raise InvalidInputError(f"functions must be a dict of functions by their names, not {shown(functions)}")
    for name, function in functions.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
            raise InvalidInputError(f"the name of a function must be an ASCII identifier of Python, not {shown(name)}")
        if not callable(function):
            raise InvalidInputError(f"functions must be functions by their names, but {name} is {shown(function)}")


def definitions(server: str, functions: Functions) -> str:
    """Return code that defines functions in a session. Each function calls the function of the same name here.

    Args:
        server: The server name under which the functions are offered.
        functions: The functions.
    """
    lines = ["from cellblock.tools.calling.functions import ProgramFunction as _ProgramFunction"]
    for name, function in functions.items():
        signature = _signature(function)
        positional = [] if signature is None else [p.name for p in signature.parameters.values() if p.kind in _POSITIONAL]
        doc = (inspect.getdoc(function) or "")[:_MAX_DOC]
        seen = "(...)" if signature is None else str(signature)[:_MAX_DOC]
        lines.append(f"{name} = _ProgramFunction({server!r}, {name!r}, {positional!r}, {seen!a}, {doc!a})")
    return "\n".join([*lines, "del _ProgramFunction"])


def caller(functions: Functions) -> OfferedFunctions:
    """Return a caller of functions by name, with the interface of tool calls. Exceptions become outcomes.

    Functions run in a copy of the current context, so context variables keep their present values. Coroutine functions run
    in the event loop. Other functions run in a thread each, and may block. A thread cannot be stopped: after a
    cancellation, the function continues, and its result is dropped.
    """
    context = contextvars.copy_context()

    async def call(tool: str, arguments: Mapping[str, Any], **_options: Any) -> ToolOutcome:
        function = functions.get(tool)
        if function is None:
            return ToolOutcome(True, f"there is no function {tool!r}")
        args, kwargs = _bound(function, arguments)
        try:
            if inspect.iscoroutinefunction(function):
                value: Any = function(*args, **kwargs)
            else:
                value = await _in_thread(lambda: _encoded_or_awaitable(function(*args, **kwargs)), context.copy())
            if inspect.isawaitable(value):
                answer = await asyncio.create_task(_awaited(value), context=context.copy())
                value = await _in_thread(lambda: _encoded(answer), context.copy())
        except Exception as error:  # an error for the calling code, as if the function were its own
            return ToolOutcome(True, f"{type(error).__name__}: {error}")
        return ToolOutcome(False, "", encoded=value)

    return call


async def _awaited(value: Any) -> Any:
    return await value


def _bound(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    named = dict(arguments)
    rest = named.pop(REST, None)
    args: list[Any] = []
    signature = _signature(function)
    for parameter in () if signature is None else signature.parameters.values():
        by_place = parameter.kind is inspect.Parameter.POSITIONAL_ONLY or (rest and parameter.kind in _POSITIONAL)
        if not by_place or parameter.name not in named:
            break
        args.append(named.pop(parameter.name))
    return [*args, *(rest or ())], named


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None if unavailable, as for some functions written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _encoded_or_awaitable(value: object) -> object:
    return value if inspect.isawaitable(value) else _encoded(value)


def _encoded(value: object) -> bytes:
    try:
        encoded = json.dumps({"value": value}, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"its result is not JSON data: {error}") from None
    if len(encoded) > MAX_MESSAGE:
        raise ValueError(f"its result has {len(encoded):,} bytes as JSON; the limit is {MAX_MESSAGE:,}")
    return encoded


async def _in_thread(work: Callable[[], Any], context: contextvars.Context) -> Any:
    """Run a function in a new thread, in a context, and return its result.

    The loop's own pool could deadlock: a function may ask a model whose code calls functions, which would wait for the
    thread that the first function occupies.
    """
    return await in_own_thread(partial(run_aside, name="cellblock function"), partial(context.run, work))
