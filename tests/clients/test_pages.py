"""Swagger UI and ReDoc in a browser that reaches nothing but the gateway."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from daemons import own_daemon
from gateways import own_gateway

pytestmark = pytest.mark.clients


def test_the_pages_show_the_api_without_the_internet(tmp_path: Path) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None
    with own_daemon(tmp_path), own_gateway() as gateway:
        for page, shown in (("docs", "opblock-summary"), ("redoc", "operation/")):
            # Its own directory, because sockets in it need a short path.
            with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:
                browser = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={short}"]
                offline = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=20000"]
                done = subprocess.run(
                    [*browser, *offline, "--dump-dom", f"{gateway.url}/{page}"],
                    capture_output=True,
                    text=True,
                    timeout=100,
                    env={"HOME": short, "PATH": "/usr/bin:/bin"},
                )
            assert shown in done.stdout, done.stderr
