"""OpenTelemetry's SDK in the tests' own process, with exporters in memory. It takes one provider, so all tests share it."""

from __future__ import annotations

import functools
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@functools.cache
def exporter() -> Any:
    """Return what keeps the spans, for the rest of the process."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@functools.cache
def reader() -> Any:
    """Return what reads the metrics, for the rest of the process."""
    made = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([made]))
    return made


def points(name: str) -> list[Any]:
    """Return the data points of a metric."""
    data = reader().get_metrics_data()
    found = (
        []
        if data is None
        else [one for all_ in data.resource_metrics for scope in all_.scope_metrics for one in scope.metrics]
    )
    return [point for one in found if one.name == name for point in one.data.data_points]
