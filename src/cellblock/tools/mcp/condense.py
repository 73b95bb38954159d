"""Extracts the result of a tool call from a large message, in a process that `large` starts.

Decoding a large message takes long and blocks all threads of the process; this process has nothing else to do. It starts
without site packages, so it uses the standard library only.

The message is read from standard input. Two numbers are written to standard output: the number of values in the message,
and the length of the short message that replaces it, or 0 if it is not the result of a call. The short message and the
result follow, both as JSON.
"""

from __future__ import annotations

import gc
import json
import resource
import struct
import sys
from typing import Any

LARGE = "cellblock/large"
"""The key in the metadata of a short message whose result is elsewhere. Its value is the first argument."""

MAX_VALUES = 2_000_000
"""Maximum values of one message. Decoding them takes a second, and 300 MB."""

HEAD = struct.Struct("!QQ")

_MAX_MEMORY = 1024**3
_MAX_SECONDS = 10  # processor time
_MAX_COMPLAINT = 64 * 1024  # characters of a failing tool's message


def values_in(message: bytes) -> int:
    """Return an upper bound of the number of values in a message: commas and brackets outside of strings."""
    bare = message.replace(b"\\\\", b"").replace(b'\\"', b"")  # each remaining quote begins or ends a string
    if bare.count(b'"') > 4 * MAX_VALUES:
        return MAX_VALUES + 1
    return sum(map(marks, bare.split(b'"')[::2]))


def marks(data: bytes) -> int:
    """Count commas and opening brackets."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def condensed(message: bytes, token: str) -> tuple[bytes, bytes]:
    """Return a short message in place of a call's result, and the result; both empty for other messages.

    Raises:
        ValueError: The message is not JSON.
    """
    said = json.loads(message)
    result = said.get("result") if isinstance(said, dict) else None
    if not isinstance(result, dict):
        return b"", b""
    content, structured = result.get("content"), result.pop("structuredContent", None)
    if not isinstance(content, list) or not isinstance(structured, dict | None):
        return b"", b""
    texts: list[str] = []
    others: list[Any] = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
        if isinstance(text, str):
            texts.append(text)
        else:
            others.append(block)
    text = "\n".join(texts)
    if result.get("isError") is True:
        others.append({"type": "text", "text": text[:_MAX_COMPLAINT]})
    said["result"] = {**result, "content": others, "_meta": {LARGE: token}}
    value = (text or None) if structured is None else structured
    return _encoded(said), _encoded(value)


def _encoded(value: Any) -> bytes:
    # NaN and Infinity are not JSON: other programs could not read them.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")


def main() -> None:
    """Read a message, and write its parts."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()
    message = sys.stdin.buffer.read()
    values, short, value = values_in(message), b"", b""
    if values <= MAX_VALUES:
        short, value = condensed(message, sys.argv[1])
    for part in (HEAD.pack(values, len(short)), short, value):
        sys.stdout.buffer.write(part)


if __name__ == "__main__":
    main()
