"""Detects how a tool differs from its generated API, because a server may change it after its review."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

from cellblock.tools.approvals.call import Hints
from cellblock.tools.calling.content import ToolSpec

ToolFacts = Mapping[str, str]
"""A server's facts about a tool, short enough to keep for each."""

GONE: ToolFacts = {}
"""The facts of a tool that the server does not list."""

Check = Callable[[ToolFacts], None]
"""Called with the present facts about a tool before its call. If it raises, the caller gets that, and nothing is called."""

_HINTS = {"read_only": "readOnlyHint", "destructive": "destructiveHint"}
_TEXTS = {"description": "its description", "input_schema": "its arguments", "output_schema": "its result"}


def facts_of(tool: ToolSpec) -> ToolFacts:
    """Return the facts about a tool for comparison: its hints, and digests of its texts."""
    hints = {name: {None: "not given", True: "true", False: "false"}[getattr(tool, name)] for name in _HINTS}
    return hints | {name: _digest(getattr(tool, name)) for name in _TEXTS}


def changes(before: ToolFacts, now: ToolFacts) -> str:
    """Describe in a few words how a tool differs; empty if it does not."""
    if before == now:
        return ""
    if not before or not now:
        return "the server no longer lists it" if not now else "the server did not list it when its API was generated"
    said = [f"{hint} was {before[name]} and is {now[name]}" for name, hint in _HINTS.items() if before[name] != now[name]]
    # Part of the digest is shown, so accepting one change does not accept the next.
    said += [f"{text} changed ({now[name][:8]})" for name, text in _TEXTS.items() if before[name] != now[name]]
    return "; ".join(said)


def hints_of(facts: ToolFacts) -> Hints:
    """Return a server's hints about a tool, with the specification's defaults."""
    return Hints(**{name: facts[name] == "true" for name in _HINTS if facts.get(name, "not given") != "not given"})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
