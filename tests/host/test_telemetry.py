"""Spans and metrics of sessions, cells, and of what they ask for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace

import otel_memory
from cellblock import Host, Session
from cellblock.host.telemetry import _MAX_STEPS

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
def spans() -> Any:
    exporter = otel_memory.exporter()
    exporter.clear()
    return exporter


def named(spans: Any, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_a_cell_is_below_its_session_and_tells_how_it_ended(host: Host, spans: Any) -> None:
    async with host.session() as session:
        assert [span.name for span in spans.get_finished_spans()] == ["cellblock.session"]  # whatever becomes of this process
        await session.execute("secret = 1")
        await session.execute("1 / 0")
    whole, first, second = spans.get_finished_spans()
    assert first.name == second.name == "execute_tool python"
    assert first.parent.span_id == second.parent.span_id == whole.context.span_id
    assert (first.attributes["cellblock.status"], second.attributes["cellblock.status"]) == ("success", "error")
    assert (first.attributes["gen_ai.operation.name"], first.attributes["cellblock.execution_count"]) == ("execute_tool", 1)
    assert first.status.is_unset
    assert (second.attributes["error.type"], second.status.is_ok) == ("error", False)
    assert "secret" not in first.to_json()
    assert "ZeroDivisionError" not in second.to_json()


async def test_the_callers_trace_goes_on_in_the_cell_and_in_its_code(session: Session, spans: Any) -> None:
    code = "import os; print(os.environ.get('TRACEPARENT', 'nothing'))"
    with trace.get_tracer("program").start_as_current_span("request") as request:
        told = await session.execute(code)
        async for _ in session.stream("2"):
            pass
    first, second, _ = spans.get_finished_spans()
    assert first.parent.span_id == second.parent.span_id == request.get_span_context().span_id
    found = (told.text or "").split("-")
    assert found[1:3] == [f"{first.context.trace_id:032x}", f"{first.context.span_id:016x}"]


async def test_the_trace_is_no_part_of_the_sessions_state(session: Session, spans: Any) -> None:
    with trace.get_tracer("program").start_as_current_span("request"):
        await session.execute("import os, threading\ndef look():\n    return os.environ.get('TRACEPARENT')")
    looked = await session.execute("%env TRACEPARENT=mine")
    assert looked.ok
    with trace.get_tracer("program").start_as_current_span("request"):
        assert (await session.execute("look() == 'mine'")).text == "False"
    assert (await session.execute("look()", silent=True)).text == "'mine'"


async def test_a_tool_call_is_below_its_cell(session: Session, spans: Any) -> None:
    async def call(tool: str, arguments: dict[str, Any]) -> Any:
        return SimpleNamespace(is_error=tool == "fail", text="secret")

    with session.trace.cell("1", "", silent=False) as step:
        await session.trace.traced("files", call, mcp=True)("read", {"path": "secret"})
        await session.trace.traced("own", call, mcp=False)("fail", {})
    called, own, whole = spans.get_finished_spans()
    assert (called.name, called.kind, called.attributes["mcp.method.name"]) == (
        "tools/call read",
        trace.SpanKind.CLIENT,
        "tools/call",
    )
    assert (called.attributes["cellblock.server"], called.attributes["gen_ai.tool.name"]) == ("files", "read")
    assert (own.name, own.attributes["error.type"]) == ("execute_tool fail", "tool_error")
    assert called.parent.span_id == own.parent.span_id == whole.context.span_id
    assert step.traceparent.split("-")[2] == f"{whole.context.span_id:016x}"
    assert "secret" not in called.to_json()


async def test_content_is_in_spans_on_request(session: Session, spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTENT, "SPAN_ONLY")

    async def call(tool: str, arguments: dict[str, Any]) -> Any:
        return SimpleNamespace(is_error=False, text="out" * 10_000)

    await session.execute("1 + 1")
    await session.trace.traced("files", call, mcp=True)("read", {"path": "in"})
    cell, called = spans.get_finished_spans()
    assert json.loads(cell.attributes["gen_ai.tool.call.arguments"]) == {"code": "1 + 1"}
    assert cell.attributes["gen_ai.tool.call.result"] == "2"
    assert called.attributes["gen_ai.tool.call.arguments"] == '{"path": "in"}'
    assert len(called.attributes["gen_ai.tool.call.result"]) == 10_000


async def test_what_users_ask_for_is_a_span_of_its_own(session: Session, spans: Any) -> None:
    await session.execute("x = 1")
    with trace.get_tracer("program").start_as_current_span("request") as request:
        await session.checkpoint()
        assert (await session.exec("exit 3")).exit_code == 3
        process = await session.spawn("true")
        await process.wait()
    above = request.get_span_context().span_id
    (made,) = named(spans, "cellblock.checkpoint")
    ran, spawned = named(spans, "execute_tool exec")
    assert made.parent.span_id == ran.parent.span_id == spawned.parent.span_id == above
    assert ran.attributes["process.exit.code"] == 3
    assert "exit 3" not in ran.to_json()


async def test_code_cannot_flood_the_exporter(session: Session, spans: Any) -> None:
    """Silent cells have no span."""
    # Silent cells have no span.
    await session.execute("1", silent=True)
    assert spans.get_finished_spans() == ()
    # Code cannot flood the exporter.
    with session.trace.cell("1", "", silent=False):
        for _ in range(_MAX_STEPS + 10):
            with session.trace.step("cellblock.egress"):
                pass
    assert len(named(spans, "cellblock.egress")) == _MAX_STEPS


async def test_cells_are_counted(session: Session, spans: Any) -> None:
    otel_memory.reader()

    def count(**labels: str) -> int:
        found = [point for point in otel_memory.points("gen_ai.execute_tool.duration") if dict(point.attributes) == labels]
        return sum(point.count for point in found)

    wanted = {"gen_ai.tool.name": "python"}
    before, failed = count(**wanted), count(**wanted, **{"error.type": "error"})
    await session.execute("1")
    await session.execute("1 / 0")
    assert count(**wanted) == before + 1
    assert count(**wanted, **{"error.type": "error"}) == failed + 1
