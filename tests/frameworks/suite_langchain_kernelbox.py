"""`cellblock.compat.kernelbox`, by the real langchain-kernelbox, in fresh programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SWITCH = "import cellblock.compat.kernelbox; cellblock.compat.kernelbox.install()\n"


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions live in the programs of these tests."""
    monkeypatch.setenv("KERNELBOX_STORE_BACKEND", "memory")


def test_the_tool_runs_in_our_sessions() -> None:
    program = """
from langchain_kernelbox import KernelBoxTool
import kernelbox
tool = KernelBoxTool(session_id="of-this-test")
tool.invoke({"code": "x = 20"})
print(tool.invoke({"code": "x + 1"}))
print([record.name for record in __import__("cellblock").list_kernels()], kernelbox.destroy("of-this-test"))
"""
    assert printed(_SWITCH + program) == "RETURN VALUE:\n21\n['of-this-test'] True\n"


def test_the_tool_shows_output_errors_and_bash() -> None:
    program = """
from langchain_kernelbox import KernelBoxTool
tool = KernelBoxTool(session_id="of-this-test")
print(tool.invoke({"code": "print('hi')"}))
print(tool.invoke({"code": "echo $((1 + 1))", "language": "bash"}))
print(tool.invoke({"code": "1 / 0"}).splitlines()[0])
tool.destroy()
"""
    assert printed(_SWITCH + program) == "STDOUT:\nhi\n\nSTDOUT:\n2\n\nERROR: ZeroDivisionError: division by zero\n"


def test_a_switch_that_comes_too_late_is_an_error() -> None:
    program = f"""
import kernelbox
try:
    {_SWITCH.strip()}
except Exception as error:
    print(type(error).__name__, "before the module that imports it" in str(error))
"""
    assert printed(program) == "StateError True\n"
