"""The SDK's results in our words."""

from __future__ import annotations

import base64

import mcp_types as types
import pytest

from cellblock.tools.calling.content import ToolImage, ToolResource
from cellblock.tools.mcp.translate import outcome_of, spec_of


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_each_kind_of_content_has_its_place() -> None:
    result = types.CallToolResult(
        content=[
            types.TextContent(type="text", text="one"),
            types.ImageContent(type="image", data=b64(b"png"), mime_type="image/png"),
            types.AudioContent(type="audio", data=b64(b"wav"), mime_type="audio/wav"),
            types.ResourceLink(type="resource_link", uri="file:///a", name="a", mime_type="text/plain"),
            types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri="file:///b", text="words")),
            types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="file:///c", blob=b64(b"bytes"))),
            types.TextContent(type="text", text="two"),
        ],
        structured_content={"a": 1},
    )
    outcome = outcome_of(result)
    assert (outcome.is_error, outcome.text, outcome.structured) == (False, "one\ntwo", {"a": 1})
    assert outcome.images == (ToolImage(b"png", "image/png"),)
    assert outcome.resources == (
        ToolResource("", "audio/wav", data=b"wav"),
        ToolResource("file:///a", "text/plain", "a"),
        ToolResource("file:///b", "", text="words"),
        ToolResource("file:///c", "", data=b"bytes"),
    )


def test_bytes_that_are_not_base64_are_refused() -> None:
    image = types.ImageContent(type="image", data="no base64!", mime_type="image/png")
    with pytest.raises(ValueError):  # of the standard library
        outcome_of(types.CallToolResult(content=[image]))


def test_a_tool_says_what_it_says_and_nothing_by_default() -> None:
    bare = spec_of(types.Tool(name="t", input_schema={"type": "object"}))
    assert (bare.description, bare.output_schema, bare.read_only, bare.destructive, bare.needs_task) == (
        "",
        None,
        None,
        None,
        False,
    )
    hints = types.ToolAnnotations(read_only_hint=True, destructive_hint=False)
    said = spec_of(types.Tool(name="t", description="d", input_schema={"type": "object"}, annotations=hints))
    assert (said.description, said.read_only, said.destructive) == ("d", True, False)
