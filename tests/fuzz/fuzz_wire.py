"""Fuzzes the wire: whatever bytes come, only `ProtocolError` may come out. Needs atheris; run by `make fuzz`.

Takes libFuzzer's options and corpus directories; without a directory it begins with one frame of every message.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")  # installed for this only, so the type checker must do without

with atheris.instrument_imports():
    import json.decoder
    import json.scanner

    # The scanner in C shows the fuzzer no coverage, the one in Python does; what they take is the same.
    json.decoder.scanstring = json.decoder.py_scanstring  # type: ignore[attr-defined]
    json.scanner.make_scanner = json.scanner.py_make_scanner  # type: ignore[attr-defined, misc]

    from cellblock.errors import ProtocolError
    from cellblock.wire import messages as m
    from cellblock.wire.control import FROM_INIT, FROM_LAUNCHER, FROM_SERVER
    from cellblock.wire.message_codec import encode
    from cellblock.wire.protocol import Conversation, Side, State

STATES = [*State]
SIDES = [*Side]

SEEDS: tuple[m.Message, ...] = (
    m.Execute("print(1)", stdin=True),
    m.InputReply(1, "answer"),
    m.InputReply(2, None),
    m.Installed(1, 1, "refused"),
    m.Decided(1, "rejected"),
    m.Ended(1, 9, "/tmp/.output-1"),
    m.Changes(),
    m.Complete("pri", 3),
    m.Inspect("print", 5, detail=1),
    m.Shutdown(),
    m.Ready(1),
    m.Stream("stdout", b"text\n", behind=True),
    m.Part("text/html", b"<b>"),
    m.Display(
        "display_data", {"text/plain": b"x", "image/png": b"\x89PNG"}, {"image/png": {"width": 1.5}}, "id", ("text/html",)
    ),
    m.Clear(wait=True),
    m.InputRequest(1, "name? ", password=False),
    m.Install(1, ("numpy", "pandas>=2")),
    m.Command(1, "shell_magic", "echo 1\n", "/tmp", ("bash", "-e"), ("A=1", "B"), "both"),
    m.Reply(3),
    m.Reply(4, "ValueError", "wrong", ("line 1", "line 2")),
    m.Changed(("x", "y"), ("int", "str"), ("z",)),
    m.Completed(("print", "printer"), 0, 3),
    m.Inspected("Docstring: é"),
)


def try_one(data: bytes) -> None:
    """Feed bytes to one side of a conversation; the first byte chooses the side, the state and where the rest is cut."""
    if not data:
        return
    choice, data = data[0], data[1:]
    conversation = Conversation(SIDES[choice % 2])
    conversation.state = STATES[choice // 2 % len(STATES)]
    step = len(data) if choice < 128 else max(choice - 127, 1)
    try:
        for start in range(0, len(data), step or 1):
            for message in conversation.receive(data[start : start + step]):
                encode(message)
    except ProtocolError as error:
        str(error).encode()
    for incoming in (FROM_INIT, FROM_LAUNCHER, FROM_SERVER):
        try:
            incoming.decode(data)
        except ProtocolError as error:
            str(error).encode()


def write_seeds(directory: Path) -> None:
    """Write one file for each message, as it arrives in a state in which it is allowed."""
    for number, message in enumerate(SEEDS):
        for state, side in ((state, side) for state in STATES for side in SIDES):
            listener = Conversation(side)
            listener.state = state
            raw = encode(message)
            try:
                listener.receive(raw)
            except ProtocolError:
                continue
            choice = SIDES.index(side) + 2 * STATES.index(state)
            (directory / f"{number}-{state.value}").write_bytes(bytes([choice]) + raw)
            break
    (directory / "control").write_bytes(b'\0{"op":"exited","status":139}')


def main() -> int:
    """Run libFuzzer; return 0 when its time is up, and something else where it found anything.

    libFuzzer ends its process by itself, so it gets one, and this one cleans up. A finding is printed, and written to a file
    in the current directory that can be given as an argument to see it again.
    """
    with tempfile.TemporaryDirectory() as directory:
        write_seeds(Path(directory))
        child = os.fork()
        if child == 0:
            atheris.Setup(
                [sys.argv[0], "-max_len=16384", "-timeout=10", "-rss_limit_mb=1024", *sys.argv[1:], directory], try_one
            )
            atheris.Fuzz()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
