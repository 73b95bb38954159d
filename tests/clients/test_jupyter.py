"""Jupyter's own programs use cellblock: JupyterLab in a browser, nbclient, papermill, and the suite that tests kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import cellblock
from cellblock.fronts.jupyter import kernelspecs
from daemons import own_daemon
from gateways import own_gateway, token

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_daemon(tmp_path_factory.mktemp("daemon")):
        yield


def run(*command: object) -> str:
    """Run a program of this directory in a process of its own: these programs warn, and have a mind about event loops."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=110, check=False, cwd=HERE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_jupyterlab(tmp_path: Path) -> None:
    """A notebook is opened, run, plotted and interrupted, and a slider is moved."""
    with own_gateway() as gateway:
        run(HERE / "lab.py", gateway.url, token("run"), tmp_path)
    assert (tmp_path / "lab.png").stat().st_size > 10_000


@pytest.mark.parametrize("which", ["nbclient", "papermill"])
def test_programs_that_run_notebooks(tmp_path: Path, which: str) -> None:
    # The gateway client of jupyter_server sends no token with a WebSocket of these programs.
    with own_gateway(auth=False) as gateway:
        run(HERE / "runners.py", which, gateway.url, "", tmp_path)
    library: Any = nbformat  # without types, and not there when types are checked
    book = library.read(tmp_path / "out.ipynb", 4)
    outputs = {output.output_type: output for cell in book.cells for output in cell.get("outputs", [])}
    assert ("40" if which == "papermill" else "2") in outputs["execute_result"].data["text/plain"]
    shown = [output.data for cell in book.cells for output in cell.get("outputs", []) if output.output_type == "display_data"]
    assert "image/png" in shown[0]
    assert shown[-1]["text/plain"] == "'after'"
    assert cellblock.list_kernels() == []


def test_the_suite_for_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    kernelspecs.install({})
    assert "OK (skipped=1)" in run("-W", "ignore", "-m", "unittest", "kernel_suite")
