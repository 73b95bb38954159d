"""Models of answers come from the classes of `model`, and fit what these become in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from cellblock.fronts.gateway.answers import json_bytes
from cellblock.fronts.gateway.descriptions import documented
from cellblock.fronts.gateway.models import ExecutionResultModel, KernelModel, model_of
from cellblock.fronts.gateway.routes import with_age
from cellblock.model import AttemptSnapshot, CodeExecutionResult, ErrorInfo, OutputItem
from cellblock.model.checkpoints import Restored
from cellblock.model.sessions import SessionRecord


def test_what_a_base_says_of_its_fields_holds_for_what_derives_from_it() -> None:
    assert {*model_of(Restored).model_fields} == {*documented(Restored)[1]}


def test_a_result_with_everything_fits_its_model() -> None:
    picture = OutputItem("display_data", None, None, {"image/png": b"\x89PNG", "text/plain": "x"}, {}, None)
    attempt = AttemptSnapshot(1, "1 / 0", "error", "", "", ErrorInfo("E", "e", ["t"]))
    paths = [Path("a.png"), Path("b.png")]
    result = CodeExecutionResult(
        "x", paths, "died", outputs=[picture], attempts=[attempt], recovery="restarted", spilled=paths, exit_status=3
    )
    data = json.loads(json_bytes(result.to_dict()))
    assert ExecutionResultModel.model_validate(data).model_dump() == data
    assert {*data} == {*ExecutionResultModel.model_fields}


def test_a_session_has_the_fields_of_kernelbox_too() -> None:
    record = SessionRecord("id", "name", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", tags={"a": "b"})
    data = with_age(record.to_dict())
    assert {*data} == {*KernelModel.model_fields}
    assert (data["session_name"], data["age_seconds"] > 0) == ("name", True)
