"""What does not use the sessions of a cluster says so, if the settings name one."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_mcp_server_refuses_a_cluster() -> None:
    environment = {**os.environ, "CELLBLOCK_RAY_ADDRESS": "192.0.2.1:6379"}
    command = [sys.executable, "-m", "cellblock", "mcp"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert ended.returncode != 0
    assert "the MCP server runs" in ended.stderr
    assert "192.0.2.1:6379" in ended.stderr
