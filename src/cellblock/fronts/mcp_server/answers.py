"""Answers of the MCP server: texts and pictures for a model, and facts for programs.

No answer has structured content, because many clients then show a model nothing else, and printed output would be lost
(docs/mcp-server.md, "What clients show"). The text therefore contains everything that a model must know. Facts for programs
are in `_meta`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_types import CallToolResult, ImageContent, TextContent

from cellblock.common.terminal import printable
from cellblock.errors import CellblockError
from cellblock.model.blocks import pictures
from cellblock.model.overflow import for_model as overflow_of
from cellblock.operations.files import WriteFile
from cellblock.operations.saving import ChangedVariables

if TYPE_CHECKING:
    from cellblock.fronts.mcp_server.clients import Clients
    from cellblock.model import CodeExecutionResult
    from cellblock.model.checkpoints import Undone
    from cellblock.model.sessions import SessionRecord

META = "cellblock/result"
"""The key of the facts for programs in an answer's `_meta`."""

_LISTED = 20
"""Most cells, files and calls that an answer about undone cells names."""

_LINE = 200
_ERROR = 500
_LONGEST = 500_000
_IMAGES = 5
_IMAGE_BYTES = 600_000
"""Bytes of all pictures of an answer. Some clients refuse more than 1 MiB, and base64 takes a third more."""


def text(
    shown: str, handle: str = "", pictures: Sequence[ImageContent] = (), *, error: bool = False, **facts: object
) -> CallToolResult:
    """Return an answer with a text.

    Args:
        shown: The text. It stays one block: some clients join blocks without a space.
        handle: The handle of the client's session, if the client needs it.
        pictures: Pictures.
        error: Whether the call has failed.
        facts: Facts for programs. A model does not see them.
    """
    told = {name: value for name, value in {**facts, "session": handle}.items() if value not in ("", None, [], {})}
    block = TextContent(type="text", text=f"[session {handle}]\n{shown}" if handle else shown)
    return CallToolResult(content=[block, *pictures], is_error=error, _meta={META: told} if told else None)


def with_notes(answer: CallToolResult, notes: Sequence[str]) -> CallToolResult:
    """Append lines to the text of an answer."""
    first = answer.content[0]
    assert isinstance(first, TextContent)
    first.text = "\n".join([first.text, *notes])
    return answer


def undone(what: Undone, handle: str, verb: str = "Undone") -> CallToolResult:
    """Return the answer about undone cells: the cells, the restored files, and the calls that stay done.

    Args:
        what: The result of the undo.
        handle: The session's handle, if the client needs it.
        verb: What was done to the cells.
    """
    # Cells, paths and calls come from the session: each is shown in one line, and their number is limited.
    cells = [f"[{cell.execution_count or ' '}] {(cell.code.strip().splitlines() or [''])[0]}" for cell in what.cells]
    lines = [f"The session has its state after cell {what.execution_count}. {verb}:", *_some(cells)]
    files = _some([f"{file.action}: {file.path}" for file in what.files])
    outside = _some(what.outside)
    if files:
        lines += ["Files:", *files]
    if what.trash:
        lines.append(f"What was replaced or removed is in the trash for seven days: cellblock trash list {handle}".rstrip())
    if what.redoable:
        lines.append("redo reverses this until the next cell begins.")
    if what.files_left:
        lines.append(f"Not all files were restored: {_line(what.files_left)}.")
    if outside:
        lines += ["Allowed meanwhile, and not undone:", *outside]
    return text(
        "\n".join(lines),
        handle,
        status=verb.lower(),
        execution_count=what.execution_count,
        cells=len(what.cells),
        files=files,
        files_left=what.files_left,
        trash=what.trash,
        outside=outside,
    )


def _some(items: Sequence[str]) -> list[str]:
    """Return the first of many items, each cut to a short line, and the number of omitted items."""
    shown = [_line(item) for item in items[:_LISTED]]
    return shown if len(items) <= _LISTED else [*shown, f"and {len(items) - _LISTED} more"]


def _line(shown: str) -> str:
    return printable(shown[:_LINE], lines=False)[:_LINE]


def running(number: str, said: str, most: int, handle: str) -> CallToolResult:
    """Return the answer about a running cell.

    Args:
        number: The cell's id.
        said: The end of its output so far.
        most: Characters of the output to show.
        handle: The session's handle, if the client needs it.
    """
    shown = f"The code is still running. Call this tool again with cell={number!r} to wait for it.\n{said[-most:]}"
    return text(shown.rstrip("\n"), handle, status="running", cell=number)


