"""The last results of a session."""

from __future__ import annotations

from cellblock.host.kernels.cell_result import KeptResults
from cellblock.model import CodeExecutionResult, OutputItem


def test_old_results_make_room_for_new_ones() -> None:
    kept = KeptResults(10_000)
    first = kept.keep(CodeExecutionResult(text="x" * 4000))
    second = kept.keep(CodeExecutionResult(outputs=[OutputItem("display_data", data={"a": b"x" * 2000})]))
    assert (first.result is None, second.result is None) == (False, False)
    third = kept.keep(CodeExecutionResult(text="x" * 1000))
    assert (first.result is None, second.result is None, third.result is None) == (True, False, False)
    assert kept.keep(CodeExecutionResult(text="x" * 20_000)).result is None
    assert third.result is None
    assert kept.keep(CodeExecutionResult()).result is not None


def test_nothing_is_kept_without_room() -> None:
    assert KeptResults(0).keep(CodeExecutionResult()).result is None
