"""Frozen data becomes JSON data, and the same again, by the types of its fields."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cellblock.model import Completions, HistoryEntry, KeptResult, plain
from cellblock.model.checkpoints import Changes, CheckpointRecord, FileAction, FileChange, FileChanges, StateChanges, Undone
from cellblock.model.decisions import CommandRequest
from cellblock.model.files import FileInfo
from cellblock.model.saving import LeftOut, LoadReport, SaveReport
from cellblock.model.sessions import ExecutionRecord, PendingApproval, SessionRecord
from cellblock.model.variables import ChangedVariable, Variable, VariableChanges

_VARIABLE = Variable("x", "int", 8, (2, 3), "1")


@pytest.mark.parametrize(
    "value",
    [
        CheckpointRecord("a", "b", "2026-01-01T00:00:00+00:00", 3, False, "copy", ""),
        Undone([HistoryEntry("1", "success", None, abandoned=True)], 2, [FileAction("a", "reverted", 3)], "why", ["call"]),
        Changes(("a",), ("b",), (), 4),
        StateChanges(VariableChanges([_VARIABLE], [ChangedVariable(_VARIABLE, _VARIABLE)])),
        StateChanges(VariableChanges(), FileChanges(new=(FileChange("a", None, 1),), more=2)),
        SaveReport(Path("/a"), 1, ["x"], [LeftOut("y", "why")], 2, True),
        LoadReport(["x"], [LeftOut("y", "why")]),
        ExecutionRecord("a", "b", begun=1.5),
        PendingApproval("a", "b", "c", "", "tool", "s", "t", {"x": [1]}),
        Variable("y", "str"),
        CommandRequest("shell_magic", "ls", ("bash", "-e"), "/", {"A": None}),
        FileInfo("a", "file", 1, 2.5, 0o644),
        Completions(["a"], 0, 1),
        SessionRecord("a", "b", "c", "d", tags={"x": "y"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_the_same_after_a_journey_as_json(value: Any) -> None:
    data = value.to_dict() if hasattr(value, "to_dict") else plain.as_dict(value)
    assert plain.reader(type(value))(json.loads(json.dumps(data))) == value


def test_what_is_not_compared_is_not_data() -> None:
    entry = HistoryEntry("1", "success", 1, kept=KeptResult())
    assert plain.as_dict(entry) == {"code": "1", "status": "success", "execution_count": 1, "abandoned": False}


def test_fields_that_are_not_there_get_their_defaults() -> None:
    found = plain.reader(HistoryEntry)({"code": "1", "status": "success", "execution_count": 1})
    assert found == HistoryEntry("1", "success", 1)


def test_data_holds_copies() -> None:
    """Who changes it changes nothing else."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Holder(plain.Plain):
        names: list[str]
        tags: Mapping[str, str]

    held = Holder(["a"], {"b": "c"})
    data = held.to_dict()
    assert data == {"names": held.names, "tags": held.tags}
    assert data["names"] is not held.names
    assert data["tags"] is not held.tags
