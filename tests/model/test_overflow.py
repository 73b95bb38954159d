"""Text that is too long for a model, in a file of the workspace."""

from __future__ import annotations

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
