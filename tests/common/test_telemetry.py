"""Spans, metrics and trace contexts, and what is done without OpenTelemetry."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

import otel_memory
from cellblock.common import config, telemetry
from cellblock.common.telemetry import Figures, Step

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=value"}
TRANSPORTS = ("otlp_proto_http", "otlp_proto_grpc")


@pytest.fixture
def spans() -> Any:
    exporter = otel_memory.exporter()
    exporter.clear()
    return exporter


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Figures:
    made = Figures()
    monkeypatch.setattr(telemetry, "FIGURES", made)
    return made


def test_a_step_is_a_span_and_a_value(spans: Any, figures: Figures) -> None:
    with (
        Step("outer", {"a": 1}, metric="cellblock.checkpoint.duration", labels=(("cellblock.operation", "undo"),)),
        Step("inner") as step,
    ):
        step.set("b", "2")
    inner, outer = spans.get_finished_spans()
    assert (inner.name, inner.parent.span_id, dict(inner.attributes)) == ("inner", outer.context.span_id, {"b": "2"})
    assert outer.status.is_unset
    (((name, labels), values),) = figures.histograms.items()
    assert (name, labels) == ("cellblock.checkpoint.duration", (("cellblock.operation", "undo"),))
    assert sum(values[:-1]) == 1


def test_an_exception_is_a_class_in_a_span_and_not_its_words(spans: Any, figures: Figures) -> None:
    with pytest.raises(ValueError, match="secret"), Step("failing", metric="cellblock.checkpoint.duration"):
        raise ValueError("secret words")
    (span,) = spans.get_finished_spans()
    assert (span.attributes["error.type"], span.status.is_ok, list(span.events)) == ("ValueError", False, [])
    assert "secret" not in span.to_json()
    assert [labels for _, labels in figures.histograms] == [(("error.type", "ValueError"),)]


def test_a_step_without_a_name_has_no_span(spans: Any, figures: Figures) -> None:
    with telemetry.untraced("name", metric="cellblock.checkpoint.duration") as step:
        step.set("a", 1)
    assert spans.get_finished_spans() == ()
    assert len(figures.histograms) == 1


def test_a_trace_goes_through_another_process(spans: Any) -> None:
    assert telemetry.outgoing() == {}
    with telemetry.incoming(CARRIER), Step("here") as step:
        carried = telemetry.outgoing()
    (span,) = spans.get_finished_spans()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, CALLER)
    assert carried == {"traceparent": f"00-{TRACE}-{step.span.context.span_id:016x}-01", "tracestate": "vendor=value"}
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    "carrier",
    [
        None,
        {},
        "text",
        ["traceparent"],
        {"traceparent": 5},
        {"traceparent": "00-0-0-00"},
        {"traceparent": "x" * 100_000},
        {"a": {}},
    ],
)
def test_what_is_no_trace_context_counts_as_none(carrier: object, spans: Any) -> None:
    with telemetry.incoming(carrier), Step("alone"):
        pass
    (span,) = spans.get_finished_spans()
    assert span.parent is None


def test_metrics_reach_the_program_s_own_provider(figures: Figures) -> None:
    reader = otel_memory.reader()
    telemetry.observe("cellblock.approval.wait.duration", 0.004, (("cellblock.approval.outcome", "deny"),))
    telemetry.add("cellblock.egress.requests", labels=(("cellblock.egress.outcome", "unreachable"),))
    telemetry.add("cellblock.approvals.pending")
    telemetry.add("cellblock.approvals.pending", -1)
    telemetry.measure_memory(lambda: 5)
    assert reader is not None
    (waited,) = otel_memory.points("cellblock.approval.wait.duration")
    assert dict(waited.attributes) == {"cellblock.approval.outcome": "deny"}
    assert waited.explicit_bounds[0] == 0.001
    assert otel_memory.points("cellblock.egress.requests")[0].value == 1
    assert otel_memory.points("cellblock.approvals.pending")[0].value == 0
    assert otel_memory.points("cellblock.memory")[0].value == 5


def test_prometheus_gets_the_same_names(figures: Figures) -> None:
    for seconds in (0.0005, 0.001, 0.0011, 1000):
        figures.observe("gen_ai.execute_tool.duration", seconds, (("gen_ai.tool.name", "python"),))
    figures.add("cellblock.egress.requests", 2, (("cellblock.egress.outcome", "refused"),))
    lines = telemetry.prometheus(figures.as_data(), telemetry.HISTOGRAMS, telemetry.COUNTERS)
    name = "gen_ai_execute_tool_duration_seconds"
    for line in (
        f"# TYPE {name} histogram",
        f'{name}_bucket{{gen_ai_tool_name="python",le="0.001"}} 2',
        f'{name}_bucket{{gen_ai_tool_name="python",le="0.0025"}} 3',
        f'{name}_bucket{{gen_ai_tool_name="python",le="300"}} 3',
        f'{name}_bucket{{gen_ai_tool_name="python",le="+Inf"}} 4',
        f'{name}_sum{{gen_ai_tool_name="python"}} 1000.002600',
        f'{name}_count{{gen_ai_tool_name="python"}} 4',
        "# TYPE cellblock_egress_requests_total counter",
        'cellblock_egress_requests_total{cellblock_egress_outcome="refused"} 2',
    ):
        assert line in lines


def test_labels_without_end_take_no_memory_without_end(figures: Figures) -> None:
    for number in range(10_000):
        figures.observe("gen_ai.execute_tool.duration", 1.0, (("error.type", str(number)),))
        figures.add("cellblock.egress.requests", 1, (("cellblock.egress.outcome", str(number)),))
    assert len(figures.histograms) == telemetry._MAX_SERIES * len(telemetry.HISTOGRAMS)
    assert len(figures.numbers) == telemetry._MAX_SERIES * (len(telemetry.COUNTERS) + len(telemetry.GAUGES))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=False)


def test_without_opentelemetry_nothing_is_loaded_and_nothing_carried() -> None:
    code = """
