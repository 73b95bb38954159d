"""What clients ask about executions."""

from __future__ import annotations

from typing import ClassVar, Literal

from cellblock.wire.record import record


@record
class Submit:
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

    op: ClassVar[str] = "submit"
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


@record
class Follow:
    """Follow an execution. Answered by one reply for each `ExecutionEvent` after a number, until the last event.

    Attributes:
        execution: Its id.
        after: The number of the last event that is known already.
        answers: Whether this client answers `input()`. A second after the last such client has gone, input ends.
    """

    op: ClassVar[str] = "follow"
    execution: str
    after: int = 0
    answers: bool = False


@record
class Lookup:
    """Get the state of an execution. Answered by an `ExecutionRecord`.

    Attributes:
        execution: Its id, or nothing:
        session: Then it is the one that was submitted to this session
        key: with this key.
    """

    op: ClassVar[str] = "lookup"
    execution: str = ""
    session: str = ""
    key: str = ""


@record
class Source:
    """Say what an execution runs. Answered by its code."""

    op: ClassVar[str] = "source"
    execution: str


@record
class Executions:
    """List the last executions of a session, newest first, at most 1,000. Answered by a list of `ExecutionRecord`."""

    op: ClassVar[str] = "executions"
    session: str
    count: int = 100


@record
class Cancel:
    """Stop an execution, or keep one that waits from running. Answered by whether it had not ended."""

    op: ClassVar[str] = "cancel"
    execution: str


@record
class Answer:
    """Answer the `input()` of an execution; the line is the body. Answered by whether it had asked.

    Attributes:
        execution: Its id.
        end: Whether there are no more lines: the code gets an `EOFError`.
    """

    op: ClassVar[str] = "answer"
    execution: str
    end: bool = False
