"""Messages: what frames mean, as typed data.

Each class states its fields; `encode` and `decode` are the only ways between a message and a frame. Decoding checks every
field's type and range, because what a worker sends is hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from cellblock.errors import ProtocolError
from cellblock.wire.fields import MAX_ARGUMENTS as MAX_ARGUMENTS
from cellblock.wire.fields import MAX_BUFFERS as MAX_BUFFERS
from cellblock.wire.fields import MAX_CODE as MAX_CODE
from cellblock.wire.fields import MAX_COMM as MAX_COMM
from cellblock.wire.fields import MAX_COMMAND as MAX_COMMAND
from cellblock.wire.fields import MAX_ERROR as MAX_ERROR
from cellblock.wire.fields import MAX_MIMES as MAX_MIMES
from cellblock.wire.fields import MAX_NAMES as MAX_NAMES
from cellblock.wire.fields import MAX_NUMBER as MAX_NUMBER
from cellblock.wire.fields import MAX_TEXT as MAX_TEXT
from cellblock.wire.fields import PIECE as PIECE
from cellblock.wire.fields import Fields, arguments, code, few, names_of, piece, short, strictly, to_bytes, to_text, within
from cellblock.wire.frames import Frame, encode_frame

VALUE_MIME = "application/vnd.cellblock.value"
"""The type of what a silent cell displays to hand the value of a variable to the host."""


@dataclass(frozen=True, slots=True)
class Execute:
    """Host → worker: run a cell."""

    type: ClassVar[str] = "execute"
    code: str
    stdin: bool = False
    """Whether somebody answers `input()`; if not, asking is an immediate error."""
    silent: bool = False
    """Whether it leaves no trace: no number, no history."""
    parent: str = ""
    """The id of the Jupyter message that asks for it; empty if no Jupyter client does. If one does, prompts and answers of
    `input()` are not shown, because the client shows them, and comm messages are sent."""


@dataclass(frozen=True, slots=True)
class InputReply:
    """Host → worker: the answer to `InputRequest`; None if nobody can answer."""

    type: ClassVar[str] = "input_reply"
    number: int
    """The request's; an answer to a question that is no longer open is ignored."""
    text: str | None


@dataclass(frozen=True, slots=True)
class Installed:
    """Host → worker: the answer to `Install`: pip's exit status, or why it was not run."""

    type: ClassVar[str] = "installed"
    number: int
    """The request's, as for `InputReply`."""
    status: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Host → worker: the answer to `Command`: whether it may run, or why not."""

    type: ClassVar[str] = "decided"
    number: int
    """The request's, as for `InputReply`."""
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Host → worker: a command that was run for the worker has ended."""

    type: ClassVar[str] = "ended"
    number: int
    """The request's, as for `InputReply`."""
    status: int
    """Its wait status."""
    place: str | None = None
    """What the files with its output begin with, if it was not to be shown: ``.out`` and ``.err`` follow."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Host → worker: what has happened to the variables since this was last asked?"""

    type: ClassVar[str] = "changes"


