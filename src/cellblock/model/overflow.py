"""Text that is too long for a model, in a workspace file that the model's text names."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from cellblock.model.report import report

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult

_FOLDER = "outputs"
_LONGEST = 8 * 1024 * 1024
"""Characters that are written; what a session keeps of a cell is rarely as long."""


class Overflow(NamedTuple):
    """A file to write before the model reads the text that names it.

    Attributes:
        path: The path relative to the workspace.
        data: The content.
        without: The model's text if the write fails: the disk may be full, or a folder may have that name.
    """

    path: str
    data: bytes
    without: str


def for_model(result: CodeExecutionResult, execution: str, max_chars: int) -> tuple[str, Overflow | None]:
    """Return the text for a model that can read the session's files, and a file to write for it, if any.

    Args:
        result: The result.
        execution: The execution's id, which distinguishes cells of the same number: numbers restart with each kernel.
        max_chars: Maximum length of the text.
    """
    whole = result.text or ""
    if len(whole) <= max_chars:
        return result.for_model(max_chars), None
    # Not a part of the id: its end is its session's, and its beginning the time.
    mark = hashlib.blake2s(execution.encode(), digest_size=4).hexdigest()
    path = f"{_FOLDER}/cell-{result.execution_count or 0}-{mark}.txt"
    data = whole[:_LONGEST].encode("utf-8", "replace")
    return report(result, max_chars, path), Overflow(path, data, result.for_model(max_chars))
