"""Text that is too long for a model, in a file of the session's workspace, which the text for the model names."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult

_FOLDER = "outputs"
_LONGEST = 8 * 1024 * 1024
"""Characters that are written; what a session keeps of a cell is rarely as long."""


class Overflow(NamedTuple):
    """A file to write before the model reads the text, which names it.

    Attributes:
        path: The file, from the top of the workspace.
        data: Its content.
        without: The text for the model if it cannot be written: the disk may be full, or the code has a folder of that name.
    """

    path: str
    data: bytes
    without: str


def for_model(result: CodeExecutionResult, execution: str, max_chars: int) -> tuple[str, Overflow | None]:
    """Return the text for a model that can read files of the session, and what must be written for it; None if nothing.

    Args:
        result: The result.
        execution: The execution's id, which tells cells of the same number apart: numbers begin again with each kernel.
        max_chars: How long the text may be.
    """
    whole = result.text or ""
    if len(whole) <= max_chars:
        return result.for_model(max_chars), None
    # Not a part of the id: its end is that of its session, and its beginning the time.
    mark = hashlib.blake2s(execution.encode(), digest_size=4).hexdigest()
    path = f"{_FOLDER}/cell-{result.execution_count or 0}-{mark}.txt"
    data = whole[:_LONGEST].encode("utf-8", "replace")
    return replace(result, spilled=[Path(path)]).for_model(max_chars), Overflow(path, data, result.for_model(max_chars))
