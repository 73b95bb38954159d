"""The basis of generated modules: the classes of arguments and results, and the call. Needs pydantic 2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

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
        """Take note of the optional arguments for which null is sent."""
        super().__init_subclass__(**options)
        cls.__nullable__ = frozenset(nullable)

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        omitted = _omitted(cls)
        return {name: value for name, value in data.items() if value is not None or name not in omitted}

    @model_validator(mode="after")
    def _send_constants(self) -> ParamsModel:
        self.model_fields_set.update(_constants(type(self)))
        return self


class ResultModel(BaseModel):
    """A structured result, or a part of one. It may have more than is declared."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())


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
    """Return a function that calls the tools of a server: with a tool's name, its arguments, and the type of its result."""
    from cellblock.tools.calling.runner import ToolRunner

    runner = ToolRunner(server)

    def call(tool: str, params: BaseModel, returns: type[_Result]) -> _Result:
        arguments = params.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if _awaited.get():
            return cast("_Result", later(tool, arguments, returns))
        return _typed(runner.run_sync(tool, arguments), returns)

    async def later(tool: str, arguments: dict[str, Any], returns: type[_Result]) -> _Result:
        return _typed(await runner.run(tool, arguments), returns)

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


def _typed(result: Any, returns: type[_Result]) -> _Result:
    if issubclass(returns, BaseModel):
        return cast("_Result", returns.model_validate(result))
    # A runner's text may be more than a string, and may be empty but for its images.
    return cast("_Result", "" if result is None else result)
