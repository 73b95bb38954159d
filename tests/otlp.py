"""A receiver of OTLP, by OpenTelemetry's own messages: what a collector forwards, or programs send, is here to be looked at.

If ``otelcol`` is installed, programs send to that, which forwards to this.
"""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

COLLECTOR = shutil.which("otelcol") or next(
    (str(path) for path in [Path(__file__).parents[1] / "build/clients/otelcol/otelcol"] if path.exists()), None
)

_CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{otlphttp: {{endpoint: "{url}", retry_on_failure: {{enabled: false}}}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlphttp]}}
    metrics: {{receivers: [otlp], exporters: [otlphttp]}}
    logs: {{receivers: [otlp], exporters: [otlphttp]}}
"""


@dataclass(frozen=True)
class Span:
    """A span, as it was received."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Received:
    """What was received."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    logs: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """Text, attributes, trace."""
    raw: bytes = b""

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        """Take a message."""
        self.raw += body
        if path == "/v1/traces":
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _values(of_resource.resource.attributes)["service.name"]
                for of_scope in of_resource.scope_spans:
                    self.spans += [_span(service, one) for one in of_scope.spans]
        elif path == "/v1/metrics":
            for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for of_scope in of_resource.scope_metrics:
                    self.metrics.update({one.name: one for one in of_scope.metrics})
        elif path == "/v1/logs":
            for of_resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                for of_scope in of_resource.scope_logs:
                    for one in of_scope.log_records:
                        self.logs.append((one.body.string_value, _values(one.attributes), one.trace_id.hex()))


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in attributes}


def _span(service: str, one: Any) -> Span:
    ids = one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex()
    return Span(service, one.name, one.kind, *ids, one.status.code == 2, _values(one.attributes))


@contextmanager
def receiver() -> Iterator[Received]:
    """Receive at a port of its own, behind a collector if there is one. `url` is what programs send to."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # an exporter that is refused tries again only after a second

    server = Server(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        received.url = f"http://127.0.0.1:{server.server_port}"
        if COLLECTOR is None:
            yield received
        else:
            with _collector(COLLECTOR, received):
                yield received
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@contextmanager
def _collector(program: str, received: Received) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = _CONFIG.format(port=port, url=received.url)
    process = subprocess.Popen([program, f"--config=yaml:{config}"], stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, "the collector has ended"
                assert time.monotonic() < deadline, "the collector does not listen"
                time.sleep(0.02)
        received.url = f"http://127.0.0.1:{port}"
        yield
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Print what programs send, until Ctrl-C: a collector for a look."""
    with receiver() as received:
        print(f"export OTEL_EXPORTER_OTLP_ENDPOINT={received.url}", flush=True)
        shown = 0
        try:
            while True:
                for span in received.spans[shown:]:
                    print(f"{span.trace[:8]} {span.parent or '-':16} > {span.id} {span.service} {span.name} {span.attributes}")
                    shown += 1
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
