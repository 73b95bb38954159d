"""Events of executions as E2B's clients read them."""

from __future__ import annotations

from typing import Any

from cellblock.fronts.e2b.results import messages, result
from cellblock.model import CodeExecutionResult, ErrorInfo, OutputItem
from cellblock.model.untrusted import MAX_VALUES


def told(kind: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a client is told of an event, without the times."""
    return [
        {name: value for name, value in one.items() if name != "timestamp"} for one in messages({"kind": kind, "data": data})
    ]


def shown(**data: str | bytes) -> dict[str, Any]:
    """Return the result for a value with these MIME types; ``_`` stands for ``/``."""
    made = result(OutputItem("execute_result", data={mime.replace("_", "/", 1): value for mime, value in data.items()}))
    assert made.pop("type") == "result"
    assert made.pop("is_main_result") is True
    return made


def test_quotes_of_texts_are_taken_off() -> None:
    for text, wanted in (("'a'", "a"), ('"it\'s"', "it's"), ("'", "'"), ("''", ""), ("'a\"", "'a\""), ("1", "1"), ("", "")):
        assert shown(text_plain=text) == {"text": wanted}


def test_each_type_has_its_field_and_others_are_extra() -> None:
    assert shown(text_html="<b>", image_png=b"\x89", application_json='{"a": NaN}') == {
        "html": "<b>",
        "png": b"\x89",
        "json": {"a": None},
    }
    assert shown(e2b_chart='{"type": "line"}', e2b_data='{"a": [1]}') == {"chart": {"type": "line"}, "data": {"a": [1]}}
    assert shown(x_y='{"a": [1]}', x_z="plain", application_json="{") == {
        "extra": {"x/y": {"a": [1]}, "x/z": "plain"},
        "json": "{",
    }


def test_data_with_more_values_than_can_be_parsed_at_once_is_left_out() -> None:
    large = "[" + "1," * MAX_VALUES + "1,1]"
    item = OutputItem("display_data", text="frame", data={"text/plain": "frame", "e2b/data": large})
    assert told("display", item.to_dict(raw=True)) == [
        {"type": "result", "is_main_result": False, "text": "frame"},
        {"type": "stderr", "text": "[cellblock] e2b/data is left out: it has more than 40,000 values\n"},
    ]


def test_an_end_is_told_if_it_was_not_a_success() -> None:
    failed = CodeExecutionResult(status="error", error=ErrorInfo("ValueError", "x", ["a", "b"]))
    error = {"type": "error", "name": "ValueError", "value": "x", "traceback": "a\nb"}
    assert told("result", failed.to_dict(raw=True)) == [error]
    assert told("result", CodeExecutionResult().to_dict(raw=True)) == []
    stopped = told("result", CodeExecutionResult(status="interrupted").to_dict(raw=True))
    assert [one["name"] for one in stopped] == ["ExecutionInterrupted"]
    lost = told("failed", {"error": "DaemonError", "message": "gone", "ran": "unknown"})
    assert lost == [{"type": "error", "name": "DaemonError", "value": "gone", "traceback": ""}]


def test_what_has_no_place_in_the_protocol_is_left_out() -> None:
    assert told("display", OutputItem("error", text="shown").to_dict(raw=True)) == []
    assert told("clear", {"wait": True}) == []
    assert "12 outputs" in told("gap", {"dropped": 12})[0]["text"]
