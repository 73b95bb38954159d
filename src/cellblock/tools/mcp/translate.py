"""Converts results of the MCP SDK to cellblock's plain types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellblock.tools.calling.content import ToolImage, ToolOutcome, ToolResource, ToolSpec, decode_base64

if TYPE_CHECKING:
    import mcp_types as types


def spec_of(tool: types.Tool) -> ToolSpec:
    hints = tool.annotations
    return ToolSpec(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        read_only=hints.read_only_hint if hints else None,
        destructive=hints.destructive_hint if hints else None,
        needs_task=tool.execution is not None and tool.execution.task_support == "required",
    )


def outcome_of(result: types.CallToolResult) -> ToolOutcome:
    """Convert a result of the SDK.

    Raises:
        ValueError: Binary data is not base64, or a number is not valid JSON.
    """
    check_finite(result.structured_content)
    texts: list[str] = []
    images: list[ToolImage] = []
    resources: list[ToolResource] = []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "image":
            images.append(ToolImage(decode_base64(block.data), block.mime_type))
        elif block.type == "audio":
            resources.append(ToolResource("", block.mime_type, data=decode_base64(block.data)))
        elif block.type == "resource_link":
            resources.append(ToolResource(str(block.uri), block.mime_type or "", block.name))
        else:
            resources.append(_embedded(block.resource))
    return ToolOutcome(bool(result.is_error), "\n".join(texts), result.structured_content, tuple(images), tuple(resources))


def outcome_of_resource(result: types.ReadResourceResult) -> ToolOutcome:
    """Convert a resource that was read to the outcome of a call: its texts, its pictures, and other binary content.

    Raises:
        ValueError: Binary data is not base64.
    """
    read = [*map(_embedded, result.contents)]
    texts = [resource.text for resource in read if resource.text is not None]
    pictures = [one for one in read if one.data is not None and one.mime_type.startswith("image/")]
    others = tuple(one for one in read if one.text is None and one not in pictures)
    images = tuple(ToolImage(one.data or b"", one.mime_type) for one in pictures)
    return ToolOutcome(is_error=False, text="\n".join(texts), images=images, resources=others)


def check_finite(value: object) -> None:
    """Refuse NaN and infinite numbers: they are not JSON, but the decoder accepts them, and turns 1e999 into infinity.

    Raises:
        ValueError: The value contains one.
    """
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest += item.values()
        elif isinstance(item, list):
            rest += item
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"a number that JSON does not have: {item}")


def _embedded(resource: types.TextResourceContents | types.BlobResourceContents) -> ToolResource:
    text, blob = getattr(resource, "text", None), getattr(resource, "blob", None)
    data = None if blob is None else decode_base64(blob)
    return ToolResource(str(resource.uri), resource.mime_type or "", text=text, data=data)
