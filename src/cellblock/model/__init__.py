"""Results of cells: outputs, errors, chunks. Immutable data; standard library only."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cellblock.model.plain import Plain

Status = Literal["success", "error", "timeout", "interrupted", "died", "max_attempts_exceeded"]
"""How an execution ended; ``died`` means that the kernel's process ended under it."""

Recovery = Literal["interrupted", "interrupted_twice", "killed_children", "restored", "restored_earlier", "restarted"]
"""The step that stopped the code, or what became of the session when its kernel died: it continues from its state before the
cell (``restored``), from an earlier one (``restored_earlier``), or with a fresh kernel (``restarted``)."""

STATE_LOST = "Variables and imports are lost; the session continues with a fresh kernel."
"""The end of an error message if a kernel died and its session's state was lost with it."""

MODEL_CHARS = 5_000
"""Characters that a language model is shown of a result, in every front, unless it or its program asks for more."""

StreamName = Literal["stdout", "stderr"]
OutputKind = Literal["stream", "display_data", "update_display_data", "execute_result", "error"]

_TEXT_TYPES = ("text/", "application/javascript", "application/x-latex", "image/svg+xml")


def is_text(mime: str) -> bool:
    """Return whether values of a MIME type are text in a bundle. All others are bytes."""
    return mime.startswith(_TEXT_TYPES) or mime.endswith(("json", "xml"))


def holds_json(mime: str, value: str) -> bool:
    """Return whether a value may be JSON: by its type, or as an object or list under a custom type."""
    return mime.endswith("json") or (not is_text(mime) and value[:1] in ("{", "["))


