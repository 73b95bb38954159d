"""What clients ask the daemon, as typed messages. docs/daemon.md describes them, and how they travel.

A request is a frame (`wire.frames`): its header has the request's ``type``, an ``id`` that the client chooses, and ``fields``;
its body is code, or the bytes of a file. The daemon answers with one frame of the type ``reply``, whose body is JSON data
(`wire.packed`), or raw bytes for a file. An answer in many parts has one such frame for each, which say that there is ``more``
to come, and an empty one at its end. Instead of any of them an ``error`` can come, which is the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeAlias

from cellblock import errors
from cellblock.errors import BusyError, CellblockError, DaemonError, FilesError, OutcomeUnknownError, ProtocolError
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.frames import Frame, encode_frame
from cellblock.wire.packed import Packed, pack, unpack
from cellblock.wire.record import record

PROTOCOL = 1
"""The version of what is said here. A client and a daemon of different versions do not talk to each other."""

MAX_REQUEST = 64 * 1024 * 1024
"""Bytes of the body of a request: code, or a part of a file."""

MAX_REPLY = 512 * 1024 * 1024
"""Bytes of the body of a reply: a result with all that `Limits` lets a cell show, in base64."""

# -- about the daemon ----------------------------------------------------------------------------------------------------


@record
class Hello:
    """The first request on a connection. Answered by ``protocol``, ``version``, ``pid`` and ``started``."""

    op: ClassVar[str] = "hello"
    protocol: int
    version: str


@record
class About:
    """Say how the daemon is.

    Answered by its ``pid``, that of the ``custodian``, its ``version``, ``protocol``, ``started`` and ``uptime``, how many
    ``clients`` and ``sessions`` there are, and ``running`` and ``waiting`` executions, ``memory`` in bytes, ``limits``, and
    ``problems``, a list of texts.
    """

    op: ClassVar[str] = "about"


@record
class End:
    """End the daemon and all of its sessions.

    Attributes:
        keep: Whether the sessions stay listed; their kernels end, and with them their variables.
    """

    op: ClassVar[str] = "end"
    keep: bool = False


# -- sessions ------------------------------------------------------------------------------------------------------------


@record
class Create:
    """Make a session, or return the one of that name. Answered by a `SessionRecord`.

    Attributes:
        name: Its name; empty for one that nobody else has.
        options: Its options (`named.options`), as JSON data. They are ignored if there is a session of that name.
        tags: Labels, likewise.
        fresh: Whether it is an error if there is one of that name.
        bound: Whether it ends when the connection does that it is made on. It has to be fresh, then.
    """

    op: ClassVar[str] = "create"
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    bound: bool = False


@record
class List:
    """List the sessions. Answered by a list of `SessionRecord`.

    Attributes:
        refresh: Whether to look first whether their kernels are alive.
    """

    op: ClassVar[str] = "list"
    refresh: bool = False


@record
class Status:
    """Say how a session is. Answered by a `SessionRecord`. `session` is its name or id, here and below."""

    op: ClassVar[str] = "status"
    session: str


@record
class Restart:
    """Give a session a fresh kernel, without variables. Answered by a `SessionRecord`."""

    op: ClassVar[str] = "restart"
    session: str


@record
class Destroy:
    """End a session. Answered by whether there was one."""

    op: ClassVar[str] = "destroy"
    session: str


@record
class Wipe:
    """End all sessions. Answered by the list of their ids."""

    op: ClassVar[str] = "wipe"


@record
class Interrupt:
    """Stop what runs in a session. Answered by whether something ran, after the code has stopped.

    Attributes:
        session: The session.
        key: If it is given, only the execution that was submitted with this key is stopped, or kept from running.
    """

    op: ClassVar[str] = "interrupt"
    session: str
    key: str = ""


# -- executions ----------------------------------------------------------------------------------------------------------


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


@record
class Follow:
    """Follow an execution. Answered by one reply for each `ExecutionEvent` after a number, until the last event.

    Attributes:
        execution: Its id.
        after: The number of the last event that is known already.
    """

    op: ClassVar[str] = "follow"
    execution: str
    after: int = 0


@record
class Lookup:
    """Say how far an execution is. Answered by an `ExecutionRecord`.

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
    """List the last executions of a session, newest first. Answered by a list of `ExecutionRecord`."""

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


