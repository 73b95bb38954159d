"""What Prometheus collects."""

from __future__ import annotations

import re

import httpx
import pytest

from gateways import Gateway, token

pytestmark = pytest.mark.slow

_LABEL = '[a-z_]+="[^"]+"'
_SAMPLE = re.compile(rf"[a-z_]+(\{{{_LABEL}(,{_LABEL})*\}})? [0-9.e+-]+")


def unknown(metrics: str) -> int:
    """Return how many requests asked for what is not there."""
    found = re.search(r'cellblock_http_requests_total\{status="404"\} (\d+)', metrics)
    return int(found[1]) if found is not None else 0


def test_requests_and_sessions_are_counted(gateway: Gateway, api: httpx.Client) -> None:
    before = unknown(api.get("/metrics").text)
    api.post("/sessions/counted")
    api.post("/sessions/counted/execute", json={"code": "while True: pass", "timeout": 0.1})
    api.get("/nowhere")
    found = api.get("/metrics")
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = found.text.splitlines()
    assert all(line.startswith("# ") or _SAMPLE.fullmatch(line) for line in lines), lines
    assert 'cellblock_sessions{status="idle"} 1' in lines
    assert 'gen_ai_execute_tool_duration_seconds_count{gen_ai_tool_name="python",error_type="timeout"} 1' in lines
    assert "counted" not in found.text
    assert unknown(found.text) == before + 1
    assert "cellblock_http_requests_running 1" in lines
    counts = [int(line.rpartition(" ")[2]) for line in lines if line.startswith("cellblock_http_request_seconds_bucket")]
    assert counts == sorted(counts)
    assert f"cellblock_http_request_seconds_count {counts[-1]}" in lines
    with gateway.client(token("run", session="counted")) as one:
        assert one.get("/metrics").status_code == 403  # they are about all sessions
