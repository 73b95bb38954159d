"""A result as the content of a message to a language model: text and images."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cellblock.errors import InvalidInputError

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult, OutputItem

MOST_PICTURES = 5
LARGEST_PICTURE = 3 * 1024 * 1024
"""Bytes of a picture that is sent: in base64 it is a third larger, and providers take 5 MB."""

PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""MIME types of pictures that models can see, in order of preference, and their extensions. SVG can hold scripts."""

_BEGINNINGS = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}


def pictures(outputs: Iterable[OutputItem]) -> Iterator[tuple[str, bytes]]:
    """Yield the images among some outputs with their types, at most one per output, if their first bytes match the type."""
    for item in outputs:
        for mime in PICTURES:
            if isinstance(data := item.data.get(mime), bytes) and data.startswith(_BEGINNINGS[mime]):
                yield mime, data
                break


def text_and_pictures(result: CodeExecutionResult, max_chars: int) -> tuple[str, list[tuple[str, str]]]:
    """Return the text for a model, and the images with their types, in base64. The text says how many were omitted."""
    found = [*pictures(result.outputs)]
    sent = [(mime, data) for mime, data in found if len(data) <= LARGEST_PICTURE][:MOST_PICTURES]
    text = replace(result, images=[]).for_model(max_chars)
    if left_out := len(found) - len(sent):
        text += f"\n[{left_out} more picture{'s' * (left_out > 1)}, too large or too many to be shown]"
    return text, [(mime, base64.b64encode(data).decode("ascii")) for mime, data in sent]


def for_anthropic(result: CodeExecutionResult, max_chars: int) -> list[dict[str, Any]]:
    """Implement `CodeExecutionResult.to_anthropic`."""
    text, shown = text_and_pictures(result, max_chars)
    images = [{"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}} for mime, data in shown]
    return [{"type": "text", "text": text}, *images]


def for_openai(result: CodeExecutionResult, max_chars: int, api: Literal["responses", "chat"]) -> list[dict[str, Any]]:
    """Implement `CodeExecutionResult.to_openai`."""
    text, shown = text_and_pictures(result, max_chars)
    urls = [f"data:{mime};base64,{data}" for mime, data in shown]
    if api == "responses":
        return [{"type": "input_text", "text": text}, *({"type": "input_image", "image_url": url} for url in urls)]
    if api == "chat":
        return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    raise InvalidInputError(f"api must be 'responses' or 'chat', not {api!r}")
