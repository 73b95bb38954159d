"""What the OpenAPI document says is true: schemathesis makes thousands of requests from it, and nothing contradicts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateways import Gateway, token

_SETTINGS = """
[checks.positive_data_acceptance]
# What a schema allows can still make no sense: a cursor beyond the end of the code, a name with a line break.
expected-statuses = ["2xx", "304", "401", "403", "404", "409", "416", "422", "429", "501", "502", "503"]

[checks.negative_data_rejection]
# What is too long for a field may be too long for the whole body.
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
"""


def test_the_document_is_complete(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/health"]["get"]["security"] == []
    documented = {"/kernels", "/kernels/{session}/execute", "/kernels/{session}/execute/retry", "/sessions/{session}/execute"}
    assert documented <= document["paths"].keys()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert "default" in operation["responses"], path


def test_all_methods_of_a_path_are_named(api: httpx.Client) -> None:
    assert api.request("OPTIONS", "/kernels/a").headers["allow"] == "DELETE, GET"
    assert api.patch("/sessions/a/executions").headers["allow"] == "GET, POST"


@pytest.mark.clients
@pytest.mark.timeout(280)
def test_nothing_contradicts_the_document(gateway: Gateway, api: httpx.Client, tmp_path: Path) -> None:
    api.post("/sessions/0")
    (tmp_path / "schemathesis.toml").write_text(_SETTINGS)
    program = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(tmp_path / "schemathesis.toml")]
    asked = ["run", f"{gateway.url}/openapi.json", "-H", f"Authorization: Bearer {token('admin')}", "--max-examples", "5"]
    # What follows all sessions never ends, and would be read for minutes: test_overview.py.
    more = ["--exclude-path-regex", "^/(api|events$)", "--no-color", "--generation-deterministic"]
    found = subprocess.run([*program, *asked, *more], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]
