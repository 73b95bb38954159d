"""What all processes of cellblock tell an OpenTelemetry collector, and what Prometheus collects."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from websockets.sync.client import connect

from cellblock import generate_mcp_sources
from daemons import own_daemon
from gateways import Gateway, own_gateway, token
from mcp_clients import PATIENT
from otlp import COLLECTOR, Received, Span, receiver
from processes import eventually
from suite import SUMMARY
from tool_sessions import ASK, desk, register

pytestmark = pytest.mark.slow

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
COMMAND = Path(sys.executable).parent / "cellblock"
PARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=value"}
CODE = """
import os
from mcptools.desk import trace
print("secret output", os.environ["TRACEPARENT"], trace.run(trace.Params()))
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Received]:
    """What a collector gets from everything that is started meanwhile."""
    with receiver() as received, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        for name, milliseconds in (("BSP_SCHEDULE_DELAY", 50), ("BLRP_SCHEDULE_DELAY", 50), ("METRIC_EXPORT_INTERVAL", 200)):
            patch.setenv(f"OTEL_{name}", str(milliseconds))
        yield received


@pytest.fixture(scope="module")
def gateway(collected: Received, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
        yield made


@pytest.fixture
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client(token("admin")) as client:
        yield client


async def one(received: Received, name: str, **attributes: Any) -> Span:
    """Return the span of a name and some attributes, as soon as it has come."""

    def found() -> list[Span]:
        wanted = attributes.items()
        return [span for span in [*received.named(name)] if all(span.attributes.get(key) == value for key, value in wanted)]

    first: Span = (await eventually(found, 20))[0]
    return first


def test_the_collector(record_property: Callable[[str, object], None]) -> None:
    """The run says whether a real collector was in between."""
    record_property(SUMMARY, f"OpenTelemetry's collector: {COLLECTOR or 'not installed, so tests/otlp.py took its place'}")


async def test_a_trace_goes_from_a_request_to_the_tool_that_its_code_calls(
    api: httpx.Client, collected: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_SECRET", "12345")
    here = Path.cwd()
    await generate_mcp_sources("desk", desk(tmp_path / "notes") | {"env": {}}, here / "mcptools")
    kernel = api.post("/sessions/traced", json={"options": {"approve_tool_calls": False}}).json()["kernel_id"]
    answer = api.post("/sessions/traced/execute", json={"code": CODE}, headers=PARENT).json()
    assert answer["status"] == "success", answer
    assert "vendor" not in answer["text"]
    _, _, in_code, in_tool = answer["text"].split()

    start = await one(collected, "cellblock.session", **{"cellblock.session": kernel})
    request = await one(collected, "POST /sessions/{session}/execute", **{"http.response.status_code": 200})
    cell = await one(collected, "execute_tool python", **{"cellblock.session": kernel})
    call = await one(collected, "tools/call trace", **{"cellblock.session": kernel})
    assert (request.trace, request.parent, request.kind, request.service) == (TRACE, CALLER, 2, "cellblock-gateway")
    assert (cell.trace, cell.parent, cell.service) == (TRACE, request.id, "cellblock-daemon")
    assert (call.trace, call.parent, call.kind) == (TRACE, cell.id, 3)
    assert start.attributes["cellblock.isolate"] == "native"
    assert start.trace != TRACE
    assert in_code.split("-")[1:3] == [TRACE, cell.id]
    assert in_tool.split("-")[1] == TRACE  # of the call's span, or of the MCP SDK's below it
    assert not call.failed
    found = call.attributes
    assert (
        found["mcp.method.name"],
        found["gen_ai.operation.name"],
        found["gen_ai.tool.name"],
        found["cellblock.server"],
    ) == (*("tools/call", "execute_tool", "trace", "desk"),)
    assert b"secret output" not in collected.raw
    assert b"mcptools.desk" not in collected.raw


async def test_what_was_asked_and_refused(api: httpx.Client, collected: Received) -> None:
    options = {"approve_shell_cmds": True, "allow_hosts": ["allowed.invalid"]}
    kernel = api.post("/sessions/asking", json={"options": options}).json()["kernel_id"]
    reach = "try:\n    urllib.request.urlopen('http://other.invalid')\nexcept OSError:\n    pass"
    code = f"!echo done\nimport urllib.request\n{reach}"
    number = api.post("/sessions/asking/executions", json={"code": code}).json()["id"]

    def pending() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.get("/approvals").json()["pending"]
        return found

    (waiting,) = await eventually(pending)
    assert api.post("/approvals", json={"ids": [waiting["id"]], "allow": True}).is_success
    cell = await one(collected, "execute_tool python", **{"cellblock.cell": number})
    assert cell.attributes["cellblock.session"] == kernel
    wait = await one(collected, "cellblock.approval", **{"cellblock.approval.kind": "shell"})
    assert wait.attributes["cellblock.approval.outcome"] == "allow"
    assert wait.attributes["cellblock.approval.by"] == "person: test"  # the token's name
    refused = await one(collected, "cellblock.egress", **{"server.address": "other.invalid"})
    assert refused.failed
    assert refused.attributes["error.type"] == "refused"
    assert wait.parent == refused.parent == cell.id


async def test_programs_checkpoints_and_the_way_back(api: httpx.Client, collected: Received) -> None:
    api.post("/sessions/back")
    api.post("/sessions/back/execute", json={"code": "x = 1"})
    assert api.post("/sessions/back/exec", json={"command": ["true"]}).json()["exit_code"] == 0
    assert api.post("/sessions/back/checkpoints", json={"name": "here"}).is_success
    assert api.post("/sessions/back/undo", json={}).is_success
    for name in ("execute_tool exec", "cellblock.checkpoint", "cellblock.undo"):
        assert (await one(collected, name)).service == "cellblock-daemon"


async def test_the_command_line_continues_the_trace_of_its_environment(gateway: Gateway, collected: Received) -> None:
    trace = "1" * 32
    environment = os.environ | {"TRACEPARENT": f"00-{trace}-{CALLER}-01"}
    done = subprocess.run([COMMAND, "exec", "shell", "6 * 7"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
    await eventually(lambda: [span for span in collected.named("execute_tool python") if span.trace == trace], 20)
    (cell,) = [span for span in collected.named("execute_tool python") if span.trace == trace]
    assert cell.parent == CALLER


def execute_request(code: str, **metadata: Any) -> dict[str, Any]:
    """Return a message of a Jupyter client."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    return {"channel": "shell", "header": header, "parent_header": {}, "metadata": metadata, "content": content}


async def test_jupyters_messages_continue_traces(api: httpx.Client, gateway: Gateway, collected: Received) -> None:
    kernel = api.post("/sessions/jupyter").json()["kernel_id"]
    url = f"{gateway.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?token={token('run')}"
    opened, sent = "3" * 32, "4" * 32
    headers = {"traceparent": f"00-{opened}-{CALLER}-01"}
    with connect(url, additional_headers=headers) as socket:
        for code, more in (
            ("'opened'", {}),
            ("'sent'", {"traceparent": f"00-{sent}-{CALLER}-01"}),
            ("'none'", {"traceparent": 1}),
        ):
            socket.send(json.dumps(execute_request(code, **more)))
            while json.loads(socket.recv(20))["msg_type"] != "execute_reply":
                pass
        cells = {}
        for number in (1, 2, 3):
            wanted = {"cellblock.session": kernel, "cellblock.execution_count": number}
            cells[number] = await one(collected, "execute_tool python", **wanted)
    connection = await one(collected, "GET /api/kernels/{kernel}/channels")
    assert (connection.trace, connection.parent) == (opened, CALLER)
    assert (cells[1].trace, cells[1].parent) == (opened, connection.id)
    assert (cells[2].trace, cells[2].parent) == (sent, CALLER)
    assert (cells[3].trace, cells[3].parent) == (opened, connection.id)


LOCAL = """
import sys
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

file, traceparent = sys.argv[1:]
manager = KernelManager(kernel_name="", connection_file=file)
manager._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "cellblock.jupyter", "-f", "{connection_file}"])
manager.start_kernel()
client = manager.blocking_client()
try:
    client.start_channels()
    client.wait_for_ready(20)
    message = client.session.msg("execute_request", {"code": "8", "silent": False, "allow_stdin": False})
    message["metadata"] = {"traceparent": traceparent}
    client.shell_channel.send(message)
    print(client.get_shell_msg(timeout=20)["content"]["status"])
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""
"""A client of a local kernel, in a process of its own: it leaves an event loop behind."""


@pytest.mark.clients
async def test_a_local_kernel_of_jupyter_hands_traces_on(gateway: Gateway, collected: Received, tmp_path: Path) -> None:
    """The kernel's process does not trace; the daemon does."""
    trace = "5" * 32
    command = [sys.executable, "-c", LOCAL, str(tmp_path / "connection.json"), f"00-{trace}-{CALLER}-01"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "ok\n"
    await eventually(lambda: [span for span in collected.named("execute_tool python") if span.trace == trace], 20)
    (cell,) = [span for span in collected.named("execute_tool python") if span.trace == trace]
    assert (cell.parent, cell.service) == (CALLER, "cellblock-daemon")


async def test_a_question_of_a_server_is_a_step_of_its_cell(api: httpx.Client, collected: Received, tmp_path: Path) -> None:
    register(tmp_path)
    options = {"working_dir": str(tmp_path), "approval_timeout": 60}
    api.post("/sessions/questions", json={"options": options})
    number = api.post("/sessions/questions/executions", json={"code": ASK}).json()["id"]

    def pending(kind: str) -> list[dict[str, Any]]:
        return [one for one in api.get("/approvals").json()["pending"] if one["kind"] == kind]

    (call,) = await eventually(lambda: pending("tool"))
    api.post("/approvals", json={"ids": [call["id"]], "allow": True})
    (question,) = await eventually(lambda: pending("question"))
    (field,) = question["arguments"]["schema"]["properties"]
    assert api.post("/approvals", json={"ids": [question["id"]], "allow": True, "answer": {field: True}}).json()["decided"]
    asked = await one(collected, "elicitation/create")
    cell = await one(collected, "execute_tool python", **{"cellblock.cell": number})
    assert (asked.parent, asked.kind, asked.service) == (cell.id, 2, "cellblock-daemon")
    told = asked.attributes
    assert (told["mcp.method.name"], told["cellblock.server"]) == ("elicitation/create", "bad")
    assert told["cellblock.approval.outcome"] == "allow"
    assert b"May I?" not in collected.raw


async def test_metrics_and_logs(api: httpx.Client, collected: Received) -> None:
    kernel = api.post("/sessions/logged").json()["kernel_id"]
    number = api.post("/sessions/logged/executions", json={"code": "1 / 0"}).json()["id"]
    cell = await one(collected, "execute_tool python", **{"cellblock.cell": number})
    assert cell.attributes["error.type"] == "error"
    wanted = {"gen_ai.execute_tool.duration", "cellblock.sessions", "cellblock.session.creation.duration", "cellblock.memory"}
    await eventually(lambda: wanted <= set(collected.metrics), 20)
    points = collected.metrics["gen_ai.execute_tool.duration"].histogram.data_points
    await eventually(lambda: points, 20)
    assert {attribute.key for point in points for attribute in point.attributes} <= {"gen_ai.tool.name", "error.type"}
    ids = {"cellblock.session": kernel, "cellblock.cell": number}

    def logged() -> list[str]:
        return [
            trace
            for text, attributes, trace in [*collected.logs]
            if "cell ended" in text and ids.items() <= attributes.items()
        ]

    assert (await eventually(logged, 20))[0] == cell.trace


async def test_the_mcp_server_continues_the_trace_of_a_call(collected: Received, tmp_path: Path) -> None:
    trace = "2" * 32
    meta: Any = {"traceparent": f"00-{trace}-{CALLER}-01"}
    command = StdioServerParameters(command=str(COMMAND), args=["mcp", "--workspace", str(tmp_path)], env=dict(os.environ))
    async with Client(command, client_info=PATIENT) as client:
        await client.call_tool("execute_ipython_cell", {"code": "7"}, meta=meta)
    served = await one(collected, "tools/call execute_ipython_cell")

    def found() -> list[Span]:
        return [span for span in [*collected.named("execute_tool python")] if span.trace == trace]

    (cell,) = await eventually(found, 20)
    assert (served.trace, served.service) == (trace, "cellblock-mcp")
    assert cell.parent == served.id


PROMETHEUS = shutil.which("prometheus") or str(Path(__file__).parents[1] / "build/clients/prometheus/usr/bin/prometheus")


@pytest.mark.clients
async def test_prometheus_collects_what_the_gateway_counts(api: httpx.Client, gateway: Gateway, tmp_path: Path) -> None:
    api.post("/sessions/counted")
    api.post("/sessions/counted/execute", json={"code": "1"})
    scrape = {
        "job_name": "cellblock",
        "authorization": {"credentials": token("read")},
        "static_configs": [{"targets": [gateway.url.removeprefix("http://")]}],
    }
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen([PROMETHEUS, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def asked(query: str) -> list[Any]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
        except httpx.TransportError:
            assert process.poll() is None
            return []
        found: list[Any] = answer.json()["data"]["result"] if answer.is_success else []
        return found

    try:
        (up,) = await eventually(lambda: [one for one in asked("up") if one["value"][1] == "1"], 60)
        assert up["metric"]["job"] == "cellblock"
        (count,) = await eventually(
            lambda: asked('gen_ai_execute_tool_duration_seconds_count{gen_ai_tool_name="python",error_type=""}')
        )
        assert int(count["value"][1]) >= 1
        (quickly,) = asked("histogram_quantile(0.5, sum by (le) (gen_ai_execute_tool_duration_seconds_bucket))")
        assert 0 < float(quickly["value"][1]) < 60
        assert asked('cellblock_sessions{status="idle"}')
        assert asked("cellblock_memory_bytes")
        assert asked("cellblock_http_requests_total")
    finally:
        process.terminate()
        process.wait(30)
