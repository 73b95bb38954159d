"""What does not use the sessions of a cluster says so, if the settings name one."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_mcp_server_says_why_it_has_no_cluster() -> None:
    environment = {**os.environ, "CELLBLOCK_RAY_ADDRESS": "192.0.2.1:6379"}
    command = [sys.executable, "-m", "cellblock", "mcp"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert ended.returncode != 0
    assert "Ray" in ended.stderr
    assert "Traceback" not in ended.stderr
