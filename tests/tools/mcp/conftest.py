"""Fixtures for tests of MCP servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "servers" / "hostile_web_server.py"


@pytest.fixture(scope="module")
def hostile_port() -> Iterator[int]:
    """The port of a server over HTTP that does all kinds of wrong, to each connection by itself."""
    with subprocess.Popen([sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()
