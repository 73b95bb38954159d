"""Executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import sessions
    from cellblock.operations.data import Data


class Submit(Request[Any], op="submit"):
    """Run code, which is the body. Answered by an `ExecutionRecord` at once, or as `wait` or `follow` say.

    Attributes:
        session: The session.
        language: ``python`` or ``bash``.
        timeout: Timeout in milliseconds; 0 for the default, -1 for no limit.
        key: The idempotency key: if an execution was submitted with it before, the request is answered by that execution.
        live: Whether output becomes events while it runs.
        stdin: Whether a client answers `input()`: it becomes an event, and `Answer` answers it.
        silent: Whether it leaves no trace: no number, no history.
        wait: Whether the answer is the result (`CodeExecutionResult.to_dict`).
        follow: Whether the answer is its events, as for `Follow`.
        retry: Whether it is an attempt of `execute_with_retry`, which the session's record counts.
        parent: The id of the Jupyter message that asks for it, if one does. Then messages of widgets become events, and
            prompts and answers of `input()` are not part of the output, because Jupyter clients show them.
        own: Whether the session's own Python runs it, although the session has another language.
    """

    session: str
    language: Literal["python", "bash"] = "python"  # `model.sessions.Language`, which takes clients 10 ms to load
    timeout: int = 0
    key: str = ""
    live: bool = False
    stdin: bool = False
    silent: bool = False
    wait: bool = False
    follow: bool = False
    retry: bool = False
    parent: str = ""
    own: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether there is a key: with one, nothing runs twice."""
        return bool(self.key)


class Follow(Request["Data[sessions.ExecutionEvent]"], op="follow", repeatable=True):
    """Follow an execution. Answered by one reply for each `ExecutionEvent` after a number, until the last event.

    Attributes:
        execution: Its id.
        after: The number of the last event that is known already.
        answers: Whether this client answers `input()`. A second after the last such client has left, input ends.
    """

    execution: str
    after: int = 0
    answers: bool = False


class Lookup(
    Request["Data[sessions.ExecutionRecord]"],
    op="lookup",
    repeatable=True,
    route=Route(
        "GET",
        "/executions/{execution}",
        "Get the state of an execution",
        scope="read",
        without=("session", "key"),
    ),
):
    """Return the state of an execution: queued, running or done.

    Attributes:
        execution: Its id; empty to find the execution by `session` and `key`.
        session: The session.
        key: The key that the execution was submitted with.
    """

    execution: str = ""
    session: str = ""
    key: str = ""


class Source(
    Request[str],
    op="source",
    repeatable=True,
    route=Route("GET", "/executions/{execution}/source", "Get the code of an execution", scope="read", within="code"),
):
    """Return the code of an execution."""

    execution: str


class Executions(
    Request["list[Data[sessions.ExecutionRecord]]"],
    op="executions",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/executions", "List executions", scope="read", within="executions"),
):
    """List the last executions of a session, newest first."""

    session: str
    count: Annotated[int, Limits(ge=1, le=1000)] = 100


class Cancel(
    Request[bool],
    op="cancel",
    repeatable=True,
    route=Route("POST", "/executions/{execution}/cancel", "Cancel an execution", within="done"),
):
    """Stop an execution, or cancel a queued one.

    Answered by whether it was queued or running.
    """

    execution: str


class Answer(
    Request[bool],
    op="answer",
    route=Route(
        "POST",
        "/executions/{execution}/input",
        "Answer input()",
        within="done",
        text="line",
        text_limits=Limits(max_length=1_000_000),
        without=("end",),
    ),
):
    """Answer an execution that waits for `input()`.

    The line is the body. Answered by whether the execution waited.

    Attributes:
        execution: Its id.
        end: Whether there are no more lines: the code gets an `EOFError`.
    """

    execution: str
    end: bool = False
