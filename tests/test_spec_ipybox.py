"""What ipybox documents, run against cellblock: every example of its pages on code execution that needs no tools.

The examples stand here as documented, but for the name of the package. What cellblock does not have yet is listed in one
place, so that nothing is missing silently.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

from cellblock import ApprovalRequest, CodeExecutionChunk, CodeExecutionError, CodeExecutionResult, CodeExecutor
from clocks import Clock

pytestmark = pytest.mark.usefixtures("shared_host_kept_warm")

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


@pytest.fixture(autouse=True)
def in_its_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Images go to the current directory unless an example says otherwise."""
    monkeypatch.chdir(tmp_path)


# -- the examples ------------------------------------------------------------------------------------------------------


async def test_basic_execution() -> None:
    async with CodeExecutor() as executor:
        result = await executor.execute("print('hello world')")
        assert result.text == "hello world"


@pytest.mark.slow
async def test_stream_output_chunks() -> None:
    seen = []
    code = """
from time import sleep
print("chunk 1")
sleep(0.5)
print("chunk 2")
"""
    async with CodeExecutor() as executor:
        async for item in executor.stream(code, chunks=True):
            seen.append(type(item))
            match item:
                case CodeExecutionChunk():
                    assert item.text.strip() in ["chunk 1", "chunk 2"]
                case CodeExecutionResult():
                    assert item.text == "chunk 1\nchunk 2"
    assert seen == [CodeExecutionChunk, CodeExecutionChunk, CodeExecutionResult]


async def test_stream_without_chunks_yields_the_result_only() -> None:
    async with CodeExecutor() as executor:
        items = [item async for item in executor.stream("print('hello')")]
    assert [type(item) for item in items] == [CodeExecutionResult]


@pytest.mark.slow
async def test_capturing_plots() -> None:
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3], [1, 4, 9])
plt.show()
"""
    with tempfile.TemporaryDirectory() as images_dir:
        async with CodeExecutor(images_dir=Path(images_dir)) as executor:
            result = await executor.execute(code)
            assert len(result.images) == 1
            assert result.images[0].exists()
            assert result.images[0].suffix == ".png"


async def test_images_go_to_a_directory_called_images_by_default(tmp_path: Path) -> None:
    code = f"""
