"""The basis of generated modules: the classes of arguments and results, and the call. Needs pydantic 2."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from datetime import date, time
from pathlib import PurePath
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from cellblock.errors import ToolRunnerError

_SHOWN = 200
_URLS = "PYDANTIC_ERRORS_INCLUDE_URL"
_Params = TypeVar("_Params")
_Result = TypeVar("_Result")
_awaited: ContextVar[bool] = ContextVar("_awaited", default=False)


class ParamsModel(BaseModel):
    """Arguments of a tool, or a part of them. Only given arguments and constants are sent.

    A None for an optional argument counts as not given, unless the tool takes null for it.
    """

    __nullable__: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="forbid", populate_by_name=True, use_enum_values=True, protected_namespaces=())

    def __init_subclass__(cls, nullable: tuple[str, ...] = (), **options: Any) -> None:
        """Collect the optional arguments for which null is sent."""
        super().__init_subclass__(**options)
        cls.__nullable__ = frozenset(nullable)

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        omitted = _omitted(cls)
        return {name: _as_json(value) for name, value in data.items() if value is not None or name not in omitted}

    @model_validator(mode="after")
    def _send_constants(self) -> ParamsModel:
        self.model_fields_set.update(_constants(type(self)))
        return self


class ResultModel(BaseModel):
    """A structured result, or a part of one. It may have undeclared fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())


def _as_json(value: Any) -> Any:
    """Return what stands for a value in JSON, where code has a type for what a schema calls a string or a number."""
    if isinstance(value, date | time | UUID):
        return value.isoformat() if isinstance(value, date | time) else str(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [*map(_as_json, value)]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():  # a number of an array or a data frame
        return value.item()
    return value


def _show_no_urls() -> None:
    """Make pydantic's messages end without a URL for each mistake. It reads the variable once, before its first message."""
    before = os.environ.get(_URLS)
    os.environ[_URLS] = "0"
    try:
        str(ValidationError.from_exception_data("", [{"type": "missing", "loc": (), "input": None}]))
    finally:
        if before is None:
            del os.environ[_URLS]
        else:
            os.environ[_URLS] = before


_show_no_urls()


@functools.cache
def _omitted(model: type[ParamsModel]) -> frozenset[str]:
    """Return the names, also those of JSON, of arguments for which None means that they are not given."""
    fields = {name: field for name, field in model.model_fields.items() if not field.is_required()}
    own = fields.keys() - model.__nullable__
    return frozenset([*own, *(alias for name in own if (alias := fields[name].alias) is not None)])


@functools.cache
def _constants(model: type[ParamsModel]) -> frozenset[str]:
    """Return the arguments that have one possible value, which is their default."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is Literal and get_args(field.annotation) == (field.default,)
    )


def caller(server: str) -> Callable[[str, BaseModel, type[_Result]], _Result]:
    """Return a function that calls the tools of a server.

    It takes the tool's name, the arguments (an object of their class, or a dict), the type of the result, and the class.
    """
    from cellblock.tools.calling.runner import ToolRunner

    runner = ToolRunner(server)

    # Packages that earlier versions have generated do not pass `kind`.
    def call(
        tool: str, params: BaseModel | dict[str, Any], returns: type[_Result], kind: type[BaseModel] = ParamsModel
    ) -> _Result:
        given = params if isinstance(params, BaseModel) else kind.model_validate(params)
        arguments = given.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if _awaited.get():
            return cast("_Result", later(tool, arguments, returns))
        return typed(runner.run_sync(tool, arguments), returns, f"{server}.{tool}")

    async def later(tool: str, arguments: dict[str, Any], returns: type[_Result]) -> _Result:
        return typed(await runner.run(tool, arguments), returns, f"{server}.{tool}")

    return call


def twin(run: Callable[[_Params], _Result]) -> Callable[[_Params], Coroutine[Any, Any, _Result]]:
    """Return the function that does what `run` does, for code that awaits calls, or gathers several."""

    @functools.wraps(run)
    async def run_async(params: _Params) -> _Result:
        token = _awaited.set(True)  # the call within `run` returns something to await
        try:
            pending = run(params)
        finally:
            _awaited.reset(token)
        return await cast("Coroutine[Any, Any, _Result]", pending)

    run_async.__name__ = run_async.__qualname__ = "run_async"
    return run_async


def typed(result: Any, returns: type[_Result], tool: str) -> _Result:
    """Convert the result of a tool to the type that its module declares.

    Args:
        result: The result: structured, or text. Text that is JSON counts as structured if the tool declares that.
        returns: The declared type: a model, or text.
        tool: Its name, with its server's.

    Raises:
        ToolRunnerError: It does not fit.
    """
    if not issubclass(returns, BaseModel):
        # A runner's text may be more than a string, and may be empty except for its images.
        return cast("_Result", "" if result is None else result)
    try:
        made = returns.model_validate(_read(result, returns, tool) if isinstance(result, str) else result)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise ToolRunnerError(
            f"{tool} returned something that does not fit its output schema: {f'{place}: ' if place else ''}{wrong['msg']}, "
            f"got {_short(wrong['input'])}"
        ) from None
    _attach(made, result)
    return cast("_Result", made)


def _read(text: str, returns: type[BaseModel], tool: str) -> Any:
    """Parse a text in place of a structured result; return the text itself if text is declared."""
    try:
        returns.model_validate(text)
    except ValidationError:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ToolRunnerError(
                f"{tool} declares a structured result, and returned only text: {_short(str(text))}"
            ) from None
    return text


def _attach(made: BaseModel, result: Any) -> None:
    """Give a typed result the images and resources that came with it, unless it has fields of these names."""
    for name in ("images", "resources"):
        extra = made.__pydantic_extra__
        if (more := getattr(result, name, ())) and extra is not None and name not in type(made).model_fields:
            extra.setdefault(name, more)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
