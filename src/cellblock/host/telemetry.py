"""The spans of one session: its start, its cells, and what the cells request (docs/observability.md)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from cellblock.common import config, telemetry
from cellblock.common.telemetry import MAX_NAME, MAX_TEXT, Attributes, Step

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult

_PYTHON = (("gen_ai.tool.name", "python"),)
_MAX_STEPS = 256
"""Spans below one cell: code must not fill the queue of the exporter, which all sessions share."""


class SessionTrace:
    """The spans of one session.

    The session's own span lasts from its request until it accepts cells, so that it is exported early: the session may last
    for days, or outlive this process. Cells are later children of it, unless their callers are in another trace.

    Attributes:
        name: The session's name for users.
    """

    def __init__(self, name: str) -> None:
        """Start without spans.

        Args:
            name: The session's name for users.
        """
        self.name = name
        self._session: Any = None
        self._cell: Any = None
        self._steps = 0
        self._started = False

    def start(self, isolate: str) -> Step:
        """Return the step of starting the session."""
        attributes = {"cellblock.session": self.name, "cellblock.isolate": isolate}
        return _Start(self, attributes, metric="cellblock.session.creation.duration")

    def began(self, span: Any) -> None:
        """Record the span of the session's start, once it accepts cells."""
        self._session = span
        self._started = True
        telemetry.add("cellblock.sessions")

    def end(self) -> None:
        """Record that the session is closed."""
        if self._started:
            self._started = False
            telemetry.add("cellblock.sessions", -1)

    def cell(self, code: str, tag: str, *, silent: bool, continued: bool = False) -> CellStep:
        """Return the step of a cell. Silent cells have no span.

        Args:
            code: Its source.
            tag: The caller's label.
            silent: Whether it is silent.
            continued: Whether another process began it.
        """
        return CellStep(self, code, tag, silent=silent, continued=continued)

    def enter(self, span: Any) -> None:
        """Record the running cell."""
        self._cell, self._steps = span, 0

    def step(self, name: str, attributes: Attributes | None = None, **options: Any) -> Step:
        """Return a step requested by the session's code: a child of the running cell, or else of the session."""
        self._steps += 1
        return Step(name if self._steps <= _MAX_STEPS else "", attributes, above=self._above(self._cell), **options)

    def operation(self, name: str, attributes: Attributes | None = None, **options: Any) -> Step:
        """Return a step requested by the session's user: a child of the caller's span, or else of the session."""
        given = {"cellblock.session": self.name, **(attributes or {})}
        return Step(name, given, above=self.unless_within(self._session), **options)

    def checkpointing(self, operation: str) -> Step:
        """Return the step of a checkpoint operation.

        Args:
            operation: ``checkpoint``, ``undo``, ``restore``, ``fork`` or ``adopt``.
        """
        labels = (("cellblock.operation", operation),)
        return self.operation(f"cellblock.{operation}", metric="cellblock.checkpoint.duration", labels=labels)

    def unless_within(self, span: Any) -> Any:
        """Return the context of a span, if the caller is in none."""
        api = telemetry.api()
        if api is None or span is None or api.get_current_span().get_span_context().is_valid:
            return None
        return api.set_span_in_context(span)

    def _above(self, span: Any) -> Any:
        api, above = telemetry.api(), span if span is not None else self._session
        return None if api is None or above is None else api.set_span_in_context(above)

    @property
    def session(self) -> Any:
        """The span of its start; None if it was not traced."""
        return self._session

    def traced(self, server: str, call: Callable[..., Awaitable[Any]], *, mcp: bool) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls a server's tools, each call in a child span of the running cell's.

        Args:
            server: The server's name.
            call: Calls it.
            mcp: Whether it is an MCP server, not functions of this program.
        """

        async def calling(tool: str, arguments: dict[str, Any], *more: Any, **options: Any) -> Any:
            shown = tool[:MAX_NAME]
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": shown,
                "cellblock.session": self.name,
                "cellblock.server": server[:MAX_NAME],
            }
            if config.records_content():
                attributes["gen_ai.tool.call.arguments"] = json.dumps(arguments)[:MAX_TEXT]
            if mcp:
                attributes["mcp.method.name"] = "tools/call"
                labels = (("mcp.method.name", "tools/call"),)
                made = self.step(
                    f"tools/call {shown}", attributes, kind="CLIENT", metric="mcp.client.operation.duration", labels=labels
                )
            else:
                made = self.step(f"execute_tool {shown}", attributes | {"gen_ai.tool.type": "function"})
            with made as step:
                outcome = await call(tool, arguments, *more, **options)
                if outcome.is_error:
                    step.fail("tool_error")
                if step.span is not None and config.records_content():
                    step.set("gen_ai.tool.call.result", outcome.text[:MAX_TEXT])
                return outcome

        return calling


class _Start(Step):
    __slots__ = ("_trace",)

    def __init__(self, trace: SessionTrace, attributes: Attributes, **options: Any) -> None:
        super().__init__("cellblock.session", attributes, **options)
        self._trace = trace

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        super().__exit__(kind, *more)
        if kind is None:
            self._trace.began(self.span)


class CellStep(Step):
    """The step of a cell, the parent of spans that it requests.

    Attributes:
        traceparent: The span's context for the code of the cell; empty without tracing.
    """

    __slots__ = ("_code", "_continued", "_silent", "_tag", "_trace", "traceparent")

    def __init__(self, trace: SessionTrace, code: str, tag: str, *, silent: bool, continued: bool) -> None:
        self._trace, self._code, self._tag, self._silent, self._continued = trace, code, tag, silent, continued
        self.traceparent = ""
        super().__init__(metric="" if silent else "gen_ai.execute_tool.duration", labels=_PYTHON)

    def __enter__(self) -> CellStep:
        if not self._silent and telemetry.api() is not None:
            self._name = "execute_tool python"
            self._above = self._trace.unless_within(self._trace.session)
            attributes: dict[str, str | int | float | bool] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "python",
                "gen_ai.tool.type": "function",
                "cellblock.session": self._trace.name,
            }
            if self._tag:
                attributes["cellblock.cell"] = self._tag
            if self._continued:
                attributes["cellblock.continued"] = True
            if config.records_content():
                attributes["gen_ai.tool.call.arguments"] = json.dumps({"code": self._code[:MAX_TEXT]})
            self._attributes = attributes
        super().__enter__()
        if not self._silent:
            self._trace.enter(self.span)
            if self.span is not None:
                self.traceparent = telemetry.outgoing().get("traceparent", "")
        return self

    def end(self, result: CodeExecutionResult) -> None:
        """Record the result of the cell."""
        if result.status != "success":
            self.fail(result.status)
        if self.span is not None:
            self.set("cellblock.status", result.status)
            if result.execution_count is not None:
                self.set("cellblock.execution_count", result.execution_count)
            if config.records_content():
                self.set("gen_ai.tool.call.result", (result.text or "")[:MAX_TEXT])

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        if not self._silent:
            self._trace.enter(None)
        super().__exit__(kind, *more)
