"""Typed messages between host and worker, with the limits of their fields.

`message_codec` converts them to frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from cellblock.wire.codec import Most
from cellblock.wire.fields import (
    MAX_BUFFERS,
    MAX_COMM,
    MAX_COMMAND,
    MAX_ERROR,
    MAX_MIMES,
    MAX_NAMES,
    MAX_TEXT,
    Arguments,
    Body,
    Code,
    Number,
    OptionalText,
    Piece,
    Short,
    Shorts,
    Text,
)

VALUE_MIME = "application/vnd.cellblock.value"
"""The MIME type of the value of a variable that a silent cell passes to the host."""

TEXT_MIME = "text/vnd.cellblock.readable"
"""The MIME type of a readable text for an object whose plain text is not informative. It is not part of the object's bundle.
"""


@dataclass(frozen=True, slots=True)
class Execute:
    """Host → worker: run a cell."""

    type: ClassVar[str] = "execute"
    code: Code
    stdin: bool = False
    """Whether `input()` is answered; if not, it raises at once."""
    silent: bool = False
    """Whether it leaves no trace: no number, no history."""
    parent: Short = ""
    """The id of the Jupyter message that requests it; empty without a Jupyter client. With one, prompts and answers of
    `input()` are not shown, because the client shows them, and comm messages are sent.
    """
    traceparent: Short = ""
    """The trace context (W3C) that the code can continue: the environment variable TRACEPARENT while the cell runs."""


@dataclass(frozen=True, slots=True)
class InputReply:
    """Host → worker: the answer to `InputRequest`; None for no answer."""

    type: ClassVar[str] = "input_reply"
    number: Number
    """The request's; an answer to a question that is no longer open is ignored."""
    text: OptionalText


@dataclass(frozen=True, slots=True)
class Installed:
    """Host → worker: the answer to `Install`: the number of the installation, or why it was refused."""

    type: ClassVar[str] = "installed"
    number: Number
    """The request's, as for `InputReply`."""
    installation: Number
    refusal: OptionalText = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Host → worker: the answer to `Command`: whether it may run, or why not."""

    type: ClassVar[str] = "decided"
    number: Number
    """The request's, as for `InputReply`."""
    refusal: OptionalText = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Host → worker: a command that was run for the worker has ended."""

    type: ClassVar[str] = "ended"
    number: Number
    """The request's, as for `InputReply`."""
    status: Annotated[int, Most(0xFFFF)]
    """Its wait status."""
    place: OptionalText = None
    """The prefix of the files with its output, if it is not shown: ``.out`` and ``.err`` are appended."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Host → worker: report the changes of variables since the last report."""

    type: ClassVar[str] = "changes"


@dataclass(frozen=True, slots=True)
class Complete:
    """Host → worker: complete the code at a cursor, which counts characters."""

    type: ClassVar[str] = "complete"
    code: Code
    cursor: Number


@dataclass(frozen=True, slots=True)
class Inspect:
    """Host → worker: describe the name at a cursor; ``detail`` 1 adds the source."""

    type: ClassVar[str] = "inspect"
    code: Code
    cursor: Number
    detail: Annotated[int, Most(1)] = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Host → worker: create a copy. The answer is `Parked`; the copy registers with init."""

    type: ClassVar[str] = "park"
    number: Number
    """The copy reports itself with this number. Other kernels of the same init cannot guess it."""
    again: bool = False
    """Whether no copy is wanted if nothing of the code has run since the last one (`Parked.same`)."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Host → worker: report whether the code left anything running. The answer is `Idling`; a cell can cross it."""

    type: ClassVar[str] = "idle"


@dataclass(frozen=True, slots=True)
class Continue:
    """Host → worker: resume background code, paused by a copy with `Parked.pending`; no effect otherwise."""

    type: ClassVar[str] = "continue"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Host → worker: run the exit handlers, flush files and exit."""

    type: ClassVar[str] = "shutdown"


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker → host: the kernel accepts cells. The first message on every channel.

    ``lacks``: what a kernel made from a copy lacks, in sentences.
    """

    type: ClassVar[str] = "ready"
    version: Number
    lacks: Shorts = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """Worker → host: text was written to stdout or stderr.

    ``behind``: the pipes of descriptors 1 and 2 had unread bytes at the time, which come first.
    """

    type: ClassVar[str] = "stream"
    name: Literal["stdout", "stderr"]
    text: Piece
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Worker → host: a piece of a value too large for one frame; the next `Display` completes it."""

    type: ClassVar[str] = "part"
    mime: Short
    data: Piece


@dataclass(frozen=True, slots=True)
class Display:
    """Worker → host: a MIME bundle. ``parts`` names the types whose values were sent before, as `Part`.

    ``texts`` names the types whose values are text although their names do not show it.
    """

    type: ClassVar[str] = "display"
    kind: Literal["display_data", "update_display_data", "execute_result", "error"]
    data: Annotated[Mapping[str, bytes], Body(items=MAX_MIMES, keys="mimes")]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: Short | None = None
    parts: Shorts = ()
    behind: bool = False
    texts: Shorts = ()


@dataclass(frozen=True, slots=True)
class Clear:
    """Worker → host: discard the cell's output so far; with ``wait``, when the next output arrives."""

    type: ClassVar[str] = "clear"
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Comm:
    """Worker → host: a widget message, or the like, for its counterpart in a Jupyter client."""

    type: ClassVar[str] = "comm"
    most: ClassVar[int] = MAX_COMM
    kind: Literal["comm_open", "comm_msg", "comm_close"]
    content: Annotated[bytes, Body()]
    """The content and the metadata of the Jupyter message, as JSON. The host forwards them unread."""
    buffers: Annotated[tuple[bytes, ...], Body(items=MAX_BUFFERS)] = ()


