"""What the wire's tests and its fuzzer feed it: every kind of message, valid or hostile, cut anywhere."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any, get_args

from hypothesis import settings
from hypothesis import strategies as st

from cellblock.wire import messages as m
from cellblock.wire.fields import MAX_NUMBER
from cellblock.wire.message_codec import encode
from cellblock.wire.protocol import TRANSITIONS

unhurried = settings(deadline=None)  # on a busy machine time says nothing
brief = settings(unhurried, max_examples=10)  # the fuzzer goes on where this ends

PREFIX = struct.Struct("!II")
TYPES = sorted({kind for row in TRANSITIONS.values() for _, kind in row})
FIELDS = sorted({field.name for kind in get_args(m.Message) for field in dataclasses.fields(kind)} | {"mimes", "sizes"})


def frame(header: object, body: bytes = b"") -> bytes:
    """Return a frame without any of the sender's checks; a header may be bytes already."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return PREFIX.pack(len(head), len(body)) + head + body


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    """Yield data in pieces, cut at these places (taken modulo its length)."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    for start, end in itertools.pairwise(ends):
        yield data[start:end]


places = st.lists(st.integers(0, 10_000), max_size=20)
short = st.text(max_size=20)
numbers = st.integers(0, MAX_NUMBER)
bits = st.booleans()
data = st.binary(max_size=200)

_scalars = st.none() | bits | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | short


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3)


metadata = st.dictionaries(short, _nested(_nested(_nested(_scalars))), max_size=3)

BY_TYPE: dict[str, st.SearchStrategy[m.Message]] = {
    "execute": st.builds(m.Execute, short, bits, bits, short),
    "input_reply": st.builds(m.InputReply, numbers, st.none() | short),
    "installed": st.builds(m.Installed, numbers, numbers, st.none() | short),
    "decided": st.builds(m.Decided, numbers, st.none() | short),
    "ended": st.builds(m.Ended, numbers, st.integers(0, 0xFFFF), st.none() | short),
    "changes": st.builds(m.Changes),
    "complete": st.builds(m.Complete, short, numbers),
    "inspect": st.builds(m.Inspect, short, numbers, st.integers(0, 1)),
    "park": st.builds(m.Park, numbers, st.booleans()),
    "idle": st.builds(m.Idle),
    "continue": st.builds(m.Continue),
    "shutdown": st.builds(m.Shutdown),
    "ready": st.builds(m.Ready, numbers),
    "stream": st.builds(m.Stream, st.sampled_from(["stdout", "stderr"]), data, bits),
    "part": st.builds(m.Part, short, data),
    "display": st.builds(
        m.Display,
        st.sampled_from(["display_data", "update_display_data", "execute_result"]),
        st.dictionaries(short, data, max_size=4),
        metadata,
        st.none() | short,
        st.lists(short, max_size=4).map(tuple),
        bits,
    ),
    "clear": st.builds(m.Clear, bits),
    "comm": st.builds(
        m.Comm, st.sampled_from(["comm_open", "comm_msg", "comm_close"]), data, st.lists(data, max_size=4).map(tuple)
    ),
    "input": st.builds(m.InputRequest, numbers, short, bits),
    "install": st.builds(m.Install, numbers, st.lists(short, max_size=4).map(tuple)),
    "command": st.builds(
        m.Command,
        numbers,
        st.sampled_from(["shell", "shell_magic"]),
        short,
        short,
        st.lists(short, max_size=4).map(tuple),
        st.lists(short, max_size=4).map(tuple),
        st.sampled_from(["nothing", "out", "err", "both", "together"]),
    ),
    "reply": st.builds(m.Reply, numbers)
    | st.builds(m.Reply, numbers, short, short, st.lists(short, max_size=4).map(tuple), numbers),
    "changed": st.lists(st.tuples(short, short), max_size=4).flatmap(
        lambda changed: st.builds(
            m.Changed,
            st.just(tuple(name for name, _ in changed)),
            st.just(tuple(kind for _, kind in changed)),
            st.lists(short, max_size=4).map(tuple),
        )
    ),
    "completed": st.builds(m.Completed, st.lists(short, max_size=4).map(tuple), numbers, numbers),
    "inspected": st.builds(m.Inspected, st.none() | short),
    "parked": st.builds(m.Parked, st.none() | short, st.booleans(), st.booleans()),
    "idling": st.builds(m.Idling, bits),
}

messages = st.one_of(*BY_TYPE.values())

# JSON as nobody means it: surrogates, NaN, numbers of any size, the right names with the wrong values.
_odd = st.recursive(
    st.none()
    | bits
    | st.integers()
    | st.integers(4290, 4310).map(lambda digits: _Raw("9" * digits))
    | st.floats()
    | st.text(st.characters(), max_size=10)
    | st.sampled_from(["stdout", "display_data", "\ud800", "\0", "a" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=4),
    max_leaves=12,
)


class _Raw:
    """A number as it stands on the wire; Python itself would refuse to print it."""

    def __init__(self, text: str) -> None:
        self.text = text


def _json(value: Any) -> str:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value)


_sizes = st.lists(st.integers(0, 40), max_size=4) | st.lists(_odd, max_size=4)
_headers = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES) | _odd},
    optional={name: _odd for name in FIELDS if name != "sizes"} | {"sizes": _sizes},
)
hostile_frames = st.builds(lambda header, body: frame(_json(header).encode(), body), _headers | _odd, st.binary(max_size=40))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return frames that were valid until some of their bytes were changed."""
    raw = bytearray(b"".join(map(encode, draw(st.lists(messages, min_size=1, max_size=3)))))
    for _ in range(draw(st.integers(1, 4))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


hostile = st.one_of(
    st.binary(max_size=300), damaged(), st.lists(hostile_frames, min_size=1, max_size=3).map(b"".join), hostile_frames
)
