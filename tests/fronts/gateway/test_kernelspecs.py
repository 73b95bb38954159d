"""Which kernels Jupyter clients find and can start."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from cellblock.fronts.gateway import kernelspecs
from gateways import Gateway, token
from jupyter_clients import channels


def test_kernels_that_a_session_can_start_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {
        "bash": {"argv": ["python", "-m", "bash_kernel"], "display_name": "Bash", "language": "bash", "env": {"TOKEN": "x"}},
        "python3": {"argv": ["python", "-m", "ipykernel_launcher"], "display_name": "ipykernel", "language": "python"},
        "cellblock": {"argv": ["python", "-m", "cellblock.jupyter"], "display_name": "Sandboxed", "language": "python"},
        "list": [1],
    }
    for name, spec in specs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.json").write_text(json.dumps(spec))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "kernel.json").write_text("{")
    monkeypatch.setattr(kernelspecs, "find_spec", lambda name: name == "jupyter_client")
    found = kernelspecs.installed([tmp_path / "missing", tmp_path])
    assert found.keys() == {"python3", "bash"}
    assert found["bash"] == {"display_name": "Bash", "language": "bash", "metadata": {}}
    assert found["python3"]["display_name"] == "Python 3 (cellblock)"
    monkeypatch.setattr(kernelspecs, "find_spec", lambda _: None)
    assert kernelspecs.installed([tmp_path]).keys() == {"python3"}


@pytest.mark.clients
def test_a_kernel_of_another_language_answers_for_itself(gateway: Gateway, api: httpx.Client) -> None:
    assert api.get("/api/kernelspecs/bash").json()["spec"]["language"] == "bash"
    assert api.post("/api/kernels", json={"name": "cobol"}).status_code == 404
    kernel = api.post("/api/kernels", json={"name": "bash"}, timeout=90).json()
    assert kernel["name"] == "bash"
    with channels(gateway, token("admin"), kernel["id"]) as one:
        info = one.ask("kernel_info_request", {})
        assert (info["language_info"]["name"], info["implementation"]) == ("bash", "cellblock")
        assert one.ask("is_complete_request", {"code": "echo"})["status"] in ("complete", "unknown")
        assert "echo" in one.ask("complete_request", {"code": "ech", "cursor_pos": 3})["matches"]
        assert one.ask("inspect_request", {"code": "ls", "cursor_pos": 2})["status"] == "ok"
        assert one.ask("comm_info_request", {})["comms"] == {}
        reply = one.ask("execute_request", {"code": "echo $BASH_VERSION", "user_expressions": {"a": "1"}})
        assert reply["status"] == "ok"
    assert api.delete(f"/api/kernels/{kernel['id']}").status_code == 204
