"""Background programs: their arguments, output, and results."""

from __future__ import annotations

import base64
import os
import signal as signals
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeAlias, TypedDict

from cellblock.errors import InvalidInputError, shown
from cellblock.model.plain import Plain

ProgramStream: TypeAlias = Literal["stdout", "stderr"]
ProgramStatus: TypeAlias = Literal["exited", "signalled", "timeout", "cancelled", "not_started", "unknown"]
"""How a program ended: normally; by a signal; at its time limit; by `stop` or with its session; never executed;
unknown, because its watcher was killed."""

Scope: TypeAlias = Literal["program", "group", "tree"]
"""Which processes a signal is for: the program alone, its process group, or all that it has started, in any group."""

Keep: TypeAlias = Literal["all", "tail"]
"""How unread output is handled: the program waits for a reader, or the oldest output is dropped."""

MAX_OUTPUT = 16 * 1024 * 1024
"""Default for the bytes that the result of a program keeps of each stream."""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A piece of a program's output.

    Attributes:
        stream: The stream; with ``merge`` or a terminal, always ``stdout``.
        data: The bytes.
        offset: Byte offset in both streams together.
    """

    stream: ProgramStream
    data: bytes
    offset: int

    def to_dict(self) -> dict[str, Any]:
        """Return the piece as JSON data: as text, and also in base64 if it is not UTF-8."""
        return {"stream": self.stream, **_as_text("data", self.data), "offset": self.offset}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a piece from the data of `to_dict`."""
        return cls(data["stream"], _from_text("data", data), data["offset"])


Input: TypeAlias = bytes | bytearray | memoryview | str | AsyncIterable[bytes]
OnOutput: TypeAlias = Callable[[ProgramOutput], object]
Processes: TypeAlias = Literal["keep", "stop"]
"""How running programs are handled when a session restores an earlier state."""


class ExecKeywords(TypedDict, total=False):
    """The arguments of `Session.exec` after the command, for type checkers. A test compares the two."""

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str | None] | None
    input: Input | None
    timeout: float | None
    merge: bool
    log: str | None
    on_output: OnOutput | None
    max_output: int
    stop: Scope


class SpawnKeywords(TypedDict, total=False):
    """The arguments of `Session.spawn` after the command, for type checkers. A test compares the two."""

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str | None] | None
    stdin: bool
    pty: tuple[int, int] | None
    merge: bool
    log: str | None
    keep: Keep
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecResult:
    """The result of a program, with its output.

    Attributes:
        status: How it ended. All values but ``exited`` come with a `reason`.
        exit_code: Its exit status; 128 plus the number of a fatal signal; 127 if the program does not exist; 126 if it could
            not be executed; None if unknown.
        signal: The number of the fatal signal, if any.
        errno: The system error number if it could not be started.
        reason: Why it ended, for people; empty if it exited.
        stdout: Its standard output, up to the limit.
        stderr: Its standard error, up to the limit.
        truncated: Whether some output was dropped. A line in the middle of a stream says how much.
        duration_ms: Duration in milliseconds.
        left: Process ids, in the session, of its processes that still run.
    """

    status: ProgramStatus
    exit_code: int | None
    signal: int | None = None
    errno: int | None = None
    reason: str = ""
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    duration_ms: int = 0
    left: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it exited with status 0."""
        return self.status == "exited" and self.exit_code == 0

    @property
    def out(self) -> str:
        """Its standard output as text, with U+FFFD for bytes that are not UTF-8."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """Its standard error as text, with U+FFFD for bytes that are not UTF-8."""
        return self.stderr.decode("utf-8", "replace")

    def for_model(self) -> str:
        """Return a text for a model: standard output, standard error, and how it ended unless it succeeded."""
        parts = [self.out.rstrip("\n"), self.err.rstrip("\n")]
        if self.status == "exited" and self.exit_code:
            parts.append(f"[exit status {self.exit_code}]")
        elif self.reason:
            parts.append(f"[{self.reason}]")
        if self.left:
            parts.append(f"[{len(self.left)} processes that it started keep running]")
        return "\n".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data: output as text, and also in base64 if it is not UTF-8."""
        data = {**asdict(self), "left": list(self.left)}
        return {**data, **_as_text("stdout", self.stdout), **_as_text("stderr", self.stderr)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a result from the data of `to_dict`."""
        found = {name: value for name, value in data.items() if not name.endswith("_base64")}
        streams = {name: _from_text(name, data) for name in ("stdout", "stderr")}
        return cls(**{**found, **streams, "left": tuple(found["left"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessInfo(Plain):
    """A background program, running or ended.

    Attributes:
        id: Id in the session, such as ``p1``.
        pid: Process id in the session.
        command: The program and its arguments.
        label: The caller's label.
        running: Whether it runs.
        terminal: Whether it has a terminal.
        started: Start time, in seconds since 1970.
        exit_code: As in `ExecResult`; None while it runs.
        left: Process ids of its processes that still run after its end.
    """

    id: str
    pid: int
    command: tuple[str, ...]
    label: str
    running: bool
    terminal: bool
    started: float
    exit_code: int | None = None
    left: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOutput(Plain):
    """The output of a program from a position on.

    Attributes:
        pieces: The output. The `offset` of the first piece shows whether earlier output was dropped.
        position: The position to continue from.
        finished: Whether there will be no more.
        result: How the program ended, without output; None while it runs.
    """

    pieces: tuple[ProgramOutput, ...]
    position: int
    finished: bool
    result: ExecResult | None = None


def _as_text(name: str, content: bytes) -> dict[str, str]:
    """Return bytes as text, and also in base64 if they are not UTF-8."""
    text = content.decode("utf-8", "replace")
    return {name: text} if text.encode() == content else {name: text, f"{name}_base64": base64.b64encode(content).decode()}


def _from_text(name: str, data: Mapping[str, Any]) -> bytes:
    encoded = data.get(f"{name}_base64")
    return data[name].encode() if encoded is None else base64.b64decode(encoded)


def passable(text: str) -> bool:
    """Return whether a text is a valid program argument: without NUL, and UTF-8 or from `os.fsdecode`."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def as_command(command: Sequence[str] | str) -> tuple[str, ...]:
    """Return a program and its arguments. A string is a command for ``sh -c``.

    Raises:
        InvalidInputError: The command is neither a string nor a list.
    """
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    right = isinstance(argv, Sequence) and not isinstance(argv, bytes)
    if not right or not argv or not command or not all(isinstance(part, str) and passable(part) for part in argv):
        raise InvalidInputError(
            "command must be a list of strings without NUL characters and lone surrogates, such as ['ls', '-l'], or a text "
            f"for the shell, not {shown(command)}"
        )
    return tuple(argv)


def check_size(size: object) -> tuple[int, int]:
    """Validate the rows and columns of a terminal.

    Raises:
        InvalidInputError: They are out of range.
    """
    rows, columns = size if isinstance(size, tuple | list) and len(size) == len(("rows", "columns")) else (0, 0)
    if all(type(one) is int and 0 < one < 1 << 16 for one in (rows, columns)):
        return rows, columns
    raise InvalidInputError(f"the size of a terminal is its rows and columns, such as (24, 80), not {size!r}")


def describe_signal(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
