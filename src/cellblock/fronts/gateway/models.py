"""Models of requests and answers. Where KernelBox has one, its names and fields are used."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cellblock.fronts.gateway.descriptions import describe_options

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


class KernelModel(BaseModel):
    """A session and its kernel."""

    kernel_id: str = Field(description="Its id, which is never used again.")
    connection_file: str = Field(description="Empty: there is nothing to connect to by path.")
    name: str | None = Field(description="Its name.")
    created_at: str = Field(description="When it was created (ISO 8601, UTC).")
    last_used_at: str = Field(description="When it was last used.")
    status: str = Field(description="running, idle, dead or unknown.")
    session_name: str | None = Field(description="Its name.")
    attempt_count: int = Field(description="How many attempts execute/retry has made in it.")
    branch_of: str = Field("", description="The id of the session that it branched from; empty unless it is a branch.")
    branch_at: int = Field(0, description="The number of that session's last cell then.")
    tags: _Tags = Field(description="Labels.")
    age_seconds: float = Field(description="Seconds since its creation.")
    workspace: str = Field(description="Its working directory.")
    isolate: str = Field(description="How its kernel is isolated.")
    kernel_type: str = Field(description="The Jupyter kernelspec; python3 for cellblock's own kernel.")


class KernelStatusResponse(BaseModel):
    """The status of a session."""

    alive: bool = Field(description="Whether its kernel is alive.")
    kernel: KernelModel


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


class ErrorInfoModel(BaseModel):
    """An exception."""

    ename: str
    evalue: str
    traceback: list[str]


class OutputItemModel(BaseModel):
    """One output."""

    kind: str
    text: str | None
    name: str | None
    data: dict[str, Any] = Field(description="MIME bundle; binary values are base64.")
    metadata: dict[str, Any]
    display_id: str | None


class AttemptSnapshotModel(BaseModel):
    """One attempt."""

    attempt: int
    code: str
    status: str
    output: str
    stderr: str
    error: ErrorInfoModel | None


class ExecutionResultModel(BaseModel):
    """The result of an execution."""

    status: str = Field(description="success, error, timeout, interrupted or max_attempts_exceeded, among others.")
    text: str | None = Field(description="All output, as a person would see it.")
    output: str = Field(description="The text written to stdout.")
    stderr: str = Field(description="The text written to stderr.")
    error: ErrorInfoModel | None = Field(description="The exception, or what ended the kernel.")
    return_value: str | None = Field(description="The last expression's value as plain text.")
    execution_count: int | None = Field(description="IPython's counter.")
    duration_ms: int = Field(description="Duration in milliseconds.")
    outputs: list[OutputItemModel] = Field(description="All outputs in order.")
    attempts: list[AttemptSnapshotModel] = Field(description="The attempts, if there were retries.")
    truncated: bool = Field(description="Whether something was left out because it was too large.")
    recovery: str | None = Field(description="How the code was stopped, if it was.")
    images: list[str] = Field(description="Paths of the written PNG files.")
    spilled: list[str] = Field(description="Files with outputs that were too large for the result.")
    exit_status: int | None = Field(
        None, description="If the code ended the kernel's process: its exit status, or minus the number of a signal."
    )
    not_undoable: str = Field("", description="Why the code cannot be undone exactly; empty if it can be.")


class HistoryEntryModel(BaseModel):
    """A cell that ran."""

    code: str
    status: str
    execution_count: int | None
    abandoned: bool = Field(description="Whether the session went back to a state before it.")


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