@dataclass(frozen=True, slots=True)
class Complete:
    """Host → worker: what could stand at this place? ``cursor`` counts characters."""

    type: ClassVar[str] = "complete"
    code: str
    cursor: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Host → worker: describe the name at this place; ``detail`` 1 adds the source."""

    type: ClassVar[str] = "inspect"
    code: str
    cursor: int
    detail: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Host → worker: leave a copy of yourself, to go on from later. The answer is `Parked`; init hears of the copy itself."""

    type: ClassVar[str] = "park"
    number: int
    """What the copy is to say when it calls itself a copy. It cannot be guessed by another kernel of the same init."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Host → worker: run the exit handlers, flush files and leave."""

    type: ClassVar[str] = "shutdown"


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker → host: the kernel takes cells. The first message on every channel."""

    type: ClassVar[str] = "ready"
    version: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Worker → host: text was written to stdout or stderr.

    ``behind`` says that bytes lay unread in the pipes of descriptors 1 and 2 when this was written: they come first.
    """

    type: ClassVar[str] = "stream"
    name: Literal["stdout", "stderr"]
    text: bytes
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Worker → host: a piece of a value too large for one frame; the next `Display` completes it."""

    type: ClassVar[str] = "part"
    mime: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Display:
    """Worker → host: a MIME bundle. ``parts`` names the types whose values came ahead, as `Part`."""

    type: ClassVar[str] = "display"
    kind: Literal["display_data", "update_display_data", "execute_result", "error"]
    data: Mapping[str, bytes]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    parts: tuple[str, ...] = ()
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Clear:
    """Worker → host: forget what the cell showed so far; with ``wait``, when the next output comes."""

    type: ClassVar[str] = "clear"
    wait: bool


@dataclass(frozen=True, slots=True)
class Comm:
    """Worker → host: a widget, or something like it, has a message for its counterpart in a Jupyter client."""

    type: ClassVar[str] = "comm"
    kind: Literal["comm_open", "comm_msg", "comm_close"]
    content: bytes
    """The content and the metadata of the Jupyter message, as JSON. The host passes them on unread."""
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class InputRequest:
    """Worker → host: the code asks for a line."""

    type: ClassVar[str] = "input"
    number: int
    prompt: str
    password: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Worker → host: the code asks for packages; what pip says goes to descriptors 1 and 2."""

    type: ClassVar[str] = "install"
    number: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """Worker → host: the code asks to run a program; where the system forbids it programs, to have it run.

    Its text is strict UTF-8: what is shown to the decider is what runs.
    """

    type: ClassVar[str] = "command"
    number: int
    tool: Literal["shell", "shell_magic"]
    text: str
    """A line for the shell, or a script for the standard input of `program`."""
    program: tuple[str, ...] = ()
    """For a script: the program and its arguments."""
    cwd: str = ""
    changes: tuple[str, ...] = ()
    """How the environment differs from the one it began with: ``NAME=value``, or ``NAME`` for one that is gone."""
    keep: Literal["nothing", "out", "err", "both", "together"] = "nothing"
    """What of the output is not to be shown, but kept for the code; ``together``: both streams as one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Worker → host: the cell has ended; all it wrote from Python was sent before this."""

    type: ClassVar[str] = "reply"
    execution_count: int
    ename: str | None = None
    evalue: str = ""
    traceback: tuple[str, ...] = ()
    later: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """Worker → host: the answer to `Changes`; after the first, also said before the `Reply` of each cell."""

    type: ClassVar[str] = "changed"
    names: tuple[str, ...] = ()
    """Variables that are new, or mean another object than before."""
    types: tuple[str, ...] = ()
    """The names of their types, one for each."""
    gone: tuple[str, ...] = ()

    def then(self, later: Changed) -> Changed:
        """Return what both have said, one after the other."""
        changed = dict(zip((*self.names, *later.names), (*self.types, *later.types), strict=True))
        gone = dict.fromkeys(name for name in (*self.gone, *later.gone) if name not in later.names)
        left = [(name, of) for name, of in changed.items() if name not in gone][:MAX_NAMES]
        return Changed(tuple(name for name, _ in left), tuple(of for _, of in left), (*gone,)[:MAX_NAMES])


@dataclass(frozen=True, slots=True)
class Completed:
    """Worker → host: the answer to `Complete`."""

    type: ClassVar[str] = "completed"
    matches: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """Worker → host: the answer to `Inspect`; None if nothing of that name was found."""

    type: ClassVar[str] = "inspected"
    text: str | None


@dataclass(frozen=True, slots=True)
class Parked:
    """Worker → host: the answer to `Park`: nothing if there is a copy, or why there can be none, for a person."""

    type: ClassVar[str] = "parked"
    refusal: str | None = None


ToWorker: TypeAlias = Execute | InputReply | Installed | Decided | Ended | Changes | Complete | Inspect | Park | Shutdown
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
)
Message: TypeAlias = ToWorker | ToHost
Question: TypeAlias = Changes | Complete | Inspect | Park
Answer: TypeAlias = Changed | Completed | Inspected | Parked


def encode(message: Message) -> bytes:
    """Return the frame of a message, as bytes.

    Raises:
        ProtocolError: The other side would not accept it.
    """
    header, buffers = _WRITERS[message.type](message)
    header["type"] = message.type
    if not buffers:
        return encode_frame(header)
    header["sizes"] = [len(buffer) for buffer in buffers]
    return encode_frame(header, buffers[0] if len(buffers) == 1 else b"".join(buffers))


def _write_display(message: Display) -> _Written:
    header = {
        "kind": message.kind,
        "mimes": short(message.data),
        "metadata": dict(message.metadata),
        "display_id": message.display_id if message.display_id is None else short([message.display_id])[0],
        "parts": short(message.parts),
        "behind": message.behind,
    }
    return header, list(message.data.values())


