"""Results and their parts: frozen, comparable, and plain JSON on request."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest

from cellblock import model
from cellblock.model import (
    AttemptSnapshot,
    CodeExecutionChunk,
    CodeExecutionResult,
    Completions,
    ErrorInfo,
    HistoryEntry,
    OutputItem,
    Status,
    decisions,
)
from cellblock.model.decisions import CommandRequest, Decision

MEMBERS = [*vars(model).values(), *vars(decisions).values()]
CLASSES = [kind for kind in MEMBERS if dataclasses.is_dataclass(kind) and isinstance(kind, type)]

FULL = CodeExecutionResult(
    text="text",
    images=[Path("/images/a.png")],
    status="error",
    output="out",
    stderr="err",
    return_value="1",
    error=ErrorInfo("ValueError", "wrong", ["line"]),
    execution_count=3,
    duration_ms=5,
    outputs=[
        OutputItem("stream", "out", "stdout"),
        OutputItem(
            "display_data", "<image/png>", data={"image/png": b"\xff", "text/html": "<b>"}, metadata={"a": 1}, display_id="d"
        ),
    ],
    truncated=True,
    attempts=[AttemptSnapshot(1, "code", "error", "o", "e", ErrorInfo("E", "v"))],
    recovery="restarted",
    spilled=[Path("/spill/a.txt")],
    exit_status=-11,
)


def test_the_tests_know_every_class() -> None:
    assert set(CLASSES) == {
        AttemptSnapshot,
        CodeExecutionChunk,
        CodeExecutionResult,
        CommandRequest,
        Completions,
        Decision,
        ErrorInfo,
        HistoryEntry,
        OutputItem,
    }


def test_every_field_is_documented() -> None:
    for kind in CLASSES:
        undocumented = {field.name for field in dataclasses.fields(kind) if f"{field.name}:" not in (kind.__doc__ or "")}
        assert undocumented <= (
            {field.name for field in dataclasses.fields(AttemptSnapshot)} if kind is AttemptSnapshot else set()
        )


def test_a_result_is_plain_json_with_every_field() -> None:
    plain = FULL.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == {field.name for field in dataclasses.fields(FULL)}
    assert plain["images"] == ["/images/a.png"]
    assert plain["error"] == {"ename": "ValueError", "evalue": "wrong", "traceback": ["line"]}
    assert plain["attempts"][0]["error"]["ename"] == "E"
    assert set(plain["outputs"][0]) == {field.name for field in dataclasses.fields(OutputItem)}


def test_an_empty_result_is_plain_json_too() -> None:
    plain = CodeExecutionResult().to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["error"] is None


def test_bytes_become_base64_and_text_stays() -> None:
    data = FULL.to_dict()["outputs"][1]["data"]
    assert base64.b64decode(data["image/png"]) == b"\xff"
    assert data["text/html"] == "<b>"


def test_plain_data_is_a_copy() -> None:
    plain = FULL.to_dict()
    plain["outputs"][1]["metadata"]["b"] = 2
    plain["error"]["traceback"].append("more")
    assert "b" not in FULL.outputs[1].metadata
    assert FULL.error is not None
    assert FULL.error.traceback == ["line"]


@pytest.mark.parametrize("status", get_args(Status))
def test_only_success_is_ok(status: Status) -> None:
    assert CodeExecutionResult(status=status).ok == (status == "success")


def test_only_a_restart_loses_state() -> None:
    assert CodeExecutionResult(recovery="restarted").state_lost
    assert not CodeExecutionResult(recovery="killed_children").state_lost
    assert not CodeExecutionResult().state_lost


def test_json_of_a_bundle_is_parsed_on_request() -> None:
    item = OutputItem(
        "display_data", data={"application/json": '{"a": [1]}', "application/x+json": "cut", "image/png": b"\xff"}
    )
    assert item.json() == {"a": [1]}
    with pytest.raises(ValueError, match="Expecting value"):
        item.json("application/x+json")
    with pytest.raises(KeyError):
        item.json("application/geo+json")
