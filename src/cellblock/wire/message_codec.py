"""Converts messages to frames (`encode`) and back (`decode`).

Decoding checks every field's type and range, because what a worker sends is hostile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cellblock.errors import ProtocolError
from cellblock.wire.fields import (
    MAX_ARGUMENTS,
    MAX_BUFFERS,
    MAX_COMM,
    MAX_COMMAND,
    MAX_ERROR,
    MAX_MIMES,
    MAX_NAMES,
    MAX_TEXT,
    Fields,
    arguments,
    code,
    few,
    names_of,
    piece,
    short,
    strictly,
    to_bytes,
    to_text,
    within,
)
from cellblock.wire.frames import Frame, encode_frame
from cellblock.wire.messages import (
    Changed,
    Changes,
    Clear,
    Comm,
    Command,
    Complete,
    Completed,
    Decided,
    Display,
    Ended,
    Execute,
    InputReply,
    InputRequest,
    Inspect,
    Inspected,
    Install,
    Installed,
    Message,
    Park,
    Parked,
    Part,
    Ready,
    Reply,
    Shutdown,
    Stream,
)


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
        "texts": short(message.texts),
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
        texts=fields.texts("texts", MAX_MIMES),
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