# -- questions -----------------------------------------------------------------------------------------------------------


@record
class Complete:
    """Complete the code in the body. `cursor` is an index into it, -1 its end. Answered by ``matches``, ``start``, ``end``."""

    op: ClassVar[str] = "complete"
    session: str
    cursor: int = -1


@record
class Inspect:
    """Describe the name at a place of the code in the body. Answered by a text or null."""

    op: ClassVar[str] = "inspect"
    session: str
    cursor: int = -1
    detail: int = 0


@record
class History:
    """List the cells that a session ran, oldest first. Answered by a list of ``code``, ``status``, ``execution_count``."""

    op: ClassVar[str] = "history"
    session: str
    count: int = 1000


# -- files ---------------------------------------------------------------------------------------------------------------


@record
class ListFiles:
    """List a folder of a session's workspace. Answered by a list of `FileInfo` as JSON data."""

    op: ClassVar[str] = "list files"
    session: str
    path: str = "."
    recursive: bool = False


@record
class ReadFile:
    """Read a file. Answered by raw bytes."""

    op: ClassVar[str] = "read file"
    session: str
    path: str
    max_bytes: int = MAX_REQUEST


@record
class WriteFile:
    """Write the body to a file. Answered by a `FileInfo` as JSON data."""

    op: ClassVar[str] = "write file"
    session: str
    path: str


@record
class ReadPart:
    """Read a part of a file. Answered by ``file``, a `FileInfo` as JSON data, and ``data``, the bytes.

    Attributes:
        session: The session.
        path: The file.
        offset: Where the part begins; at or beyond the end, it is empty.
        count: How many bytes it has, if there are so many.
    """

    op: ClassVar[str] = "read part"
    session: str
    path: str
    offset: int = 0
    count: int = 4 * 1024 * 1024


@record
class WritePart:
    """Write a file in parts, which are the bodies. Answered by null until its end, then by a `FileInfo` as JSON data.

    Attributes:
        session: The session.
        path: The file. It appears when it is complete.
        upload: Identifies the upload: any text that no other upload has, the same for all of its parts.
        more: Whether there are more parts to come. If none comes for a minute, the upload is given up.
        abort: Whether it is given up now.
    """

    op: ClassVar[str] = "write part"
    session: str
    path: str
    upload: str
    more: bool = True
    abort: bool = False


@record
class RemoveFile:
    """Remove a file, or a folder with all that is in it if `recursive` says so. Answered by true."""

    op: ClassVar[str] = "remove file"
    session: str
    path: str
    recursive: bool = False


@record
class Install:
    """Install packages for a session. Answered by the result of pip (`CodeExecutionResult.to_dict`)."""

    op: ClassVar[str] = "install"
    session: str
    requirements: tuple[str, ...]
    timeout: int = 600_000


# -- approvals -----------------------------------------------------------------------------------------------------------


@record
class Pending:
    """List what waits for a decision, oldest first; of one session, or of all. Answered by a list of `PendingApproval`.

    Attributes:
        session: The session; empty for all.
        withdrawn: Whether to list what waited when the last daemon ended, too.
    """

    op: ClassVar[str] = "pending"
    session: str = ""
    withdrawn: bool = False


@record
class Decide:
    """Decide about what waits. Answered by the list of ids that it was decided about.

    Attributes:
        ids: What to decide about. Those that are unknown, or decided already, are left out of the answer.
        allow: Whether it may be done.
        always: ``tool`` or ``call``: allow the same from now on, for the rest of the session (`ApprovalRequest.accept`).
        by: Who decides, for the record.
    """

    op: ClassVar[str] = "decide"
    ids: tuple[str, ...]
    allow: bool
    always: str = ""
    by: str = ""