import sys
from cellblock.common import telemetry
with telemetry.incoming({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}):
    with telemetry.Step("name", metric="cellblock.approval.wait.duration") as step:
        step.set("a", 1)
        assert step.span is None and telemetry.outgoing() == {}
given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": 7, "baggage": "a=b"}
with telemetry.passing_on(given):
    assert telemetry.outgoing() == {"traceparent": given["traceparent"]}
for other in ({"traceparent": 7}, {"traceparent": "x" * 600}, {"tracestate": "a=b"}):
    with telemetry.passing_on(other):
        assert telemetry.outgoing() == {}
telemetry.measure_memory(lambda: 1 / 0)
with telemetry.exporting("x") as exports:
    assert not exports
assert len(telemetry.FIGURES.histograms) == 1
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert run(code).stdout == "[]\n"


def test_a_short_command_continues_the_trace_of_its_environment() -> None:
    code = "from cellblock.common import telemetry; telemetry.inherit(); print(telemetry.outgoing())"
    assert run(code, TRACEPARENT=CARRIER["traceparent"]).stdout == f"{ {'traceparent': CARRIER['traceparent']} }\n"
    assert run(code.replace("telemetry.inherit();", ""), TRACEPARENT=CARRIER["traceparent"]).stdout == "{}\n"


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({}, None),
        ({"SERVICE_NAME": "x", "BSP_SCHEDULE_DELAY": "5"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": " "}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "u", "SDK_DISABLED": "TRUE"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "u"}, {"trace": 0, "metric": 0, "log": 0}),
        ({"EXPORTER_OTLP_ENDPOINT": "u", "EXPORTER_OTLP_PROTOCOL": "grpc"}, {"trace": 1, "metric": 1, "log": 1}),
        ({"EXPORTER_OTLP_ENDPOINT": "u", "METRICS_EXPORTER": "none"}, {"trace": 0, "log": 0}),
        ({"EXPORTER_OTLP_TRACES_ENDPOINT": "u"}, {"trace": 0}),
        ({"TRACES_EXPORTER": "console"}, {}),
    ],
)
def test_which_exporters_the_standard_variables_ask_for(
    variables: dict[str, str], exporters: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    wanted = None
    if exporters is not None:
        wanted = {f"{signal}_exporter_names": [TRANSPORTS[transport]] for signal, transport in exporters.items()}
    assert config.telemetry_exporters() == wanted


@pytest.mark.parametrize(
    ("value", "records"),
    [("", False), ("NO_CONTENT", False), ("EVENT_ONLY", False), ("SPAN_ONLY", True), ("span_and_event", True), ("true", True)],
)
def test_when_content_is_recorded(value: str, records: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    assert config.records_content() is records


@pytest.mark.slow
def test_a_process_of_its_own_exports_as_the_variables_say() -> None:
    code = """
from cellblock.common import telemetry
with telemetry.exporting("cellblock-daemon") as exports, telemetry.exporting("again") as again, telemetry.Step("exported"):
    assert exports and again
"""
    done = run(code, OTEL_TRACES_EXPORTER="console")
    assert '"name": "exported"' in done.stdout
    assert '"service.name": "cellblock-daemon"' in done.stdout
    done = run(code, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert '"service.name": "mine"' in done.stdout


@pytest.mark.slow
def test_a_collector_that_is_not_there_keeps_no_process_from_ending() -> None:
    code = """
import time
from cellblock.common import telemetry
with telemetry.exporting("x"), telemetry.Step("lost"):
    pass
began = time.monotonic()
import atexit
atexit._run_exitfuncs()
print(time.monotonic() - began < 1)
"""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which answers nothing
        done = run(code, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_variables_that_nothing_installed_knows_are_an_error() -> None:
    code = """
from cellblock.common import telemetry
from cellblock.errors import InvalidInputError
try:
    with telemetry.exporting("x"):
        pass
except InvalidInputError as error:
    print(error)
"""
    said = run(code, OTEL_TRACES_EXPORTER="nonsense").stdout
    assert "nonsense" in said
    assert "extra 'otel'" in said
