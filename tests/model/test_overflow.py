"""Text that is too long for a model, in a file of the workspace."""

from __future__ import annotations

from pathlib import Path

from cellblock import CodeExecutionResult
from cellblock.model.overflow import for_model


def test_what_fits_needs_no_file() -> None:
    assert for_model(CodeExecutionResult(text="short"), "id", 1000) == ("short", None)


def test_what_does_not_fit_is_in_the_file_that_the_text_names_once() -> None:
    whole = "line é\n" * 1000
    text, overflow = for_model(CodeExecutionResult(text=whole, execution_count=7), "0123456789abcdef", 1000)
    assert overflow is not None
    assert overflow.path == "outputs/cell-7-d7d499c3.txt"
    assert overflow.data == whole.encode()
    assert text.count(overflow.path) == 1
    assert overflow.path not in overflow.without
    assert len(overflow.without) <= 1000
    assert "characters left out: read outputs/cell-7-d7d499c3.txt …" in text
    assert len(text) <= 1000


def test_what_the_session_itself_has_left_out_is_not_said_to_be_in_the_file() -> None:
    whole = "line\n" * 1000 + "\n… 99,146 bytes of output left out …\n" + "line\n" * 1000
    text, overflow = for_model(CodeExecutionResult(text=whole, execution_count=7, truncated=True), "0123456789abcdef", 1000)
    assert overflow is not None
    assert "characters left out: read outputs/cell-7-d7d499c3.txt; another 99,146 bytes were not kept …" in text
    assert "characters left out: print less; another 99,146 bytes were not kept …" in overflow.without
    assert len(text) <= 1000


def test_a_file_of_the_session_with_all_output_is_named_too() -> None:
    whole = "line\n" * 1000 + "\n… 99,146 bytes of output left out …\n" + "line\n" * 1000
    result = CodeExecutionResult(text=whole, execution_count=7, truncated=True, spilled=[Path("/spilled/stdout.txt")])
    text, _ = for_model(result, "0123456789abcdef", 1000)
    assert "were not kept" not in text
    assert text.endswith("Full output: /spilled/stdout.txt")
