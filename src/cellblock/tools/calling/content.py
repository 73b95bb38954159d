"""Descriptions and results of tools, as plain frozen data that can be sent as JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellblock.errors import InvalidInputError

MAX_MESSAGE = 16 * 1024 * 1024
"""Maximum bytes of one message of a server, and so of a whole `ToolOutcome`."""


CallTool = Callable[..., Awaitable["ToolOutcome"]]
"""Calls a tool by its name with arguments, and returns its outcome."""

OnProgress = Callable[[float, "float | None", "str | None"], None]
"""Called with the progress, the total and a message."""

OnLog = Callable[[str, str], None]
"""Called with a level and a text."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A server's description of a tool. Names, texts and schemas are untrusted.

    Attributes:
        name: The tool's name.
        description: The description; may be empty.
        input_schema: JSON Schema of the arguments.
        output_schema: JSON Schema of the structured result, if there is one.
        read_only: Whether the tool claims to change nothing; None if unknown.
        destructive: Whether the tool claims that it may destroy something; None if unknown.
        needs_task: Whether the tool can only be called as a task, which is not supported: no module is generated for it.
        invalid: Why the description is invalid, so that no module can be generated; empty if it is valid.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    needs_task: bool = False
    invalid: str = ""

    @property
    def why_not(self) -> str:
        """Why code cannot call the tool; empty if it can."""
        return self.invalid or ("it requires a call as a task, which is not supported" if self.needs_task else "")


@dataclass(frozen=True, slots=True)
class ToolImage:
    """An image that a tool returned.

    Attributes:
        data: The bytes.
        mime_type: The type given by the server, such as ``image/png``.
    """

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class ToolResource:
    """Other content that a tool returned: a resource, a link to one (neither text nor data), or a sound (no URI).

    Attributes:
        uri: The resource's URI.
        mime_type: The type given by the server; may be empty.
        name: The name; may be empty.
        text: Text content, if any.
        data: Binary content, if any.
    """

    uri: str
    mime_type: str = ""
    name: str = ""
    text: str | None = None
    data: bytes | None = None

    def __str__(self) -> str:
        name = self.uri or self.name or "sound"
        kind = f" ({self.mime_type})" if self.mime_type else ""
        if self.text is not None:
            return f"[resource {name}{kind}]\n{self.text}"
        if self.data is not None:
            return f"[resource {name}{kind}: {len(self.data):,} bytes, in .resources]"
        return f"[link to a resource {name}{kind}{f': {self.name}' if self.name and self.name != name else ''}]"


READ_RESOURCE = "resources/read"
"""The name of a call that reads a resource, whose URI is its argument ``uri``. It is decided about like a call of a tool."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call.

    Attributes:
        is_error: Whether the tool reports a failure; ``text`` then has the reason.
        text: The text blocks, one below the other.
        structured: The structured result, which fits the tool's output schema, or None.
        images: The images.
        resources: All other content.
        encoded: A large result as JSON, in place of ``text`` and ``structured``, forwarded without decoding.
    """

    is_error: bool
    text: str
    structured: Any | None = None
    images: tuple[ToolImage, ...] = ()
    resources: tuple[ToolResource, ...] = ()
    encoded: bytes | bytearray | None = None

    def beginning(self, most: int) -> str:
        """Return the start of the result as text, for people."""
        if self.encoded is not None:
            return bytes(self.encoded[:most]).decode("utf-8", "replace")
        text = self.text or ("" if self.structured is None else json.dumps(self.structured)[:most])
        return text[:most]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, except ``encoded``; bytes become base64."""
        return {
            "is_error": self.is_error,
            "text": self.text,
            "structured": self.structured,
            "images": [{"data": _encode(image.data), "mime_type": image.mime_type} for image in self.images],
            "resources": [
                {
                    "uri": resource.uri,
                    "mime_type": resource.mime_type,
                    "name": resource.name,
                    "text": resource.text,
                    "data": None if resource.data is None else _encode(resource.data),
                }
                for resource in self.resources
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolOutcome:
        """Convert from the data of `to_dict`.

        Raises:
            InvalidInputError: The data has another form.
        """
        try:
            return cls(
                is_error=_typed(data["is_error"], bool),
                text=_typed(data["text"], str),
                structured=data["structured"],
                images=tuple(_image(item) for item in _typed(data["images"], list)),
                resources=tuple(_resource(item) for item in _typed(data["resources"], list)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is not the result of a tool: {error!r}") from error


def _image(item: Mapping[str, Any]) -> ToolImage:
    return ToolImage(decode_base64(item["data"]), _typed(item["mime_type"], str))


def _resource(item: Mapping[str, Any]) -> ToolResource:
    return ToolResource(
        uri=_typed(item["uri"], str),
        mime_type=_typed(item["mime_type"], str),
        name=_typed(item["name"], str),
        text=None if item["text"] is None else _typed(item["text"], str),
        data=None if item["data"] is None else decode_base64(item["data"]),
    )


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_base64(data: str) -> bytes:
    """Decode base64.

    Raises:
        ValueError: The text is not base64.
    """
    try:
        return base64.b64decode(_typed(data, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid base64: {error}") from error