@dataclass(frozen=True, slots=True)
class ErrorInfo(Plain):
    """An exception that ended a cell, or the cause of its kernel's death.

    Attributes:
        ename: Name of the exception's class, or ``KernelDied``.
        evalue: The message.
        traceback: IPython's traceback in parts, without ANSI codes.
    """

    ename: str
    evalue: str
    traceback: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputItem:
    """One output of a cell.

    Attributes:
        kind: ``stream``, ``display_data``, ``execute_result`` or ``error``, as in Jupyter. ``update_display_data`` replaces an
            earlier cell's output with the same `display_id`.
        text: Plain text, or None.
        name: ``stdout`` or ``stderr`` for streams.
        data: MIME bundle. Text and JSON types hold `str`, all others (images, PDF) hold `bytes`. JSON under a custom type,
            such as ``x/y``, is also `str`.
        metadata: Metadata by MIME type, such as an image's width.
        display_id: The id for `update_display`.
    """

    kind: OutputKind
    text: str | None = None
    name: StreamName | None = None
    data: Mapping[str, str | bytes] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None

    def json(self, mime: str = "application/json") -> Any:
        """Parse one JSON value of the bundle.

        The value stays text until it is needed, because a parsed value can take twenty times its size in memory.

        Args:
            mime: Its MIME type, such as ``application/vnd.plotly.v1+json``.

        Raises:
            KeyError: The bundle lacks the type.
            ValueError: The value is invalid JSON, for example because it was truncated.
        """
        return json.loads(self.data[mime])

    def to_dict(self, *, raw: bool = False) -> dict[str, Any]:
        """Return the output as JSON data, with bytes in base64, as in Jupyter's messages.

        Args:
            raw: Whether to leave bytes unencoded, for callers that transport them otherwise.
        """
        data = dict(self.data)
        if not raw:
            for mime, value in self.data.items():
                if isinstance(value, bytes):
                    data[mime] = base64.b64encode(value).decode("ascii")
        return {
            "kind": self.kind,
            "text": self.text,
            "name": self.name,
            "data": data,
            "metadata": dict(self.metadata),
            "display_id": self.display_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OutputItem:
        """Create an output from the data of `to_dict`."""
        bundle = {
            mime: value if is_text(mime) or isinstance(value, bytes) else _from_base64(value)
            for mime, value in data["data"].items()
        }
        return cls(data["kind"], data["text"], data["name"], bundle, data["metadata"], data["display_id"])


def _from_base64(text: str) -> str | bytes:
    """Decode base64. Return other text unchanged, which is JSON under a custom MIME type."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class AttemptSnapshot(Plain):
    """One attempt of an execution that was retried."""

    attempt: int
    code: str
    status: Status
    output: str = ""
    stderr: str = ""
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CodeExecutionResult:
    """The result of one execution, the same for every interface.

    Attributes:
        text: All visible output in order, without surrounding empty lines, or None.
        images: Paths of the files (PNG, JPEG, GIF, WebP) that were written for this cell's plots and images.
        status: How it ended.
        output: Text written to stdout.
        stderr: Text written to stderr.
        return_value: The last expression's value as plain text, or None.
        error: The exception, or the cause of the kernel's death; None on success.
        execution_count: IPython's counter, the number in ``Out[n]``.
        duration_ms: Wall-clock milliseconds from sending the cell to its end.
        outputs: All outputs in order, with every MIME type.
        truncated: Whether something was omitted from `text` or `outputs` because it was too large.
        attempts: Earlier attempts, if the execution was retried.
        recovery: How the code was stopped, if it was, and whether the kernel was lost.
        spilled: Files with output above the limits, if a spill directory was given.
        exit_status: The exit status of the kernel's process, or minus the number of a signal, if the code ended the process.
        not_undoable: Why the code cannot be undone exactly, in a session with exact undo; empty if it can.
    """

    text: str | None = None
    images: list[Path] = field(default_factory=list)
    status: Status = "success"
    output: str = ""
    stderr: str = ""
    return_value: str | None = None
    error: ErrorInfo | None = None
    execution_count: int | None = None
    duration_ms: int = 0
    outputs: list[OutputItem] = field(default_factory=list)
    truncated: bool = False
    attempts: list[AttemptSnapshot] = field(default_factory=list)
    recovery: Recovery | None = None
    spilled: list[Path] = field(default_factory=list)
    exit_status: int | None = None
    not_undoable: str = ""

    @property
    def ok(self) -> bool:
        """Whether the code completed without an error."""
        return self.status == "success"

    @property
    def state_lost(self) -> bool:
        """Whether the session now has a fresh kernel, without the earlier variables and imports."""
        return self.recovery in ("restarted", "restored_earlier")

    def for_model(self, max_chars: int = MODEL_CHARS) -> str:
        """Return one text for a language model.

        If the code failed or was stopped, the first line says so. Then come the output, truncated in the middle if it is too
        long, a short traceback, and the names of images. The text has no escape sequences or other control characters.

        Args:
            max_chars: Maximum length, from 1 to 500,000 characters.

        Raises:
            InvalidInputError: `max_chars` is out of range.
        """
        from cellblock.model.report import report

        return report(self, max_chars)

    @property
    def png(self) -> bytes | None:
        """The last displayed image, such as a plot, as PNG, or None."""
        return next((data for item in reversed(self.outputs) if isinstance(data := item.data.get("image/png"), bytes)), None)

    @property
    def html(self) -> str | None:
        """The last value or display with HTML, such as a data frame, or None. It is not sanitised."""
        return next((data for item in reversed(self.outputs) if isinstance(data := item.data.get("text/html"), str)), None)

    def to_anthropic(self, max_chars: int = MODEL_CHARS) -> list[dict[str, Any]]:
        """Return the content of a ``tool_result`` block of Anthropic's Messages API: a text, and up to five images.

        Args:
            max_chars: Maximum length of the text, as for `for_model`.

        Returns:
            Blocks of type ``text`` and ``image`` (base64), as in the API's reference for tool use.
        """
        from cellblock.model.blocks import for_anthropic

        return for_anthropic(self, max_chars)

    def to_openai(
        self, max_chars: int = MODEL_CHARS, *, api: Literal["responses", "chat"] = "responses"
    ) -> list[dict[str, Any]]:
        """Return the content of a message of OpenAI's APIs: a text, and up to five images.

        Args:
            max_chars: Maximum length of the text, as for `for_model`.
            api: ``responses`` for the ``output`` of a ``function_call_output`` item of the Responses API: parts of type
                ``input_text`` and ``input_image``. ``chat`` for the content of a user's message of Chat Completions: ``text``
                and ``image_url``. A tool's message there cannot contain images: use `for_model`.

        Returns:
            The parts, with images as data URLs, as in the APIs' references.

        Raises:
            InvalidInputError: The API is unknown, or `max_chars` is out of range.
        """
        from cellblock.model.blocks import for_openai

        return for_openai(self, max_chars, api)

    def __repr__(self) -> str:
        from cellblock.model.html import summary

        text = "nothing shown" if self.text is None else repr(self.text[:100] + "…" * (len(self.text) > 100))
        return f"<CodeExecutionResult {summary(self)}: {text}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the text, escaped, and the images. It contains no HTML of the code."""
        from cellblock.model.html import page

        return page(self)

    def to_dict(self, *, raw: bool = False) -> dict[str, Any]:
        """Return the result as JSON data; `raw` is as for `OutputItem.to_dict`."""
        return {
            "status": self.status,
            "text": self.text,
            "images": [str(path) for path in self.images],
            "output": self.output,
            "stderr": self.stderr,
            "error": self.error.to_dict() if self.error else None,
            "return_value": self.return_value,
            "execution_count": self.execution_count,
            "duration_ms": self.duration_ms,
            "outputs": [item.to_dict(raw=raw) for item in self.outputs],
            "truncated": self.truncated,
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "recovery": self.recovery,
            "spilled": [str(path) for path in self.spilled],
            "exit_status": self.exit_status,
            "not_undoable": self.not_undoable,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CodeExecutionResult:
        """Return the result from the data of `to_dict`."""
        return cls(
            text=data["text"],
            images=[Path(path) for path in data["images"]],
            status=data["status"],
            output=data["output"],
            stderr=data["stderr"],
            return_value=data["return_value"],
            error=None if data["error"] is None else ErrorInfo.from_dict(data["error"]),
            execution_count=data["execution_count"],
            duration_ms=data["duration_ms"],
            outputs=[OutputItem.from_dict(item) for item in data["outputs"]],
            truncated=data["truncated"],
            attempts=[AttemptSnapshot.from_dict(attempt) for attempt in data["attempts"]],
            recovery=data["recovery"],
            spilled=[Path(path) for path in data["spilled"]],
            exit_status=data.get("exit_status"),  # missing in results of older versions
            not_undoable=data.get("not_undoable", ""),  # likewise
        )


ExecutionResult = CodeExecutionResult
"""KernelBox's and ipybox's name for it."""


@dataclass(frozen=True, slots=True)
class CodeExecutionChunk:
    """A piece of output, as it arrives.

    Attributes:
        text: The text for readers.
        name: ``stdout`` or ``stderr`` for streams, None for a displayed value.
    """

    text: str
    name: StreamName | None = None


@dataclass(frozen=True, slots=True)
class Completions:
    """Completions of the code at a cursor.

    Attributes:
        matches: The candidates, best first.
        start: Start of the text that a candidate replaces, as an index into the code.
        end: End of that text.
    """

    matches: list[str]
    start: int
    end: int


class KeptResult:
    """A reference to a result that a session may drop.

    Attributes:
        result: The result; None once dropped.
    """

    __slots__ = ("result",)

    def __init__(self, result: CodeExecutionResult | None = None) -> None:
        self.result = result


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A cell that a session ran.

    Attributes:
        code: The source.
        status: How it ended.
        execution_count: IPython's counter; None if the kernel died before reporting it.
        abandoned: Whether the session was restored to an earlier state.
        kept: The reference to its result, which `result` returns.
        tag: The caller's label of the execution.
        after: The label of the cell that led to its initial state; empty if none.
    """

    code: str
    status: Status
    execution_count: int | None
    abandoned: bool = False
    kept: KeptResult = field(default_factory=KeptResult, repr=False, compare=False)
    tag: str = field(default="", repr=False, compare=False)
    after: str = field(default="", repr=False, compare=False)

    @property
    def result(self) -> CodeExecutionResult | None:
        """The result; None if it was dropped (`Limits.history`), or the cell ran before the session was loaded."""
        return self.kept.result