import base64
from IPython.display import Image
Image(base64.b64decode("{PIXEL}"))
"""
    async with CodeExecutor() as executor:
        result = await executor.execute(code)
    assert [path.parent for path in result.images] == [tmp_path / "images"]


@pytest.mark.slow
async def test_custom_timeouts() -> None:
    # set custom approval timeout, default is 60 seconds
    async with CodeExecutor(approval_timeout=10, approve_shell_cmds=True) as executor:
        with Clock() as clock:
            async with aclosing(executor.stream("!echo never")) as events:
                request = await anext(events)
                assert isinstance(request, ApprovalRequest)
                states = []
                for seconds in (9, 1.5):
                    await clock.advance(seconds)
                    states.append(request.state)
                assert states == ["pending", "withdrawn"]
                with pytest.raises(CodeExecutionError, match="no decision arrived within 10 s"):
                    await anext(events)
        # set custom execution timeout, default is 120 seconds
        with pytest.raises(TimeoutError, match=r"exceeded its timeout of 0\.20s"):
            async for _item in executor.stream("while True: pass", timeout=0.2):
                ...


@pytest.mark.slow
async def test_kernel_environment() -> None:
    async with CodeExecutor(kernel_env={"TEST_VAR": "test_val"}) as executor:
        result = await executor.execute("import os; print(os.environ['TEST_VAR'])")
        assert result.text == "test_val"


async def test_the_kernel_does_not_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_VAR", "of the parent")
    async with CodeExecutor() as executor:
        result = await executor.execute("import os; print(os.environ.get('TEST_VAR'))")
        assert result.text == "None"


@pytest.mark.slow
async def test_kernel_reset() -> None:
    async with CodeExecutor() as executor:
        await executor.execute("x = 42")
        result = await executor.execute("print(x)")
        assert result.text == "42"

        await executor.reset()

        code = """
    try:
        print(x)
    except NameError:
        print("x not defined")
    """
        result = await executor.execute(code)
        assert result.text == "x not defined"


async def test_working_directory() -> None:
    async with CodeExecutor() as executor:
        import os

        result = await executor.execute("import os; print(os.getcwd())")
        assert result.text == os.getcwd()


# -- errors and timeouts -----------------------------------------------------------------------------------------------


async def test_code_that_fails_raises_an_error_with_the_stack_trace_in_its_message() -> None:
    async with CodeExecutor() as executor:
        with pytest.raises(CodeExecutionError) as caught:
            await executor.execute("def f():\n    return 1 / 0\n\nf()")
    message = str(caught.value)
    assert "Traceback" in message
    assert "----> 4 f()" in message
    assert "return 1 / 0" in message
    assert message.rstrip().endswith("ZeroDivisionError: division by zero")


async def test_code_that_cannot_be_parsed_raises_the_same_error() -> None:
    async with CodeExecutor() as executor:
        with pytest.raises(CodeExecutionError, match="SyntaxError"):
            await executor.execute("1 +")


async def test_stream_raises_the_same_error_after_the_chunks() -> None:
    seen: list[object] = []

    async def consume(executor: CodeExecutor) -> None:
        async for item in executor.stream("print('before')\nraise ValueError('late')", chunks=True):
            seen.append(item)

    async with CodeExecutor() as executor:
        with pytest.raises(CodeExecutionError, match="ValueError: late"):
            await consume(executor)
    assert seen == [CodeExecutionChunk("before\n", "stdout")]


async def test_code_that_exceeds_its_timeout_raises_a_timeout_error() -> None:
    async def consume(executor: CodeExecutor) -> None:
        async for _ in executor.stream("import time; time.sleep(60)", timeout=0.1):
            pass

    async with CodeExecutor() as executor:
        with pytest.raises(TimeoutError):
            await executor.execute("import time; time.sleep(60)", timeout=0.1)
        with pytest.raises(TimeoutError):
            await consume(executor)
        assert (await executor.execute("'next'")).text == "'next'"


async def test_cancel_from_another_task_ends_a_stream_without_an_error() -> None:
    started = asyncio.Event()

    async def consume(executor: CodeExecutor) -> list[type]:
        seen = []
        async for item in executor.stream("print('started')\nwhile True: pass", chunks=True):
            started.set()
            seen.append(type(item))
        return seen

    async with CodeExecutor() as executor:
        task = asyncio.create_task(consume(executor))
        await started.wait()
        executor.cancel()  # not awaited, as documented
        assert set(await task) == {CodeExecutionChunk}, "a stream that was cancelled has no result"


# -- signatures --------------------------------------------------------------------------------------------------------


def _parameters(function: object, *, without: tuple[str, ...] = ("self",)) -> list[tuple[str, object]]:
    """Positional parameters and their defaults."""
    return [
        (parameter.name, parameter.default)
        for parameter in inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # any callable
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in without
    ]


def test_the_constructor_takes_what_ipybox_takes_in_that_order() -> None:
    assert _parameters(CodeExecutor) == [
        ("tool_server_host", "localhost"),
        ("tool_server_port", None),
        ("kernel_gateway_host", "localhost"),
        ("kernel_gateway_port", None),
        ("kernel_env", None),
        ("working_dir", None),
        ("images_dir", None),
        ("approval_timeout", 60),
        ("connect_timeout", 30),
        ("kernel_init_timeout", None),
        ("sandbox", True),  # documented as False: see docs/decisions/0013-sandboxed-by-default.md
        ("sandbox_config", None),
        ("log_level", "WARNING"),
        ("approve_tool_calls", True),
        ("approve_shell_cmds", False),
        ("require_shell_escape", False),
    ]


def test_the_constructor_takes_all_of_it_by_position() -> None:
    CodeExecutor(
        "localhost",
        None,
        "localhost",
        None,
        {"A": "b"},
        Path(),
        Path("images"),
        60,
        30,
        10,
        False,
        None,
        "INFO",
        True,
        False,
        False,
    )


def test_the_methods_take_what_is_documented() -> None:
    empty = inspect.Parameter.empty
    assert _parameters(CodeExecutor.execute) == [("code", empty), ("timeout", 120)]
    assert _parameters(CodeExecutor.stream) == [("code", empty), ("timeout", 120), ("chunks", False)]
    assert all(not _parameters(method) for method in (CodeExecutor.reset, CodeExecutor.start, CodeExecutor.stop))
    assert all(
        inspect.iscoroutinefunction(method)
        for method in (CodeExecutor.execute, CodeExecutor.reset, CodeExecutor.start, CodeExecutor.stop)
    )
    assert inspect.isasyncgenfunction(CodeExecutor.stream)


def test_results_and_chunks_can_be_made_and_matched() -> None:
    image = Path("images/plot.png")
    for result in (CodeExecutionResult(text="hello", images=[image]), CodeExecutionResult("hello", [image])):
        match result:
            case CodeExecutionResult(text=text, images=[path]):
                assert (text, path) == ("hello", image)
            case _:
                raise AssertionError(result)
        match result:
            case CodeExecutionResult("hello", [path]):
                assert path == image
            case _:
                raise AssertionError(result)
    match CodeExecutionChunk(text="a"):
        case CodeExecutionChunk("a"):
            pass
        case chunk:
            raise AssertionError(chunk)


def test_errors_are_what_the_documents_say() -> None:
    assert issubclass(CodeExecutionError, Exception)
    assert not issubclass(CodeExecutionError, TimeoutError)
    assert str(CodeExecutionError("as documented")) == "as documented"


@pytest.mark.slow
async def test_text_is_none_without_output_and_stripped_with_it() -> None:
    async with CodeExecutor() as executor:
        assert (await executor.execute("x = 1")).text is None
        assert (await executor.execute("print('\\n\\nhello  \\n\\n')")).text == "hello"
        assert (await executor.execute("print()")).text == ""


# -- the sandbox -------------------------------------------------------------------------------------------------------

DEFAULT_CONFIG = """
{
  "enableWeakerNestedSandbox": false,
  "filesystem": {
    "denyRead": [".env"],
    "allowWrite": [".", "~/Library/Jupyter", "~/.ipython"],
    "denyWrite": []
  },
  "network": {"allowedDomains": [], "deniedDomains": [], "allowLocalBinding": true}
}
"""


async def test_the_default_sandbox_runs_code_and_blocks_the_internet(tmp_path: Path) -> None:
    async with CodeExecutor(sandbox=True, working_dir=tmp_path) as executor:
        result = await executor.execute("print('hello world')")
        assert result.text == "hello world"

        code = """
        import requests
        try:
            requests.get('https://example.org')
        except Exception as e:
            print(e)
        """
        # Default sandbox config blocks internet access
        result = await executor.execute(code)
        assert "Failed to resolve 'example.org'" in (result.text or "")


@pytest.mark.slow
async def test_the_documented_default_configuration_means_what_it_says(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET=1")
    (tmp_path / "sandbox.json").write_text(DEFAULT_CONFIG)
    with pytest.warns(UserWarning, match="code can read every file that this user can read, except .env"):
        made = CodeExecutor(sandbox=True, sandbox_config=tmp_path / "sandbox.json", working_dir=tmp_path)
    async with made as executor:
        result = await executor.execute("open('made', 'w').write('x'); open('/etc/hostname').read()")
        assert result.ok
        assert (tmp_path / "made").exists()
        for code, refused in (("open('.env').read()", "PermissionError"), ("open('/etc/made', 'w')", "Read-only file system")):
            with pytest.raises(CodeExecutionError, match=refused):
                await executor.execute(code)


@pytest.mark.slow
async def test_no_port_is_open_while_an_executor_runs() -> None:
    def listening() -> list[str]:
        inodes = set()
        for table in ("tcp", "tcp6"):
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            inodes |= {line.split()[9] for line in lines if line.split()[3] == "0A"}
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found.append(os.readlink(entry))
            except OSError:
                continue
        return [target for target in found if target.startswith("socket:") and target[8:-1] in inodes]

    async with CodeExecutor() as executor:
        assert (await executor.execute("1")).ok
        assert listening() == []
