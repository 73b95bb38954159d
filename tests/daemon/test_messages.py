"""The requests of clients: what they look like belongs to the protocol's number."""

from __future__ import annotations

import dataclasses
import hashlib
import typing

from cellblock.daemon import messages
from cellblock.named import options

SHAPES = {4: "757e056a7290", 5: "1f9662ae8330"}
"""For each number of the protocol, a digest of what requests have and which options sessions take"""


def default(field: dataclasses.Field[object]) -> str:
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


def shapes() -> str:
    """Return a digest of all requests: their names and fields, with types and defaults, and the options of sessions."""
    lines = [
        f"{kind.op}: " + ", ".join(f"{field.name}: {field.type}{default(field)}" for field in dataclasses.fields(kind))
        for kind in typing.get_args(messages.Request)
    ]
    lines.append("options: " + ", ".join(sorted(options._SESSION | options._SERVICES | options._NAMED)))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:12]


def test_whoever_changes_a_request_or_an_option_changes_the_number_of_the_protocol() -> None:
    """Otherwise a client and a daemon of different versions talk to each other, and misunderstand."""
    newest = max(SHAPES)
    assert newest == messages.PROTOCOL
    wrong = f"requests or options have changed: raise PROTOCOL, and write the digest here, if version {newest} was released"
    assert shapes() == SHAPES[newest], wrong
