"""Every example of docs/rest.md, run as it is shown."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from pathlib import Path

import pytest

from gateways import Gateway, token

pytestmark = pytest.mark.slow

TEXT = (Path(__file__).parents[3] / "docs" / "rest.md").read_text()


def test_the_commands_print_what_is_shown(gateway: Gateway) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "TOKEN": token("run")}
    for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = entry.partition("\n")
        asked = command.replace("http://127.0.0.1:8080", gateway.url)
        found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, env=environment)
        assert found.stdout.strip() == shown.strip(), command


def test_the_python_prints_what_is_shown(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```\n", TEXT, re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("TOKEN", token("run"))
    names: dict[str, object] = {}
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code.replace("http://127.0.0.1:8080", gateway.url), names)
        assert printed.getvalue() == shown
    assert blocks
