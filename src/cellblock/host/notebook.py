"""`Session.export`: a session's cells as a Jupyter notebook or a script."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.host.files.steps import in_thread
from cellblock.host.new_file import NewFile
from cellblock.model import CodeExecutionResult, HistoryEntry, OutputItem, holds_json
from cellblock.wire.values.forms import read_json

_METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}
_NOT_KEPT = "[cellblock] the output of this cell is no longer stored\n"


async def export(path: str | os.PathLike[str], cells: Iterable[HistoryEntry]) -> Path:
    """Write the cells of a session to a file, for `Session.export`."""
    write = {".ipynb": notebook, ".py": script}.get(Path(path).suffix.lower())
    if write is None:
        raise InvalidInputError(f"{path} must end with .ipynb, for a notebook, or .py, for a script")
    file, kept = NewFile(path), [*cells]

    def work() -> None:
        file.open()
        for text in write(kept):
            file.write(text.encode())
        file.finish()

    try:
        await in_thread(work)
    finally:
        await in_thread(file.close)
    return file.path


def script(cells: Iterable[HistoryEntry]) -> Iterator[str]:
    """Yield the cells that led to the current state as Python, in the percent format of editors and Jupytext.

    Magics become comments.
    """
    for cell in cells:
        if cell.abandoned:
            continue
        magic = cell.code.lstrip().startswith("%%")
        lines = [f"# {line}" if magic or line.lstrip().startswith(("%", "!")) else line for line in cell.code.splitlines()]
        yield "\n".join(["# %%", *lines, "", ""])


def notebook(cells: Iterable[HistoryEntry]) -> Iterator[str]:
    """Yield the cells as a notebook, format 4.5: one cell at a time, because writing JSON blocks other threads."""
    yield '{"nbformat": 4, "nbformat_minor": 5, "metadata": ' + json.dumps(_METADATA) + ', "cells": ['
    for number, cell in enumerate(cells):
        yield ("\n" if number == 0 else ",\n") + "{"
        yield f'"cell_type": "code", "id": "cell-{number}", "metadata": {json.dumps(_cell_metadata(cell))}, '
        yield f'"execution_count": {json.dumps(cell.execution_count)}, "source": {json.dumps(cell.code)}, "outputs": ['
        for place, output in enumerate(_outputs(cell)):
            yield ", " * (place > 0) + output
        yield "]}"
    yield "\n]}\n"


def _cell_metadata(cell: HistoryEntry) -> dict[str, Any]:
    """Return metadata for a cell that failed, was stopped, or was undone."""
    told: dict[str, Any] = {} if cell.status == "success" else {"status": cell.status}
    told |= {"abandoned": True} if cell.abandoned else {}
    if cell.result is not None:
        told |= {"recovery": cell.result.recovery} if cell.result.recovery else {}
        told |= {"truncated": True} if cell.result.truncated else {}
    return {"cellblock": told} if told else {}


def _outputs(cell: HistoryEntry) -> Iterator[str]:
    if cell.result is None:
        yield json.dumps({"output_type": "stream", "name": "stderr", "text": _NOT_KEPT})
        return
    for item in cell.result.outputs:
        if item.kind == "stream":
            yield json.dumps({"output_type": "stream", "name": item.name or "stdout", "text": item.text or ""})
        elif item.kind == "error":
            yield json.dumps({"output_type": "error", **_error(cell.result, item.text or "")})
        else:
            yield _display(item, cell.execution_count)


def _error(result: CodeExecutionResult, shown: str) -> dict[str, Any]:
    """Return an exception in the notebook format. An exception that did not end the cell has only a text."""
    error = result.error
    if error is not None and shown in ("\n".join(error.traceback), f"{error.ename}: {error.evalue}"):
        return {"ename": error.ename, "evalue": error.evalue, "traceback": error.traceback or [shown]}
    ename, _, evalue = shown.rstrip().rpartition("\n")[2].partition(": ")
    return {"ename": ename or "Exception", "evalue": evalue, "traceback": shown.split("\n")}


def _display(item: OutputItem, count: int | None) -> str:
    kind = "execute_result" if item.kind == "execute_result" else "display_data"  # notebooks have no updates
    values = ", ".join(f"{json.dumps(mime)}: {_value(mime, value)}" for mime, value in item.data.items())
    number = f'"execution_count": {json.dumps(count)}, ' if kind == "execute_result" else ""
    return f'{{"output_type": "{kind}", {number}"metadata": {json.dumps(dict(item.metadata))}, "data": {{{values}}}}}'


def _value(mime: str, value: str | bytes) -> str:
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if holds_json(mime, value) and _is_json(value):
        return value  # unchanged: a parsed value can take twenty times its size in memory
    return json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        read_json(text.encode())
    except (ValueError, RecursionError):
        return False
    return not any(word in text for word in ("NaN", "Infinity"))  # Python reads these, other readers do not
