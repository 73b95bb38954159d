"""The base of generated modules. Where its modules are generated, tests/tools/apigen has the tests."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import pydantic
from cellblock.tools.calling.typed import ParamsModel

class Params(ParamsModel):
    path: str

try:
    Params(paths="a")
except pydantic.ValidationError as error:
    print(error)
"""


def test_errors_of_arguments_name_no_url() -> None:
    """In a process of its own, as pydantic decides before its first message in a process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert "Extra inputs are not permitted" in done.stdout
    assert "https://" not in done.stdout
