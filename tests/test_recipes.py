"""The recipes that the other blocks of the documents do not run: an application with FastAPI, and fixtures of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_RECIPES = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()


def block(heading: str) -> str:
    """Return the first block of code below a heading."""
    found = re.search(r"```py(?:thon)?\n(.*?)^```", _RECIPES.partition(f"\n## {heading}\n")[2], re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_an_application_with_fastapi_runs_code() -> None:
    from starlette.testclient import TestClient

    names: dict[str, Any] = {}
    exec(compile(block("FastAPI"), "recipes.md", "exec", dont_inherit=True), names)
    with TestClient(names["app"]) as client:
        assert client.post("/run", json={"code": "import pandas\n1 + 1"}).json()["return_value"] == "2"
        assert client.post("/run", json={"code": "open('kept', 'w').close()"}).json()["status"] == "success"
        failed = client.post("/run", json={"code": "import os\nassert not os.listdir()\n1 / 0"}).json()
        assert (failed["status"], failed["error"]["ename"]) == ("error", "ZeroDivisionError")


@pytest.mark.slow
def test_fixtures_of_pytest_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "test_recipe.py").write_text(block("pytest"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recipe.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
