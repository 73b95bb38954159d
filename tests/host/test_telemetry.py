"""Spans and metrics of sessions, cells and tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import Host, Session

sdk = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402


@pytest.fixture(scope="module")
def exporter() -> Any:
    """For the rest of the process: OpenTelemetry takes one provider."""
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: Any) -> Any:
    exporter.clear()
    return exporter


async def test_a_cell_is_below_its_session_and_tells_how_it_ended(host: Host, spans: Any) -> None:
    async with host.session() as session:
        await session.execute("secret = 1")
        await session.execute("1 / 0")
    first, second, whole = spans.get_finished_spans()
    assert [first.name, second.name, whole.name] == ["cellblock.cell", "cellblock.cell", "cellblock.session"]
    assert first.parent.span_id == second.parent.span_id == whole.context.span_id
    assert (first.attributes["cellblock.status"], second.attributes["cellblock.status"]) == ("success", "error")
    assert first.status.is_ok
    assert not second.status.is_ok
    assert "secret" not in first.to_json()


async def test_the_callers_trace_goes_on_in_the_cell(session: Session, spans: Any) -> None:
    with trace.get_tracer("program").start_as_current_span("request") as request:
        await session.execute("1")
        async for _ in session.stream("2"):
            pass
    first, second, _ = spans.get_finished_spans()
    assert first.parent.span_id == second.parent.span_id == request.get_span_context().span_id


async def test_a_tool_call_is_below_its_cell(session: Session, spans: Any) -> None:
    async def call(tool: str) -> str:
        return tool

    span = session.trace.begin_cell("1")
    assert await session.trace.traced("files", call)("read") == "read"
    session.trace.end_cell(span, "success", 1)
    called, cell = spans.get_finished_spans()
    assert called.name == "cellblock.tool_call"
    assert dict(called.attributes) == {"cellblock.server": "files", "cellblock.tool": "read"}
    assert called.parent.span_id == cell.context.span_id


async def test_code_is_in_a_span_on_request(session: Session, spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_TRACE_CODE", "1")
    await session.execute("1 + 1")
    (span,) = spans.get_finished_spans()
    assert span.attributes["cellblock.code"] == "1 + 1"
