"""docs/wire.md says what the code does: every message, field, limit and transition, and nothing besides."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from cellblock.wire import control, copies, datagrams, fields, frames, messages, programs, sandbox
from cellblock.wire.datagrams import Incoming
from cellblock.wire.protocol import TRANSITIONS, Side, State
from wire_cases import TYPES

DOCUMENT = Path(__file__).parents[2] / "docs" / "wire.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
LIMITS = {
    name: value
    for module in (frames, fields, datagrams, control)
    for name, value in vars(module).items()
    if name.isupper() and type(value) is int and not name.startswith(("VERSION", "EXIT_"))
}
ROWS = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]


def described(sender: Side) -> dict[str, set[str]]:
    """Return the fields of every message of one sender, as the document has them."""
    heading = "### Host → worker" if sender is Side.HOST else "### Worker → host"
    section = re.split(r"^#+ ", TEXT.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, set[str]] = {}
    kind = ""
    for line in section.splitlines():
        if line.startswith("| `"):
            kind = line.split("`")[1]
            found[kind] = set()
        elif line.startswith("| | `"):
            found[kind].add(line.split("`")[1])
    return found


def test_the_version_is_named() -> None:
    assert f"`VERSION = {frames.VERSION}`" in TEXT


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_is_there_with_its_value(name: str) -> None:
    assert [row[1] for row in ROWS if row[0] == f"`{name}`"] == [str(LIMITS[name])]


def test_every_limit_of_the_document_exists() -> None:
    assert {row[0].strip("`") for row in ROWS if re.fullmatch(r"`[A-Z_]+`", row[0])} == set(LIMITS)


@pytest.mark.parametrize("sender", Side)
def test_every_message_is_there_with_its_fields(sender: Side) -> None:
    classes = get_args(messages.ToWorker if sender is Side.HOST else messages.ToHost)
    assert described(sender) == {kind.type: {field.name for field in dataclasses.fields(kind)} for kind in classes}


def test_messages_are_listed_under_their_sender() -> None:
    listed = {(side, kind) for side in Side for kind in described(side)}
    assert listed == {sender for row in TRANSITIONS.values() for sender in row}
    assert sorted(kind for _, kind in listed) == TYPES


def test_the_table_of_transitions_is_the_codes() -> None:
    states = {state.value for state in State}
    written = {
        (State(state), Side(sender), kind): State(following)
        for state, sender, kinds, following in (row for row in ROWS if len(row) == 4 and row[0] in states)
        for kind in re.findall(r"`(\w+)`", kinds)
    }
    assert written == {(state, *key): following for state, row in TRANSITIONS.items() for key, following in row.items()}


def test_the_diagram_shows_every_change_of_state() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+) (\w+)$", TEXT, flags=re.MULTILINE))
    assert drawn == {
        (state.value, following.value, side.value, kind)
        for state, row in TRANSITIONS.items()
        for (side, kind), following in row.items()
        if following is not state
    }


def control_rows() -> set[tuple[str, str, frozenset[str]]]:
    """Return each control message with its sender and fields, as the document has them."""
    rows = [row for row in ROWS if len(row) == 5 and row[1] in SENDERS]
    return {(row[0].strip("`"), row[1], frozenset(re.findall(r"`(\w+)`", row[2]))) for row in rows}


TO_PROGRAMS = (programs.SPECIFICATION, programs.TO_WATCHER)

SENDERS: dict[str, tuple[Incoming[Any], ...]] = {
    "host": (control.TO_LAUNCHER, control.TO_NEW_INIT, control.TO_INIT, copies.TO_FAMILY, control.TO_SERVER, *TO_PROGRAMS),
    "fork server": (control.FROM_LAUNCHER,),
    "init": (
        control.FROM_INIT,
        copies.FROM_FAMILY,
        control.TO_WORKER,
        copies.TO_COPY,
        control.TO_MAKER,
        control.FROM_SERVER,
    ),
    "watcher": (programs.FROM_WATCHER,),
    "copy": (Incoming(copies.Copied, copies.Untaken),),
    "kernel": (Incoming(copies.Taken),),
}


def test_every_control_message_is_there_with_its_sender_and_fields() -> None:
    assert set(copies.FROM_COPY.kinds) == {"copied", "taken", "untaken"}
    assert control_rows() == {
        (op, sender, frozenset(field.name for field in dataclasses.fields(kind)))
        for sender, directions in SENDERS.items()
        for direction in directions
        for op, kind in direction.kinds.items()
    }


@pytest.mark.parametrize("kind", [control.Listener, sandbox.Plan, sandbox.Restrictions, sandbox.Confinement])
def test_what_control_messages_are_made_of_is_there_with_its_fields(kind: type) -> None:
    (row,) = [row for row in ROWS if row[0] == kind.__name__]
    assert re.findall(r"`(\w+)`", row[1]) == [field.name for field in dataclasses.fields(kind)]


def test_every_step_is_there_with_its_fields() -> None:
    steps = TEXT.partition("### Steps")[2].partition("\n## ")[0]
    written = {
        row[0].strip("`"): re.findall(r"`(\w+)`", row[1])
        for row in ROWS
        if len(row) == 3 and f"\n| {row[0]} | {row[1]} |" in steps and row[0].startswith("`")
    }
    assert written == {kind.kind: [field.name for field in dataclasses.fields(kind)] for kind in get_args(sandbox.Step)}


def test_the_numbers_of_descriptors_are_right() -> None:
    (fork,) = [row for row in ROWS if row[0] == "`fork`"]
    assert len(fork[3].split(",")) == control.FORK_DESCRIPTORS
