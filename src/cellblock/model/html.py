"""A result as HTML for notebooks: the output as escaped text, and its images."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

from cellblock.model.blocks import PICTURES

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult, OutputItem

_MAX_TEXT = 100_000
_MAX_PICTURES = 20


def page(result: CodeExecutionResult) -> str:
    """Return the result as HTML, for `CodeExecutionResult._repr_html_`."""
    parts, room, pictures = [_pre(summary(result))], _MAX_TEXT, 0
    for item in result.outputs:
        if pictures < _MAX_PICTURES and (shown := _picture(item)) is not None:
            parts.append(shown)
            pictures += 1
        elif item.text and room > 0:
            parts.append(_pre(item.text[:room] + ("\n…" if len(item.text) > room else "")))
            room -= len(item.text)
    return f"<div>{''.join(parts)}</div>"


def summary(result: CodeExecutionResult) -> str:
    """Return the outcome of the code in one short line."""
    said = result.status if result.error is None else f"{result.status}: {result.error.ename}: {result.error.evalue[:100]!r}"
    return f"{said}, in {result.duration_ms} ms" + (f", {len(result.images)} images" if result.images else "")


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _picture(item: OutputItem) -> str | None:
    for mime in PICTURES:
        if isinstance(data := item.data.get(mime), bytes):
            return f'<img src="data:{mime};base64,{base64.b64encode(data).decode()}"/>'
    return None