async def cell(
    clients: Clients,
    session: SessionRecord,
    execution: str,
    result: CodeExecutionResult,
    most: int,
    handle: str,
    *,
    as_files: bool = False,
) -> CallToolResult:
    """Return the answer for a cell: its text, its pictures, and for programs the changed variables.

    Args:
        clients: The sessions.
        session: The session.
        execution: The execution's id.
        result: The result.
        most: Characters of the output. Longer output is in a file of the workspace, which the text names.
        handle: The session's handle, if the client needs it.
        as_files: Whether to name the files of pictures only.
    """
    # An error is shown in any case, even if little output is requested.
    room = most if result.ok else max(most, _ERROR)
    # Pictures are part of the answer: paths on this machine would mean nothing inside the session.
    plain = replace(result, images=[])
    shown, overflow = overflow_of(plain, execution, room)
    kept = "" if overflow is None else overflow.path
    if overflow is not None:
        try:
            await clients.ask(WriteFile(session.kernel_id, kept), overflow.data)
        except CellblockError:
            shown, kept = overflow.without, ""
    if result.ok:
        shown = _output(plain, most, kept)
    pictures, left_out = _pictures(result)
    if as_files or not result.ok:  # errors are texts only: model APIs refuse pictures in them
        pictures, left_out = [], len(pictures) + left_out
    lines = [shown, *([_not_shown(result, left_out)] if left_out else [])]
    changed, deleted = await _changes(clients, session) if not result.state_lost else ({}, [])
    return text(
        "\n".join(lines),
        handle,
        pictures,
        error=not result.ok,
        status=result.status,
        execution_count=result.execution_count,
        changed=changed,
        deleted=deleted,
        state_lost=result.state_lost or None,
    )


def _output(result: CodeExecutionResult, most: int, kept: str) -> str:
    """Return the output of successful code, cut as in ipybox. A note about lost variables is not cut.

    Args:
        result: The result.
        most: Characters of the output.
        kept: A file with the complete output, if there is one.
    """
    output = replace(result, recovery=None, spilled=[]).for_model(_LONGEST)
    if result.text and len(output) > most:
        # The middle of very long output was already dropped.
        output = cut(output, most, f"{'Its beginning and end' if result.truncated else 'All of it'}: {kept}" if kept else "")
    if not result.state_lost:
        return output
    news = replace(result, text="", spilled=[]).for_model()
    return f"{news}\n\n{output}" if result.text else news


def cut(output: str, most: int, where: str) -> str:
    """Return the start of an output, and its last lines if they are short, with a note in between."""
    room = most // 4
    _, newline, last = output[-room - 1 :].partition("\n") if room else ("", "", "")
    note = f"\n\n[Output truncated: exceeded {most} character limit]" + (f" {where}" if where else "")
    return output[: most - len(last)] + note + (f"\n\n{last}" if newline and last else "")


def _not_shown(result: CodeExecutionResult, number: int) -> str:
    """Return a note on pictures that are not in the answer, but may be in the session's `images/`."""
    pictures = "1 picture is" if number == 1 else f"{number} pictures are"
    if not result.images:
        return f"[{pictures} not shown here]"
    some = result.images[:_IMAGES] if number == len(result.images) else []
    where = ", ".join(f"images/{path.name}" for path in some) or "images/"
    return f"[{pictures} not shown here, but kept in {where}]"


def _pictures(result: CodeExecutionResult) -> tuple[list[ImageContent], int]:
    """Return the pictures of a result that fit into an answer, and the number of the others."""
    found: list[ImageContent] = []
    left_out = taken = 0
    for mime, data in pictures(result.outputs):
        if len(found) < _IMAGES and taken + len(data) <= _IMAGE_BYTES:
            taken += len(data)
            found.append(ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=mime))
        else:
            left_out += 1
    return found, left_out


async def _changes(clients: Clients, session: SessionRecord) -> tuple[dict[str, str], list[str]]:
    """Return the variables that the last cells changed, with their types, and the deleted ones."""
    try:
        found = await clients.ask(ChangedVariables(session.kernel_id))
    except CellblockError:
        return {}, []  # the kernel has ended since
    return found["changed"], found["deleted"]
