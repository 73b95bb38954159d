"""`cellblock.adapters.google_adk`, by a real `LlmAgent` and runner."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

from cellblock.adapters.google_adk import CellblockCodeExecutor
from cellblock.errors import InvalidInputError
from frameworks.document import check_agent


class Scripted(BaseLlm):
    """A model that says one text after the other."""

    texts: list[str]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=self.texts.pop(0))]))


@pytest.fixture
def executor() -> Iterator[CellblockCodeExecutor]:
    executor = CellblockCodeExecutor()
    yield executor
    executor.close()


def run(executor: CellblockCodeExecutor, code: str, number: str = "one", *files: File) -> Any:
    context: Any = SimpleNamespace(session=SimpleNamespace(id="of adk"))
    return executor.execute_code(context, CodeExecutionInput(code, [*files], number))


def test_the_agent_of_the_page() -> None:
    steps = ["```python\nn = 6 * 7\nprint(n)\n```", "```python\nprint(n + 1)\n```", "It is 43."]
    check_agent("Google ADK", model=Scripted(model="scripted", texts=steps))


def test_sessions_have_variables_and_files_of_their_own(executor: CellblockCodeExecutor) -> None:
    assert run(executor, "x = 1\nopen('a', 'w').close()").stderr == ""
    assert run(executor, "import os\nprint(x, os.listdir())").stdout == "1 ['a']"
    assert "NameError" in run(executor, "x", "two").stderr
    executor.end("one")
    assert "NameError" in run(executor, "x").stderr


def test_warnings_are_no_failure_and_failures_say_all(executor: CellblockCodeExecutor) -> None:
    warned = run(executor, "import sys\nprint('a', file=sys.stderr)\nprint('b')")
    assert (warned.stdout, warned.stderr) == ("a\nb", "")
    failed = run(executor, "import sys\nprint('a', file=sys.stderr)\nprint('b')\n1/0")
    assert failed.stdout == "b\n"
    assert failed.stderr.startswith("a\n")
    assert failed.stderr.endswith("ZeroDivisionError: division by zero")
    assert getattr(failed, "exit_code", 1) == 1


def test_files_go_in_and_pictures_come_out(executor: CellblockCodeExecutor) -> None:
    raw, coded = File("raw.bin", b"\xff\x00!"), File("coded.csv", base64.b64encode(b"a,b\n1,2\n").decode(), "text/csv")
    result = run(executor, "print(open('raw.bin', 'rb').read(), open('coded.csv').read())", "one", raw, coded)
    assert result.stdout == "b'\\xff\\x00!' a,b\n1,2"
    (picture,) = run(executor, "import PIL.Image\nPIL.Image.new('RGB', (1, 1))").output_files
    assert (picture.name, picture.mime_type, picture.content[:4]) == ("image-2-1.png", "image/png", b"\x89PNG")


def test_options_are_of_adk_or_of_sessions() -> None:
    executor = CellblockCodeExecutor(error_retry_attempts=5, timeout=1.5)
    assert executor.error_retry_attempts == 5
    assert executor.stateful
    try:
        assert "stopped at its deadline" in run(executor, "while True: pass").stderr
    finally:
        executor.close()
    with pytest.raises(InvalidInputError, match="working_dirr"):
        CellblockCodeExecutor(working_dirr="/tmp")
