"""What a model is shown of a result."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from cellblock.errors import CellblockError
from cellblock.terminal import printable

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult
    from cellblock.model.checkpoints import Undone
    from cellblock.named.session import NamedSession

_LISTED = 20
"""Cells, files and calls that are named when cells are undone."""

_LINE = 200
_IMAGES = 5
_IMAGE_BYTES = 1024 * 1024
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


def text(shown: str, *, error: bool = False, **structured: Any) -> CallToolResult:
    """Return an answer that is nothing but a text.

    Args:
        shown: The text.
        error: Whether the call has failed.
        structured: The same as data, for clients that show it.
    """
    told = {name: value for name, value in structured.items() if value not in ("", None)}
    return CallToolResult(content=[TextContent(type="text", text=shown)], structured_content=told or None, is_error=error)


def with_handle(shown: str, handle: str) -> str:
    """Return a text that tells a client the handle of its session, if it has to know it."""
    return f"[session {handle}]\n{shown}" if handle else shown


def undone(what: Undone, handle: str) -> CallToolResult:
    """Return the answer about cells that were undone: which ones, which files came back, and what stays done.

    Args:
        what: What was undone.
        handle: The session's handle, if the client has to know it.
    """
    # Cells, paths and calls come from the session: each is shown in one line, and not all of them.
    cells = [f"[{cell.execution_count or ' '}] {(cell.code.strip().splitlines() or [''])[0]}" for cell in what.cells]
    lines = [f"The session is as it was after cell {what.execution_count}. Undone:", *_some(cells)]
    files, outside = _some(what.files), _some(what.outside)
    if files:
        lines += ["Files that were brought back or removed:", *files]
    if what.files_left:
        lines.append(f"Files stay as they are: {_line(what.files_left)}.")
    if outside:
        lines += ["Allowed meanwhile, and not undone:", *outside]
    return text(
        with_handle("\n".join(lines), handle),
        status="undone",
        execution_count=what.execution_count,
        cells=len(what.cells),
        files=files,
        files_left=what.files_left,
        outside=outside,
        session=handle,
    )


def _some(items: Sequence[str]) -> list[str]:
    """Return the first of many items, each cut to a short line, and how many are left out."""
    shown = [_line(item) for item in items[:_LISTED]]
    return shown if len(items) <= _LISTED else [*shown, f"and {len(items) - _LISTED} more"]


def _line(shown: str) -> str:
    return printable(shown[:_LINE], lines=False)[:_LINE]


async def cell(named: NamedSession, execution: str, result: CodeExecutionResult, most: int, handle: str) -> CallToolResult:
    """Return the answer for a cell: its text, its pictures, and what has changed.

    Args:
        named: The session.
        execution: The execution's id.
        result: The result.
        most: Characters of the text. What is longer lies in a file of the workspace, which the text names.
        handle: The session's handle, if the client has to know it.
    """
    whole = result.text or ""
    if len(whole) > most:
        path = f"outputs/cell-{result.execution_count or 0}-{execution[-8:]}.txt"  # numbers begin again with each kernel
        await named.session.files.write(path, whole)
        result = replace(result, spilled=[Path(path)])
    # Pictures come with the answer: their paths on this machine would mean nothing inside the session.
    shown = replace(result, images=[]).for_model(max(most, 200))
    content: list[ContentBlock] = [TextContent(type="text", text=with_handle(shown, handle))]
    pictures, left_out = _pictures(result)
    content += pictures
    if left_out:
        content.append(TextContent(type="text", text=f"[{left_out} more pictures are not shown here, but kept as files]"))
    changed, deleted = await _changes(named) if not result.state_lost else ({}, [])
    structured: dict[str, Any] = {"status": result.status, "execution_count": result.execution_count}
    structured |= {"changed": changed} if changed else {}
    structured |= {"deleted": deleted} if deleted else {}
    structured |= {"state_lost": True} if result.state_lost else {}
    structured |= {"session": handle} if handle else {}
    return CallToolResult(content=content, structured_content=structured, is_error=not result.ok)


def _pictures(result: CodeExecutionResult) -> tuple[list[ImageContent], int]:
    """Return the pictures of a result that a model can be shown, and how many others there are."""
    found: list[ImageContent] = []
    left_out = 0
    for item in result.outputs:
        mime = next((kind for kind in _SHOWN if isinstance(item.data.get(kind), bytes)), None)
        if mime is None:
            continue
        data = item.data[mime]
        assert isinstance(data, bytes)
        if len(found) < _IMAGES and len(data) <= _IMAGE_BYTES:
            found.append(ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=mime))
        else:
            left_out += 1
    return found, left_out


async def _changes(named: NamedSession) -> tuple[dict[str, str], list[str]]:
    """Return which variables the last cells have changed, with the names of their types, and which are gone."""
    try:
        return await named.session.changes()
    except CellblockError:
        return {}, []  # its kernel has ended since
