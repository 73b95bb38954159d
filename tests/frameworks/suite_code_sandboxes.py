"""`cellblock.adapters.code_sandboxes`, as code-sandboxes describes sandboxes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from code_sandboxes import exceptions
from code_sandboxes.models import Context, SandboxConfig

from cellblock import SyncCodeExecutor
from cellblock.adapters.code_sandboxes import CellblockSandbox
from frameworks.document import check_agent


@pytest.fixture
def sandbox() -> Iterator[CellblockSandbox]:
    with CellblockSandbox() as sandbox:
        yield sandbox


def test_the_program_of_the_page() -> None:
    check_agent("code-sandboxes")


def test_results_have_what_was_shown_and_said(sandbox: CellblockSandbox) -> None:
    done = sandbox.run_code("import sys\nprint('a', end='')\nprint('b\\n\\nc')\nprint('e', file=sys.stderr)\n40 + 2")
    assert (done.success, done.text, done.stdout, done.stderr) == (True, "42", "ab\n\nc", "e")
    assert (done.context_id, done.execution_count) == ("default", 1)
    shown = sandbox.run_code(
        "import PIL.Image\nfrom IPython.display import JSON, display\ndisplay(JSON({'a': [1]}))\nPIL.Image.new('RGB', (1, 1))"
    )
    assert shown.results[0].json == {"a": [1]}
    assert base64.b64decode(shown.results[1].png).startswith(b"\x89PNG")
    assert [one.is_main_result for one in shown.results] == [False, True]


def test_how_code_ends(sandbox: CellblockSandbox) -> None:
    heard: list[Any] = []
    failed = sandbox.run_code("1 / 0", on_error=heard.append)
    assert (failed.success, failed.execution_ok, failed.code_error.name) == (False, True, "ZeroDivisionError")
    assert heard == [failed.code_error]
    assert [sandbox.run_code(f"raise SystemExit({code})").exit_code for code in ("3", "'no'")] == [3, 1]
    stopped = sandbox.run_code("while True: pass", timeout=0.5)
    assert (stopped.execution_ok, stopped.code_error) == (False, None)
    died = sandbox.run_code("import os; os.kill(os.getpid(), 9)")
    assert (died.execution_ok, died.code_error) == (False, None)
    assert sandbox.run_code("6 * 7").text == "42"
    for wrong in ({"language": "r"}, {"envs": {"A": "b"}}):
        with pytest.raises(ValueError, match="session"):
            sandbox.run_code("1", **wrong)


def test_handlers_hear_while_the_code_runs_and_may_stop_it(sandbox: CellblockSandbox) -> None:
    said: list[str] = []
    shown: list[Any] = []

    def heard(message: Any) -> None:
        said.append(message.line)
        assert sandbox.is_executing
        if message.line == "two":
            assert sandbox.interrupt()

    code = "import time\ndisplay(1)\nprint('one')\nprint('two')\nwhile True: time.sleep(0.01)"
    done = sandbox.run_code(code, on_stdout=heard, on_result=shown.append)
    assert (said, [one.text for one in shown]) == (["one", "two"], ["1"])
    assert (done.interrupted, done.code_error.name) == (True, "KeyboardInterrupt")
    assert not sandbox.interrupt()


def test_variables_files_and_commands(sandbox: CellblockSandbox) -> None:
    sandbox.set_variables({"x": {"a": [1, None]}, "y": "text"})
    assert sandbox.get_variable("x['a']") == [1, None]
    with pytest.raises(exceptions.VariableNotFoundError):
        sandbox.get_variable("nothing")
    sandbox.files.write_bytes("a/b.bin", b"\x00\xff")
    assert sandbox.files.read_bytes("a/b.bin") == b"\x00\xff"
    assert [one.name for one in sandbox.files.list("a")] == ["b.bin"]
    sandbox.run_code("import subprocess\nsubprocess.run = subprocess.Popen = lambda *a, **k: None")
    done = sandbox.commands.run("echo $A; pwd; echo e >&2; exit 3", cwd="/", env={"A": "b"})
    assert (done.exit_code, done.stdout, done.stderr) == (3, "b\n/\n", "e\n")
    assert sandbox.commands.run("echo 'a b'", shell=False).stdout == "a b\n"
    late = sandbox.commands.run("echo out; sleep 60", timeout=0.5)
    assert (late.exit_code, late.stdout) == (-1, "out\n")
    assert "0.5 s" in late.stderr


def test_a_tool_caller_runs_here_and_outlives_the_kernel(sandbox: CellblockSandbox) -> None:
    async def caller(tool_name: str, arguments: dict[str, Any]) -> Any:
        return {"tool": tool_name, **arguments}

    sandbox.register_tool_caller(caller)
    call = "(await __call_tool__('shop__price', {'item': 'tea'}))['item']"
    assert sandbox.run_code(call).text == "'tea'"
    sandbox.run_code("import os; os.kill(os.getpid(), 9)")
    assert sandbox.run_code(call).text == "'tea'"


def test_what_a_configuration_means() -> None:
    with CellblockSandbox(SandboxConfig(env_vars={"A": "b"}, timeout=0.5)) as sandbox:
        assert sandbox.run_code("import os; os.environ['A']").text == "'b'"
        assert not sandbox.run_code("while True: pass").execution_ok
        assert sandbox.create_context() == sandbox.create_context("default")
        with pytest.raises(exceptions.SandboxConfigurationError):
            sandbox.create_context("other")
        with pytest.raises(exceptions.ContextNotFoundError):
            sandbox.run_code("1", context=Context(id="other"))
    with pytest.raises(exceptions.SandboxNotStartedError):
        sandbox.run_code("1")
    for wrong in ({"gpu": "T4"}, {"memory_limit": 1}, {"cpu_limit": 1.0}):
        with pytest.raises(exceptions.SandboxConfigurationError):
            CellblockSandbox(SandboxConfig(**wrong))


def test_a_given_executor_stays_its_owners() -> None:
    with SyncCodeExecutor(working_dir=".") as executor:
        with CellblockSandbox(executor=executor) as sandbox:
            assert sandbox.run_code("x = 1\nx").text == "1"
        assert executor.execute("x").text == "1"
