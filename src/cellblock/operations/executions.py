"""Executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model.sessions import ExecutionEvent, ExecutionRecord
    from cellblock.operations.data import Data


class Submit(Request[Any], op="submit"):
    """Run code, which is the body. Answered by an `ExecutionRecord` at once, or as `wait` or `follow` say.

    Attributes:
        session: The session.
        language: ``python`` or ``bash``.
        timeout: Milliseconds that it may run; 0 for the default, -1 for no limit.
        key: The idempotency key: if an execution was submitted with it before, that one is meant, and nothing runs again.
        live: Whether output becomes events while it runs.
        stdin: Whether somebody will answer `input()`: it becomes an event, and `Answer` answers it.
        silent: Whether it leaves no trace: no number, no history.
        wait: Whether the answer is the result (`CodeExecutionResult.to_dict`).
        follow: Whether the answer is its events, as for `Follow`.
        retry: Whether it is an attempt of `execute_with_retry`, which the session's record counts.
        parent: The id of the Jupyter message that asks for it, if one does. Then messages of widgets become events, and
            prompts and answers of `input()` are not part of the output, because Jupyter clients show them.
        own: Whether the session's own Python runs it, although the session is one of another language.
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
        """See `Request`: with a key, nothing runs twice."""
        return bool(self.key)


class Follow(Request["Data[ExecutionEvent]"], op="follow", repeatable=True):
    """Follow an execution. Answered by one reply for each `ExecutionEvent` after a number, until the last event.

    Attributes:
        execution: Its id.
        after: The number of the last event that is known already.
        answers: Whether this client answers `input()`. A second after the last such client has gone, input ends.
    """

    execution: str
    after: int = 0
    answers: bool = False


class Lookup(Request["Data[ExecutionRecord]"], op="lookup", repeatable=True):
    """Get the state of an execution.

    Attributes:
        execution: Its id, or nothing:
        session: Then it is the one that was submitted to this session
        key: with this key.
    """

    execution: str = ""
    session: str = ""
    key: str = ""


class Source(Request[str], op="source", repeatable=True):
    """Say what an execution runs. Answered by its code."""

    execution: str


class Executions(Request["list[Data[ExecutionRecord]]"], op="executions", repeatable=True):
    """List the last executions of a session, newest first, at most 1,000."""

    session: str
    count: int = 100


class Cancel(Request[bool], op="cancel", repeatable=True):
    """Stop an execution, or keep one that waits from running. Answered by whether it had not ended."""

    execution: str


class Answer(Request[bool], op="answer"):
    """Answer the `input()` of an execution; the line is the body. Answered by whether it had asked.

    Attributes:
        execution: Its id.
        end: Whether there are no more lines: the code gets an `EOFError`.
    """

    execution: str
    end: bool = False