@dataclass(frozen=True, slots=True)
class InputRequest:
    """Worker → host: the code asks for a line."""

    type: ClassVar[str] = "input"
    number: Number
    prompt: Text
    password: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Worker → host: the code asks for packages; pip's output goes to descriptors 1 and 2."""

    type: ClassVar[str] = "install"
    number: Number
    arguments: Arguments
    installation: Number = 0
    """The installation that the code sees; 0 for none."""
    place: Number = 0
    """The inode of the directory of all installations, which differs in a branch; 0 if it does not exist."""


@dataclass(frozen=True, slots=True)
class Command:
    """Worker → host: the code asks to run a program, or, if it may not execute programs, asks the host to run it.

    Its text is strict UTF-8: the decider sees exactly what runs.
    """

    type: ClassVar[str] = "command"
    most: ClassVar[int] = MAX_COMMAND
    number: Number
    tool: Literal["shell", "shell_magic"]
    text: Annotated[str, Body(strict=True)]
    """A line for the shell, or a script for the standard input of `program`."""
    cwd: Text = ""
    program: Arguments = ()
    """For a script: the program and its arguments."""
    changes: Arguments = ()
    """Changes of the environment since the start: ``NAME=value``, or ``NAME`` for a removed variable."""
    keep: Literal["nothing", "out", "err", "both", "together"] = "nothing"
    """The output that is kept for the code instead of being shown; ``together``: both streams as one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Worker → host: the cell has ended; all output of its Python code was sent before."""

    type: ClassVar[str] = "reply"
    most: ClassVar[int] = MAX_ERROR
    execution_count: Number
    ename: Short | None = None
    evalue: Text = ""
    traceback: Annotated[tuple[str, ...], Body()] = ()
    later: Number = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """Worker → host: the answer to `Changes`; after the first, it is also sent before the `Reply` of each cell."""

    type: ClassVar[str] = "changed"
    names: Annotated[tuple[str, ...], Body(MAX_TEXT, MAX_NAMES)] = ()
    """Variables that are new, or refer to another object than before."""
    types: Annotated[tuple[str, ...], Body(MAX_TEXT, MAX_NAMES, like="names")] = ()
    """The names of their types, one for each."""
    gone: Annotated[tuple[str, ...], Body(MAX_TEXT, MAX_NAMES)] = ()

    def then(self, later: Changed) -> Changed:
        """Combine two consecutive reports."""
        changed = dict(zip((*self.names, *later.names), (*self.types, *later.types), strict=True))
        gone = dict.fromkeys(name for name in (*self.gone, *later.gone) if name not in later.names)
        left = [(name, of) for name, of in changed.items() if name not in gone][:MAX_NAMES]
        return Changed(tuple(name for name, _ in left), tuple(of for _, of in left), (*gone,)[:MAX_NAMES])


@dataclass(frozen=True, slots=True)
class Completed:
    """Worker → host: the answer to `Complete`."""

    type: ClassVar[str] = "completed"
    matches: Annotated[tuple[str, ...], Body()]
    start: Number
    end: Number


@dataclass(frozen=True, slots=True)
class Inspected:
    """Worker → host: the answer to `Inspect`; None for an unknown name."""

    type: ClassVar[str] = "inspected"
    text: OptionalText


@dataclass(frozen=True, slots=True)
class Parked:
    """Worker → host: the answer to `Park`: empty if there is a copy; else the reason, for people."""

    type: ClassVar[str] = "parked"
    refusal: OptionalText = None
    pending: bool = False
    """Whether the code has left tasks, callbacks or timers that change the state between cells; without a copy also threads.
    After a copy, the worker runs none of them until the next message arrives: the host has time to save the files of the
    same state."""
    same: bool = False
    """Whether nothing has run since the last copy, so that no other one was made (`Park.again`)."""
    ran: bool = False
    """Whether something that the last cell left may have run after it, even if it has ended."""


@dataclass(frozen=True, slots=True)
class Idling:
    """Worker → host: the answer to `Idle`."""

    type: ClassVar[str] = "idling"
    pending: bool
    """Whether the code has left tasks, callbacks, timers, servers, threads or programs that run between cells."""


ToWorker: TypeAlias = (
    Execute | InputReply | Installed | Decided | Ended | Changes | Complete | Inspect | Park | Idle | Continue | Shutdown
)
ToHost: TypeAlias = (
    Ready
    | Stream
    | Part
    | Display
    | Clear
    | Comm
    | InputRequest
    | Install
    | Command
    | Reply
    | Changed
    | Completed
    | Inspected
    | Parked
    | Idling
)
Message: TypeAlias = ToWorker | ToHost
Question: TypeAlias = Changes | Complete | Inspect | Park
Answer: TypeAlias = Changed | Completed | Inspected | Parked