@record
class Allowed:
    """List what was allowed for the rest of a session, oldest first; of one, or of all. Answered by a list of `Permission`."""

    op: ClassVar[str] = "allowed"
    session: str = ""


@record
class Revoke:
    """Revoke what was allowed for the rest of a session. Answered by the list of ids that there were."""

    op: ClassVar[str] = "revoke"
    ids: tuple[str, ...]


Request: TypeAlias = (
    Hello
    | About
    | End
    | Create
    | List
    | Status
    | Restart
    | Destroy
    | Wipe
    | Interrupt
    | Submit
    | Follow
    | Lookup
    | Source
    | Executions
    | Cancel
    | Answer
    | Complete
    | Inspect
    | History
    | ListFiles
    | ReadFile
    | WriteFile
    | ReadPart
    | WritePart
    | RemoveFile
    | Install
    | Pending
    | Decide
    | Allowed
    | Revoke
)

_KINDS: dict[str, type[Request]] = {kind.op: kind for kind in Request.__args__}


def encode_request(number: int, request: Request, body: bytes = b"") -> bytes:
    """Return a request as a frame.

    Raises:
        ProtocolError: It is too large.
    """
    convert = encoder(type(request))
    assert convert is not None
    return encode_frame({"type": request.op, "id": number, "fields": convert(request)}, body, max_body=MAX_REQUEST)


def decode_request(frame: Frame) -> tuple[int, Request]:
    """Return the number of a request, and the request.

    Raises:
        ProtocolError: It is none, or a field of it is wrong.
    """
    kind = _KINDS.get(frame.header["type"])
    number = frame.header.get("id")
    if type(number) is not int:
        raise ProtocolError("a request needs an id, an integer")
    if kind is None:
        raise ProtocolError(f"{frame.header['type'][:40]!a} is not something that the daemon can be asked")
    try:
        request: Request = decoder(kind)(frame.header.get("fields"))
    except ProtocolError as error:
        raise ProtocolError(f"the request {kind.op!r} is wrong: {error}") from None
    return number, request


def encode_reply(number: int, answer: Any, *, more: bool = False) -> bytes:
    """Return an answer as a frame: JSON data with bytes in it, or nothing but bytes."""
    raw = isinstance(answer, bytes) and not isinstance(answer, Packed)
    body = answer if raw else pack(answer)
    return encode_frame({"type": "reply", "id": number, "more": more, "raw": raw}, body, max_body=MAX_REPLY)


def encode_error(number: int, error: CellblockError) -> bytes:
    """Return an error as a frame."""
    details: dict[str, Any] = {}
    if isinstance(error, BusyError):
        details["retry_after"] = error.retry_after
    if isinstance(error, OutcomeUnknownError):
        details["execution"] = error.execution
    if isinstance(error, FilesError):
        path = None if error.path is None else error.path.encode("utf-8", "replace").decode()
        details |= {"path": path, "errno": error.errno}
    header = {"type": "error", "id": number, "error": type(error).__name__, "details": details}
    return encode_frame(header, str(error)[:60_000].encode("utf-8", "replace"))


def decode_answer(frame: Frame) -> tuple[int, Any, bool]:
    """Return the number of the request that was answered, the answer, and whether there is more to come.

    Raises:
        ProtocolError: It is no answer.
    """
    match frame.header:
        case {"type": "reply", "id": int(number), "more": bool(more), "raw": bool(raw)}:
            return number, frame.body if raw else unpack(frame.body), more
        case {"type": "error", "id": int(number), "error": str(name), "details": dict(details)}:
            return number, _error(name, frame.body.decode("utf-8", "replace"), details), False
    raise ProtocolError(f"{frame.header['type'][:40]!a} is not an answer of the daemon")


def _error(name: str, message: str, details: dict[str, Any]) -> CellblockError:
    """Return the exception that the daemon has met, of the same class."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, CellblockError):
        try:
            return kind(message, **details)
        except TypeError:
            return kind(message)
    return DaemonError(message)