def _write_command(message: Command) -> _Written:
    header = {"number": message.number, "tool": message.tool, "program": len(message.program), "keep": message.keep}
    texts = [message.cwd, *arguments(message.program), *arguments(message.changes)]
    return header, within(MAX_COMMAND, [strictly(message.text), *map(to_bytes, texts)])


def _write_reply(message: Reply) -> _Written:
    header = {"execution_count": message.execution_count, "ename": message.ename}
    if message.ename is None:
        return header, []
    header["later"] = message.later
    return header, within(MAX_ERROR, [to_bytes(text) for text in (message.evalue, *message.traceback)])


def _write_changed(message: Changed) -> _Written:
    names, types, gone = map(names_of, (message.names, message.types, message.gone))
    return {"names": len(names)}, [*names, *types, *gone]


_Written: TypeAlias = tuple[dict[str, Any], list[bytes]]

_WRITERS: dict[str, Callable[[Any], _Written]] = {
    "execute": lambda m: ({"stdin": m.stdin, "silent": m.silent, "parent": m.parent}, [code(m.code)]),
    "input_reply": lambda m: ({"number": m.number}, [] if m.text is None else [to_bytes(m.text)]),
    "installed": lambda m: ({"number": m.number, "status": m.status}, [] if m.refusal is None else [to_bytes(m.refusal)]),
    "decided": lambda m: ({"number": m.number}, [] if m.refusal is None else [to_bytes(m.refusal)]),
    "ended": lambda m: ({"number": m.number, "status": m.status}, [] if m.place is None else [to_bytes(m.place)]),
    "changes": lambda m: ({}, []),
    "complete": lambda m: ({"cursor": m.cursor}, [code(m.code)]),
    "inspect": lambda m: ({"cursor": m.cursor, "detail": m.detail}, [code(m.code)]),
    "park": lambda m: ({"number": m.number}, []),
    "shutdown": lambda m: ({}, []),
    "ready": lambda m: ({"version": m.version}, []),
    "stream": lambda m: ({"name": m.name, "behind": m.behind}, [piece(m.text)]),
    "part": lambda m: ({"mime": short([m.mime])[0]}, [piece(m.data)]),
    "display": _write_display,
    "clear": lambda m: ({"wait": m.wait}, []),
    "comm": lambda m: ({"kind": m.kind}, within(MAX_COMM, [m.content, *few(m.buffers)])),
    "input": lambda m: ({"number": m.number, "password": m.password}, [to_bytes(m.prompt)]),
    "install": lambda m: ({"number": m.number}, [to_bytes(text) for text in arguments(m.arguments)]),
    "command": _write_command,
    "reply": _write_reply,
    "changed": _write_changed,
    "completed": lambda m: ({"start": m.start, "end": m.end}, [to_bytes(text) for text in m.matches]),
    "inspected": lambda m: ({}, [] if m.text is None else [to_bytes(m.text)]),
    "parked": lambda m: ({}, [] if m.refusal is None else [to_bytes(m.refusal)]),
}


def decode(frame: Frame) -> Message:
    """Return the message of a frame.

    Raises:
        ProtocolError: The type is unknown, or a field is missing, of the wrong type or out of range.
    """
    kind = frame.header["type"]
    reader = _READERS.get(kind)
    if reader is None:
        raise ProtocolError(f"unknown message type {kind[:40]!r}")
    return reader(Fields(frame))


def _read_display(fields: Fields) -> Display:
    mimes = fields.texts("mimes", MAX_MIMES)
    if len(mimes) != len(fields.buffers) or len(set(mimes)) != len(mimes):
        raise fields.fail("mimes", "distinct, one for each buffer")
    return Display(
        kind=fields.text("kind", ("display_data", "update_display_data", "execute_result", "error")),
        data=dict(zip(mimes, fields.buffers, strict=True)),
        metadata=fields.mapping("metadata"),
        display_id=fields.optional_text("display_id"),
        parts=fields.texts("parts", MAX_MIMES),
        behind=fields.boolean("behind"),
    )


