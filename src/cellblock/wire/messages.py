"""Messages: what frames mean, as typed data.

Each class states its fields; `encode` and `decode` are the only ways between a message and a frame. Decoding checks every
field's type and range, because what a worker sends is hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from cellblock.errors import ProtocolError
from cellblock.wire.frames import MAX_BODY, Frame, encode_frame

MAX_CODE = 4 * 1024 * 1024
"""Largest source of one cell, in bytes of UTF-8."""

PIECE = 256 * 1024
"""Most bytes of one `Stream` or `Part`: long text and large values travel in pieces."""

MAX_ARGUMENTS = 256
"""Most arguments of one installation."""

MAX_MIMES = 64
"""Most MIME types in one bundle."""

MAX_TEXT = 4096
"""Longest string of a header field, in characters."""

MAX_NUMBER = 2**31 - 1
"""Largest integer of a header field; none is negative."""


@dataclass(frozen=True, slots=True)
class Execute:
    """Host → worker: run a cell."""

    type: ClassVar[str] = "execute"
    code: str
    stdin: bool = False
    """Whether somebody answers `input()`; if not, asking is an immediate error."""


@dataclass(frozen=True, slots=True)
class InputReply:
    """Host → worker: the answer to `InputRequest`; None where whoever was asked cannot answer."""

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
    kind: Literal["display_data", "update_display_data", "execute_result"]
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
class Reply:
    """Worker → host: the cell has ended; all it wrote from Python was sent before this."""

    type: ClassVar[str] = "reply"
    execution_count: int
    ename: str | None = None
    evalue: str = ""
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """Worker → host: the answer to `Complete`."""

    type: ClassVar[str] = "completed"
    matches: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """Worker → host: the answer to `Inspect`; None where nothing of that name was found."""

    type: ClassVar[str] = "inspected"
    text: str | None


ToWorker: TypeAlias = Execute | InputReply | Installed | Complete | Inspect | Shutdown
ToHost: TypeAlias = Ready | Stream | Part | Display | Clear | InputRequest | Install | Reply | Completed | Inspected
Message: TypeAlias = ToWorker | ToHost


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
        "mimes": _short(message.data),
        "metadata": dict(message.metadata),
        "display_id": message.display_id if message.display_id is None else _short([message.display_id])[0],
        "parts": _short(message.parts),
        "behind": message.behind,
    }
    return header, list(message.data.values())


def _write_reply(message: Reply) -> _Written:
    header = {"execution_count": message.execution_count, "ename": message.ename}
    return header, [_bytes(text) for text in (message.evalue, *message.traceback)] if message.ename is not None else []


_Written: TypeAlias = tuple[dict[str, Any], list[bytes]]

_WRITERS: dict[str, Callable[[Any], _Written]] = {
    "execute": lambda m: ({"stdin": m.stdin}, [_code(m.code)]),
    "input_reply": lambda m: ({"number": m.number}, [] if m.text is None else [_bytes(m.text)]),
    "installed": lambda m: ({"number": m.number, "status": m.status}, [] if m.refusal is None else [_bytes(m.refusal)]),
    "complete": lambda m: ({"cursor": m.cursor}, [_code(m.code)]),
    "inspect": lambda m: ({"cursor": m.cursor, "detail": m.detail}, [_code(m.code)]),
    "shutdown": lambda m: ({}, []),
    "ready": lambda m: ({"version": m.version}, []),
    "stream": lambda m: ({"name": m.name, "behind": m.behind}, [_piece(m.text)]),
    "part": lambda m: ({"mime": _short([m.mime])[0]}, [_piece(m.data)]),
    "display": _write_display,
    "clear": lambda m: ({"wait": m.wait}, []),
    "input": lambda m: ({"number": m.number, "password": m.password}, [_bytes(m.prompt)]),
    "install": lambda m: ({"number": m.number}, _arguments(m.arguments)),
    "reply": _write_reply,
    "completed": lambda m: ({"start": m.start, "end": m.end}, [_bytes(text) for text in m.matches]),
    "inspected": lambda m: ({}, [] if m.text is None else [_bytes(m.text)]),
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
    return reader(_Fields(frame))


class _Fields:
    """Reads the fields of one frame, each checked."""

    __slots__ = ("_header", "_type", "buffers")

    def __init__(self, frame: Frame) -> None:
        self._header = frame.header
        self._type = frame.header["type"]
        sizes = frame.header.get("sizes", [])
        if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size <= MAX_BODY for size in sizes):
            raise ProtocolError(f"{self._type}: sizes must be a list of lengths")
        if sum(sizes) != len(frame.body):
            raise ProtocolError(f"{self._type}: sizes add up to {sum(sizes)}, the body has {len(frame.body)}")
        if len(sizes) == 1:
            self.buffers = [frame.body]
            return
        self.buffers = []
        start = 0
        for size in sizes:
            self.buffers.append(frame.body[start : start + size])
            start += size

    def fail(self, name: str, want: str) -> ProtocolError:
        return ProtocolError(f"{self._type}: {name} must be {want}")

    def boolean(self, name: str) -> bool:
        value = self._header.get(name, False)
        if type(value) is not bool:
            raise self.fail(name, "true or false")
        return value

    def integer(self, name: str, most: int = MAX_NUMBER) -> int:
        value = self._header.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.fail(name, f"an integer from 0 to {most}")
        return value

    def text(self, name: str, choices: tuple[str, ...] | None = None) -> Any:
        value = self._header.get(name)
        if type(value) is not str or len(value) > MAX_TEXT or (choices and value not in choices):
            raise self.fail(name, f"one of {', '.join(choices)}" if choices else "a short string")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._header.get(name) is None else str(self.text(name))

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        value = self._header.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.fail(name, f"a list of at most {most}")
        if not all(type(item) is str and len(item) <= MAX_TEXT for item in value):
            raise self.fail(name, "a list of short strings")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._header.get(name, {})
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return value

    def buffer(self) -> bytes:
        if len(self.buffers) != 1:
            raise self.fail("sizes", "one length")
        return self.buffers[0]

    def piece(self) -> bytes:
        data = self.buffer()
        if len(data) > PIECE:
            raise self.fail("sizes", f"at most {PIECE}")
        return data

    def code(self) -> str:
        data = self.buffer()
        if len(data) > MAX_CODE:
            raise self.fail("code", f"at most {MAX_CODE} bytes")
        return _string(data)

    def optional_buffer_text(self) -> str | None:
        return _string(self.buffer()) if self.buffers else None


def _read_display(fields: _Fields) -> Display:
    mimes = fields.texts("mimes", MAX_MIMES)
    if len(mimes) != len(fields.buffers) or len(set(mimes)) != len(mimes):
        raise fields.fail("mimes", "distinct, one for each buffer")
    return Display(
        kind=fields.text("kind", ("display_data", "update_display_data", "execute_result")),
        data=dict(zip(mimes, fields.buffers, strict=True)),
        metadata=fields.mapping("metadata"),
        display_id=fields.optional_text("display_id"),
        parts=fields.texts("parts", MAX_MIMES),
        behind=fields.boolean("behind"),
    )


def _read_install(fields: _Fields) -> Install:
    if len(fields.buffers) > MAX_ARGUMENTS:
        raise fields.fail("sizes", f"at most {MAX_ARGUMENTS} lengths")
    return Install(fields.integer("number"), tuple(_string(buffer) for buffer in fields.buffers))


def _read_reply(fields: _Fields) -> Reply:
    ename = fields.optional_text("ename")
    count = fields.integer("execution_count")
    if ename is None:
        return Reply(count)
    if not fields.buffers:
        raise fields.fail("sizes", "at least one length where there is an ename")
    evalue, *traceback = (_string(buffer) for buffer in fields.buffers)
    return Reply(count, ename, evalue, tuple(traceback))


_READERS: dict[str, Callable[[_Fields], Message]] = {
    "execute": lambda f: Execute(f.code(), f.boolean("stdin")),
    "input_reply": lambda f: InputReply(f.integer("number"), f.optional_buffer_text()),
    "installed": lambda f: Installed(f.integer("number"), f.integer("status"), f.optional_buffer_text()),
    "complete": lambda f: Complete(f.code(), f.integer("cursor")),
    "inspect": lambda f: Inspect(f.code(), f.integer("cursor"), f.integer("detail", most=1)),
    "shutdown": lambda f: Shutdown(),
    "ready": lambda f: Ready(f.integer("version")),
    "stream": lambda f: Stream(f.text("name", ("stdout", "stderr")), f.piece(), f.boolean("behind")),
    "part": lambda f: Part(f.text("mime"), f.piece()),
    "display": _read_display,
    "clear": lambda f: Clear(f.boolean("wait")),
    "input": lambda f: InputRequest(f.integer("number"), _string(f.buffer()), f.boolean("password")),
    "install": _read_install,
    "reply": _read_reply,
    "completed": lambda f: Completed(tuple(_string(buffer) for buffer in f.buffers), f.integer("start"), f.integer("end")),
    "inspected": lambda f: Inspected(f.optional_buffer_text()),
}


def _short(texts: Iterable[str]) -> list[str]:
    """Return strings for a header, checked: user code chooses MIME types and ids."""
    checked = list(texts)
    if len(checked) > MAX_MIMES or not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in checked):
        raise ProtocolError(
            f"MIME types and ids must be strings of at most {MAX_TEXT} characters, at most {MAX_MIMES} of them"
        )
    return checked


def _arguments(texts: tuple[str, ...]) -> list[bytes]:
    if len(texts) > MAX_ARGUMENTS:
        raise ProtocolError(f"{len(texts)} arguments are over the limit of {MAX_ARGUMENTS}")
    return [_bytes(text) for text in texts]


def _piece(data: bytes) -> bytes:
    if len(data) > PIECE:
        raise ProtocolError(f"a piece of {len(data)} bytes is over the limit of {PIECE}")
    return data


def _code(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"the code is no UTF-8: {error}") from None
    if len(data) > MAX_CODE:
        raise ProtocolError(f"code of {len(data)} bytes is over the limit of {MAX_CODE}")
    return data


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _string(data: bytes) -> str:
    return data.decode("utf-8", "replace")
