"""Models of requests and answers. Where KernelBox has one, its names and fields are used."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from cellblock.fronts.gateway.descriptions import describe_options, documented
from cellblock.model import CodeExecutionResult
from cellblock.model.checkpoints import Changes, StateChanges
from cellblock.model.files import FileInfo
from cellblock.model.plain import fields_of
from cellblock.model.sessions import PendingApproval, SessionRecord
from cellblock.operations.data import Data

MAX_SECONDS = 10_000_000
_Tags = dict[Annotated[str, Field(max_length=1000)], Annotated[str, Field(max_length=1000)]]
MAX_TAGS = 100
_Options = Annotated[
    dict[str, Any],
    Field(
        default_factory=dict,
        description="Options of the session; they need the scope admin.",
        json_schema_extra=describe_options,
    ),
]


class Strict(BaseModel):
    """A request body. Values are not converted, so that ``"allow": "no"`` is an error and not a yes; no field is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid")


class KernelCreateRequest(Strict):
    """A session to make."""

    name: str | None = Field(None, description="Its name; by default a new unique one.", examples=["data-analysis"])
    session_name: str | None = Field(None, description="The same: a session has one name.", examples=["data-analysis"])
    tags: _Tags = Field(default_factory=dict, max_length=MAX_TAGS, description="Labels.", examples=[{"task": "eda"}])
    options: _Options


class SessionCreateRequest(Strict):
    """The session to create if its name is free."""

    tags: _Tags = Field(default_factory=dict, max_length=MAX_TAGS, description="Labels.")
    options: _Options


class ExecuteRequest(Strict):
    """Code to run."""

    code: str = Field(description="Python as IPython takes it, or a script for bash.", examples=["import math\nmath.sqrt(81)"])
    language: Literal["python", "bash"] = Field("python", description="bash runs the code as %%bash does.")
    timeout: float | None = Field(
        None,
        ge=0.1,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Seconds that it may run; by default 60.",
        examples=[30],
    )


class RetryExecuteRequest(ExecuteRequest):
    """Code to run, and what to run if it fails."""

    max_attempts: int | None = Field(None, ge=1, le=1000, description="How often to run it; by default 5.", examples=[5])
    replacement_codes: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="The code of the second attempt, of the third, and so on; when they end, the last is run again.",
    )


class SubmitRequest(ExecuteRequest):
    """Code to run, whether or not its client stays."""

    key: str = Field("", max_length=200, description="Idempotency key: a second request with the same key runs nothing.")
    live: bool = Field(True, description="Whether output becomes events while it runs.")
    stdin: bool = Field(False, description="Whether input() waits for an answer; otherwise it fails at once.")
    silent: bool = Field(False, description="Whether it leaves no trace in the session: no number, no history.")


class Done(BaseModel):
    """Whether there was something to do."""

    done: bool


class ProblemModel(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What happened and what to do.")
    code: str = Field(description="The kind of problem, a stable name for programs.")


_MODELS: dict[type, type[BaseModel]] = {}
"""Models of classes of `model`, made when they are needed."""

_MODEL_NAMES: dict[type, str] = {
    Changes: "FilesChanged",
    CodeExecutionResult: "ExecutionResultModel",
    FileInfo: "FileModel",
    PendingApproval: "PendingModel",
    SessionRecord: "KernelModel",
    StateChanges: "ChangesModel",
}
_NOT_SHOWN: dict[type, set[str]] = {PendingApproval: {"state"}}
"""Fields that the description leaves out."""

_ADDED: dict[type, dict[str, Any]] = {
    SessionRecord: {
        "session_name": (str, Field(description="Its name, for compatibility with KernelBox.")),
        "age_seconds": (float, Field(description="Seconds since its creation.")),
    }
}
"""Fields of answers that the class does not store."""


def model_of(kind: type) -> type[BaseModel]:
    """Return the model of a `model` class."""
    if kind not in _MODELS:
        text, explained = documented(kind)
        fields = {
            name: (shown(hint), Field(description=explained.get(name)))
            for name, hint in fields_of(kind).items()
            if name not in _NOT_SHOWN.get(kind, ())
        } | _ADDED.get(kind, {})
        name = _MODEL_NAMES.get(kind, f"{kind.__name__.removesuffix('Record')}Model")
        _MODELS[kind] = create_model(name, __doc__=text, **cast("dict[str, Any]", fields))
    return _MODELS[kind]


def shown(hint: Any) -> Any:
    """Return a type with models in place of `model` classes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Data:
        return model_of(arguments[0])
    if dataclasses.is_dataclass(hint):
        return model_of(cast("type", hint))
    if origin in (list, tuple):
        return list[shown(arguments[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, shown(arguments[1])]  # type: ignore[misc]
    if hint in (Path, Path | str):
        return str
    if hint is bytes:
        return Annotated[str, Field(description="base64")]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(shown, arguments))]  # noqa: UP007
    return hint


ExecutionResultModel = model_of(CodeExecutionResult)
KernelModel = model_of(SessionRecord)
KernelStatusResponse = create_model(
    "KernelStatusResponse",
    __doc__="The status of a session.",
    alive=(bool, Field(description="Whether its kernel is alive.")),
    kernel=(KernelModel, ...),
)
