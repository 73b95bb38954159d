"""Spans, metrics and trace contexts by OpenTelemetry's API, which is only used if the program loads it.

`FIGURES` also holds all metrics, for the gateway's Prometheus endpoint, which needs no OpenTelemetry.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Self, TypeAlias

from cellblock.common import config
from cellblock.errors import InvalidInputError

SCOPE = "cellblock"
"""The instrumentation scope of all spans and metrics."""

MAX_TEXT = 10_000
"""Characters of code, arguments or output in a span, if they are recorded at all."""

MAX_NAME = 200
"""Characters of a name that code has chosen."""

Kind: TypeAlias = Literal["INTERNAL", "SERVER", "CLIENT"]
Attributes: TypeAlias = Mapping[str, "str | int | float | bool"]
Labels: TypeAlias = tuple[tuple[str, str], ...]

MakeStep: TypeAlias = Callable[..., "Step"]
"""Begins a step of a session's work: like `Step`, without a parent."""

_PATIENCE = 2.0
"""Seconds in which a process that ends may send the rest."""

_CELL = "gen_ai.execute_tool.duration"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MAX_SERIES = 200
"""Combinations of labels of one metric. Code cannot choose labels; if a mistake lets it, the memory is bounded."""

HISTOGRAMS = {
    _CELL: "How long cells and programs ran.",
    "mcp.client.operation.duration": "How long calls of MCP servers' tools took.",
    "cellblock.session.creation.duration": "How long it took to start sessions.",
    "cellblock.checkpoint.duration": "How long checkpoints and restores took.",
    "cellblock.approval.wait.duration": "How long calls waited for a decision.",
}
"""Metrics of how long something takes, in seconds."""

COUNTERS = {"cellblock.egress.requests": "Requests for hosts through the proxy."}
"""Metrics that only grow."""

GAUGES = {
    "cellblock.sessions": "Running sessions.",
    "cellblock.approvals.pending": "Calls that wait for a decision.",
}
"""Metrics that go up and down."""


def api() -> Any:
    """Return OpenTelemetry's trace API, if the program has loaded it and configured a provider; else None.

    The MCP SDK loads the API, too. Spans without a destination took a tenth of a tool call.
    """
    loaded = sys.modules.get("opentelemetry.trace")
    return None if loaded is None or isinstance(loaded.get_tracer_provider(), loaded.ProxyTracerProvider) else loaded


# -- metrics -------------------------------------------------------------------------------------------------------------


class Figures:
    """The metrics of this process since its start.

    Attributes:
        histograms: Metric and labels → number of values in each bucket, and their sum.
        numbers: Metric and labels → a count.
    """

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, Labels], list[float]] = {}
        self.numbers: dict[tuple[str, Labels], int] = {}
        self.lock = threading.Lock()

    def observe(self, name: str, seconds: float, labels: Labels) -> None:
        """Add a value to a histogram."""
        with self.lock:
            known = self.histograms.get((name, labels))
            if known is None:
                if len(self.histograms) >= _MAX_SERIES * len(HISTOGRAMS):
                    return
                known = self.histograms[name, labels] = [0.0] * (len(_BOUNDS) + 2)
            known[bisect_left(_BOUNDS, seconds)] += 1
            known[-1] += seconds

    def add(self, name: str, count: int, labels: Labels) -> None:
        """Add to a count."""
        with self.lock:
            if (name, labels) in self.numbers or len(self.numbers) < _MAX_SERIES * (len(COUNTERS) + len(GAUGES)):
                self.numbers[name, labels] = self.numbers.get((name, labels), 0) + count

    def as_data(self) -> dict[str, Any]:
        """Return all metrics as JSON data, for another process."""
        with self.lock:
            histograms = [[name, labels, values[:]] for (name, labels), values in self.histograms.items()]
            return {"histograms": histograms, "numbers": [[*key, count] for key, count in self.numbers.items()]}


FIGURES = Figures()


def observe(name: str, seconds: float, labels: Labels = ()) -> None:
    """Record a duration.

    Args:
        name: A metric of `HISTOGRAMS`.
        seconds: The duration.
        labels: Names and values, with few values of each: no session names, and nothing that code can choose.
    """
    FIGURES.observe(name, seconds, labels)
    if (instrument := _instrument(name)) is not None:
        instrument.record(seconds, dict(labels))


def add(name: str, count: int = 1, labels: Labels = ()) -> None:
    """Add to a metric of `COUNTERS` or `GAUGES`. Labels are as for `observe`."""
    FIGURES.add(name, count, labels)
    if (instrument := _instrument(name)) is not None:
        instrument.add(count, dict(labels))


_instruments: dict[str, Any] = {}


