"""Requests as spans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace

import otel_memory
from cellblock.fronts.gateway.tracing import Traced

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Any:
    exporter = otel_memory.exporter()
    exporter.clear()
    return exporter


async def ask(
    status: int = 200, route: str = "", path: str = "/sessions/secret/files", method: str = "GET", **more: Any
) -> None:
    """Have a request answered."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if route:
            scope["route"] = SimpleNamespace(path=route)
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def nothing(*_: Any) -> Any:
        return None

    scope = {"type": "http", "method": method, "path": path, "scheme": "http", "headers": [], **more}
    await Traced(answer)(scope, nothing, nothing)


async def test_a_request_continues_its_clients_trace(spans: Any) -> None:
    headers = [(b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()), (b"authorization", b"Bearer secret")]
    await ask(route="/sessions/{session}/files", headers=headers)
    (span,) = spans.get_finished_spans()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, CALLER)
    assert (span.name, span.kind) == ("GET /sessions/{session}/files", trace.SpanKind.SERVER)
    assert dict(span.attributes) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": "/sessions/{session}/files",
        "url.scheme": "http",
    }


@pytest.mark.parametrize(
    ("given", "name", "error"),
    [
        ({"status": 404}, "GET", ""),
        ({"status": 503}, "GET", "503"),
        ({"method": "x" * 1000}, "_OTHER", ""),
        ({"headers": [(b"traceparent", b"\xff\x00" * 1000)]}, "GET", ""),
    ],
)
async def test_names_have_no_values_of_clients(spans: Any, given: dict[str, Any], name: str, error: str) -> None:
    await ask(**given)
    (span,) = spans.get_finished_spans()
    assert (span.name, span.attributes.get("error.type", ""), span.parent) == (name, error, None)
    assert "secret" not in span.to_json()


async def test_an_instrumentation_of_the_server_is_not_repeated(spans: Any) -> None:
    with trace.get_tracer("instrumentation").start_as_current_span("GET"):
        await ask()
    assert len(spans.get_finished_spans()) == 1
