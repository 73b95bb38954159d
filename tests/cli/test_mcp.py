"""`cellblock mcp`: its options."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.cli import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workspace", "/none"], "there is no such directory"),
        (["--approve", "rules"], "--approve rules needs --rules FILE"),
        (["--approve", "sometimes"], "'sometimes' is not one of"),
        (["--transport", "http", "--host", "0.0.0.0", "--no-auth"], "only loopback addresses can be served"),
        (["--sandbox", "--no-sandbox"], "exclude each other"),
        (["--tool-server-port", "8900", "--workspace", "/none"], "--tool-server-port has no effect"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "cellblock", "mcp", "--workspace", str(tmp_path), "--transport", "http", "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert f"cannot listen at 127.0.0.1:{port}" in ended.stderr