def _read_comm(fields: Fields) -> Comm:
    if not 1 <= len(fields.buffers) <= 1 + MAX_BUFFERS:
        raise fields.fail("sizes", f"1 to {1 + MAX_BUFFERS} lengths")
    within(MAX_COMM, fields.buffers)
    content, *buffers = fields.buffers
    return Comm(fields.text("kind", ("comm_open", "comm_msg", "comm_close")), content, tuple(buffers))


def _read_install(fields: Fields) -> Install:
    if len(fields.buffers) > MAX_ARGUMENTS:
        raise fields.fail("sizes", f"at most {MAX_ARGUMENTS} lengths")
    return Install(fields.integer("number"), tuple(to_text(buffer) for buffer in fields.buffers))


def _read_command(fields: Fields) -> Command:
    program = fields.integer("program", most=MAX_ARGUMENTS)
    within(MAX_COMMAND, fields.buffers)
    if not 2 + program <= len(fields.buffers) <= 2 + program + MAX_ARGUMENTS:
        raise fields.fail("sizes", f"2, as many as program says, and at most {MAX_ARGUMENTS} lengths")
    _, cwd, *others = (to_text(buffer) for buffer in fields.buffers)
    try:
        text = fields.buffers[0].decode()
    except UnicodeDecodeError:
        raise fields.fail("text", "UTF-8") from None
    return Command(
        number=fields.integer("number"),
        tool=fields.text("tool", ("shell", "shell_magic")),
        text=text,
        program=tuple(others[:program]),
        cwd=cwd,
        changes=tuple(others[program:]),
        keep=fields.text("keep", ("nothing", "out", "err", "both", "together")),
    )


def _read_reply(fields: Fields) -> Reply:
    ename = fields.optional_text("ename")
    count = fields.integer("execution_count")
    if ename is None:
        return Reply(count)
    if not fields.buffers:
        raise fields.fail("sizes", "at least one length if there is an ename")
    within(MAX_ERROR, fields.buffers)
    evalue, *traceback = (to_text(buffer) for buffer in fields.buffers)
    return Reply(count, ename, evalue, tuple(traceback), fields.integer("later"))


def _read_changed(fields: Fields) -> Changed:
    names = fields.integer("names", most=MAX_NAMES)
    if not 2 * names <= len(fields.buffers) <= 2 * names + MAX_NAMES:
        raise fields.fail("sizes", f"two for each of the names, and at most {MAX_NAMES} more")
    if any(len(buffer) > MAX_TEXT for buffer in fields.buffers):
        raise fields.fail("sizes", f"at most {MAX_TEXT} each")
    texts = tuple(to_text(buffer) for buffer in fields.buffers)
    return Changed(texts[:names], texts[names : 2 * names], texts[2 * names :])


_READERS: dict[str, Callable[[Fields], Message]] = {
    "execute": lambda f: Execute(f.code(), f.boolean("stdin"), f.boolean("silent"), f.text("parent")),
    "input_reply": lambda f: InputReply(f.integer("number"), f.optional_buffer_text()),
    "installed": lambda f: Installed(f.integer("number"), f.integer("status"), f.optional_buffer_text()),
    "decided": lambda f: Decided(f.integer("number"), f.optional_buffer_text()),
    "ended": lambda f: Ended(f.integer("number"), f.integer("status", most=0xFFFF), f.optional_buffer_text()),
    "changes": lambda f: Changes(),
    "complete": lambda f: Complete(f.code(), f.integer("cursor")),
    "inspect": lambda f: Inspect(f.code(), f.integer("cursor"), f.integer("detail", most=1)),
    "park": lambda f: Park(f.integer("number")),
    "shutdown": lambda f: Shutdown(),
    "ready": lambda f: Ready(f.integer("version")),
    "stream": lambda f: Stream(f.text("name", ("stdout", "stderr")), f.piece(), f.boolean("behind")),
    "part": lambda f: Part(f.text("mime"), f.piece()),
    "display": _read_display,
    "clear": lambda f: Clear(f.boolean("wait")),
    "comm": _read_comm,
    "input": lambda f: InputRequest(f.integer("number"), to_text(f.buffer()), f.boolean("password")),
    "install": _read_install,
    "command": _read_command,
    "reply": _read_reply,
    "changed": _read_changed,
    "completed": lambda f: Completed(tuple(to_text(buffer) for buffer in f.buffers), f.integer("start"), f.integer("end")),
    "inspected": lambda f: Inspected(f.optional_buffer_text()),
    "parked": lambda f: Parked(f.optional_buffer_text()),
}