def _instrument(name: str) -> Any:
    """Return the API's instrument of a metric; None if the program has not loaded the metrics API."""
    if (known := _instruments.get(name)) is not None or "opentelemetry.metrics" not in sys.modules:
        return known
    meter = sys.modules["opentelemetry.metrics"].get_meter(SCOPE)  # the instruments of a proxy start to work with a provider
    if name in HISTOGRAMS:
        made = meter.create_histogram(name, "s", HISTOGRAMS[name], explicit_bucket_boundaries_advisory=_BOUNDS)
    elif name in COUNTERS:
        made = meter.create_counter(name, "{request}", COUNTERS[name])
    else:
        made = meter.create_up_down_counter(name, "1", GAUGES[name])
    return _instruments.setdefault(name, made)


def measure_memory(used: Callable[[], int]) -> None:
    """Export the memory of all sessions of this process as a metric.

    Args:
        used: Returns it in bytes. Another thread calls it.
    """
    if (metrics := sys.modules.get("opentelemetry.metrics")) is not None:
        metrics.get_meter(SCOPE).create_observable_up_down_counter(
            "cellblock.memory", [lambda _: [metrics.Observation(used())]], "By", "Memory of all sessions."
        )


def prometheus(data: Mapping[str, Any], histograms: Mapping[str, str], counters: Mapping[str, str]) -> list[str]:
    """Format the data of `Figures.as_data` for Prometheus, with the names of OpenTelemetry's exporters.

    Args:
        data: The data.
        histograms: The histograms to show, with their descriptions.
        counters: The counters to show, with their descriptions.
    """
    lines: list[str] = []
    for name, help_ in histograms.items():
        shown = f"{_shown(name)}_seconds"
        lines += [f"# HELP {shown} {help_}", f"# TYPE {shown} histogram"]
        for labels, values in ((labels, values) for one, labels, values in data["histograms"] if one == name):
            total = 0
            for bound, count in zip((*_BOUNDS, float("inf")), values[:-1], strict=True):
                total += int(count)
                le = "+Inf" if bound == float("inf") else f"{bound:g}"
                lines.append(f"{shown}_bucket{_braces([*labels, ('le', le)])} {total}")
            lines += [f"{shown}_sum{_braces(labels)} {values[-1]:.6f}", f"{shown}_count{_braces(labels)} {total}"]
    for name, help_ in counters.items():
        shown = f"{_shown(name)}_total"
        lines += [f"# HELP {shown} {help_}", f"# TYPE {shown} counter"]
        lines += [f"{shown}{_braces(labels)} {count}" for one, labels, count in data["numbers"] if one == name]
    return lines


def _shown(name: str) -> str:
    return name.replace(".", "_")


def _braces(labels: Any) -> str:
    return "{" + ",".join(f'{_shown(name)}="{value}"' for name, value in labels) + "}" if labels else ""


# -- steps ---------------------------------------------------------------------------------------------------------------


class Step:
    """A timed step, as a context manager: a span, if the program traces, and a value of a histogram.

    Of exceptions, only the class is recorded: messages contain text of code or a server.

    Attributes:
        span: The span, if traced.
        labels: The labels of the histogram's value, in addition to ``error.type``.
        error: The reason for a failure, one of a few words; empty on success.
    """

    __slots__ = ("_above", "_attributes", "_began", "_kind", "_metric", "_name", "_token", "error", "labels", "span")

    def __init__(
        self,
        name: str = "",
        attributes: Attributes | None = None,
        *,
        above: Any = None,
        kind: Kind = "INTERNAL",
        metric: str = "",
        labels: Labels = (),
    ) -> None:
        """Prepare a step.

        Args:
            name: The span's name; empty for no span.
            attributes: Its attributes.
            above: The parent context; by default the current one.
            kind: Its kind.
            metric: The histogram, if any.
            labels: Labels of the histogram's value.
        """
        self.span: Any = None
        self.labels = labels
        self.error = ""
        self._name, self._attributes, self._above, self._kind = name, attributes, above, kind
        self._metric = metric
        self._began = 0.0
        self._token: Any = None

    def __enter__(self) -> Self:
        if self._name and (trace := api()) is not None:
            self.span = trace.get_tracer(SCOPE).start_span(
                self._name, self._above, kind=trace.SpanKind[self._kind], attributes=self._attributes
            )
            self._token = _contexts().attach(trace.set_span_in_context(self.span, self._above))
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took = time.perf_counter() - self._began
        if kind is not None and not self.error:
            self.error = kind.__name__
        if self._metric:
            observe(self._metric, took, (*self.labels, ("error.type", self.error)) if self.error else self.labels)
        if self.span is not None and (trace := sys.modules.get("opentelemetry.trace")) is not None:
            if self.error:
                self.span.set_attribute("error.type", self.error)
                self.span.set_status(trace.Status(trace.StatusCode.ERROR))
            self.span.end()
            _contexts().detach(self._token)

    def set(self, name: str, value: str | float | bool) -> None:
        if self.span is not None:
            self.span.set_attribute(name, value)

    def fail(self, why: str) -> None:
        """Mark the step as failed."""
        self.error = why


