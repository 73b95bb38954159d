"""Spans and metrics through OpenTelemetry's API. If the program does not use it, nothing is loaded and nothing is done.

A session is a span; each cell is one, below the span in which the caller executes it, or else below its session; a tool call
is one below its cell.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from cellblock.common import config

_MAX_NAME = 200
_MAX_CODE = 10_000


class SessionTrace:
    """The spans of one session."""

    def __init__(self, session: str) -> None:
        """Begin with nothing.

        Args:
            session: The session, as messages call it.
        """
        self._name = session
        self._session: Any = None
        self._cell: Any = None

    def start(self, isolate: str) -> None:
        """Take note that the session has started."""
        if (api := _api()) is not None:
            attributes = {"cellblock.session": self._name, "cellblock.isolate": isolate}
            self._session = api.get_tracer("cellblock").start_span("cellblock.session", attributes=attributes)

    def end(self) -> None:
        """Take note that the session is closed."""
        span, self._session = self._session, None
        if span is not None:
            span.end()

    def begin_cell(self, code: str) -> Any:
        """Begin the span of a cell, to be given to `end_cell`; None if nobody traces."""
        if (api := _api()) is None:
            return None
        # The caller may be in a trace already, which continues here.
        above = None
        if not api.get_current_span().get_span_context().is_valid and self._session is not None:
            above = api.set_span_in_context(self._session)
        attributes = {"cellblock.session": self._name}
        if config.traces_code():
            attributes["cellblock.code"] = code[:_MAX_CODE]
        self._cell = api.get_tracer("cellblock").start_span("cellblock.cell", above, attributes=attributes)
        return self._cell

    def end_cell(self, span: Any, status: str, duration_ms: int) -> None:
        """End the span of a cell, and count it."""
        if span is None or (api := _api()) is None:
            return
        self._cell = None
        span.set_attribute("cellblock.status", status)
        if status != "success":
            span.set_status(api.Status(api.StatusCode.ERROR, status))
        span.end()
        _count("cellblock.cell.duration", duration_ms, {"cellblock.status": status})

    def traced(self, server: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls a server's tools, each call in a span below the running cell's."""

        async def calling(tool: str, *arguments: Any, **options: Any) -> Any:
            if (api := _api()) is None:
                return await call(tool, *arguments, **options)
            with self._tool_span(api, server, tool):
                return await call(tool, *arguments, **options)

        return calling

    def _tool_span(self, api: Any, server: str, tool: str) -> AbstractContextManager[Any]:
        above = self._cell or self._session
        context = None if above is None else api.set_span_in_context(above)
        attributes = {"cellblock.server": server[:_MAX_NAME], "cellblock.tool": tool[:_MAX_NAME]}
        # Not the exception: its message has a server's words.
        span: AbstractContextManager[Any] = api.get_tracer("cellblock").start_as_current_span(
            "cellblock.tool_call", context, attributes=attributes, record_exception=False
        )
        return span


def _api() -> Any:
    """Return OpenTelemetry's API, if the program has loaded it and said where spans go.

    The MCP SDK loads the API, too. Spans that go nowhere took a tenth of a tool call.
    """
    api = sys.modules.get("opentelemetry.trace")
    return None if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider) else api


def _count(name: str, value: int, attributes: dict[str, str]) -> None:
    if (metrics := sys.modules.get("opentelemetry.metrics")) is not None:
        metrics.get_meter("cellblock").create_histogram(name, "ms").record(value, attributes)
