"""What does not use the sessions of a cluster says so, if the settings name one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cellblock.cluster import local, opening
from cellblock.errors import DaemonError
from cellblock.fronts.cli import main


@pytest.mark.slow
def test_the_mcp_server_says_why_it_has_no_cluster() -> None:
    environment = {**os.environ, "CELLBLOCK_RAY_ADDRESS": "192.0.2.1:6379"}
    command = [sys.executable, "-m", "cellblock", "mcp"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert ended.returncode != 0
    assert "Ray" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nodes_that_somebody_else_has_ended_are_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `ray stop`, for example: the director cannot be asked, and what has started the nodes is still there."""
    ended: list[str] = []

    def unreachable(address: str) -> None:
        raise DaemonError(f"Ray does not answer at {address}")

    monkeypatch.setattr(opening, "open_director", unreachable)
    monkeypatch.setattr(local, "running_address", lambda: "127.0.0.1:1")
    monkeypatch.setattr(local, "stop_nodes", lambda: ended.append("nodes"))
    assert main(["cluster", "stop"]) == 0
    assert main(["cluster", "stop", "--address", "127.0.0.1:2"]) != 0
    assert ended == ["nodes"]