def untraced(_name: str, _attributes: Attributes | None = None, **options: Any) -> Step:
    """Return a step without a span, for work outside sessions."""
    return Step(**options)


def _contexts() -> Any:
    return sys.modules["opentelemetry.context"]


# -- trace contexts ------------------------------------------------------------------------------------------------------

CARRIED = ("traceparent", "tracestate")
"""The fields of a trace context."""

_MAX_CARRIED = 512
"""Characters of each, as the specification has it."""

_inherited: dict[str, str] = {}
_passed_on: ContextVar[dict[str, str] | None] = ContextVar("cellblock_trace", default=None)


def inherit() -> None:
    """Use the trace in this process's environment (``TRACEPARENT``) as the parent of all its requests: for short commands."""
    _inherited.update(config.trace_context())


def outgoing() -> dict[str, str]:
    """Return the current trace context for another process: ``traceparent`` and ``tracestate``; empty if none."""
    if api() is None:
        return _passed_on.get() or _inherited
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # Not the program's own propagators: third-party MCP servers must not get its baggage.
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


@contextmanager
def passing_on(carrier: Mapping[str, Any]) -> Iterator[None]:
    """Continue a trace as `incoming` does. A process that does not trace forwards it, because its daemon may trace.

    Args:
        carrier: Data from a client, which may contain ``traceparent`` and ``tracestate`` among other things.
    """
    told = {name: text for name in CARRIED if isinstance(text := carrier.get(name), str) and len(text) <= _MAX_CARRIED}
    if "traceparent" not in told:
        yield
    elif api() is not None:
        with _continued(told):
            yield
    else:
        token = _passed_on.set(told)
        try:
            yield
        finally:
            _passed_on.reset(token)


def incoming(carrier: object) -> AbstractContextManager[None]:
    """Continue a trace of another process within a context.

    Args:
        carrier: The value of `outgoing` in that process. An invalid one is ignored.
    """
    return _continued(carrier) if carrier and api() is not None else _NOTHING


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


@contextmanager
def _continued(carrier: object) -> Iterator[None]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    given = carrier if isinstance(carrier, dict) else {}
    texts = {name: text for name in CARRIED if isinstance(text := given.get(name), str)}
    token = _contexts().attach(TraceContextTextMapPropagator().extract(texts))
    try:
        yield
    finally:
        _contexts().detach(token)


# -- the SDK -------------------------------------------------------------------------------------------------------------


@contextmanager
def exporting(service: str) -> Iterator[bool]:
    """Set up OpenTelemetry's SDK in one of cellblock's own processes, if the standard variables configure a destination.

    At the end, unsent data is sent, within two seconds.

    Args:
        service: The name of the service, unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` sets another.

    Yields:
        Whether something is sent.

    Raises:
        InvalidInputError: The variables are set, but the packages are missing or do not support them.
    """
    exporters = config.telemetry_exporters()
    if exporters is None or api() is not None:
        yield api() is not None
        return
    try:
        from opentelemetry.sdk._configuration import _OTelSDKConfigurator

        configurator: Any = type("Configurator", (_OTelSDKConfigurator,), {})  # distributions derive from it, too
        given = {} if config.names_service() else {"service.name": service}
        configurator().configure(resource_attributes=given, setup_logging_handler=True, **exporters)
    except (ImportError, RuntimeError, ValueError) as error:
        raise InvalidInputError(
            f"OpenTelemetry cannot be set up as the OTEL_… variables say: {error}. Install cellblock with the extra 'otel', "
            "or set OTEL_SDK_DISABLED=true"
        ) from error
    try:
        yield True
    finally:
        send_the_rest()


def send_the_rest() -> None:
    """Send unsent data for at most two seconds, and then stop: the SDK would try for 15 seconds."""
    found = (("opentelemetry.trace", "tracer"), ("opentelemetry.metrics", "meter"), ("opentelemetry._logs", "logger"))
    providers = [getattr(sys.modules[name], f"get_{kind}_provider")() for name, kind in found if name in sys.modules]
    threads = [threading.Thread(target=one.shutdown, daemon=True) for one in providers if hasattr(one, "shutdown")]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for one in providers:
        atexit.unregister(getattr(one, "shutdown", None))  # type: ignore[arg-type]


def _after_fork() -> None:
    FIGURES.lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
