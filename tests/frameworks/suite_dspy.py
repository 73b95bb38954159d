"""`cellblock.adapters.dspy`, as a `CodeInterpreter` and by a real `RLM`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreter, CodeInterpreterError, FinalOutput
from dspy.utils.dummies import DummyLM

from cellblock.adapters.dspy import CellblockInterpreter
from frameworks.document import check_agent


@pytest.fixture
def interpreter() -> Iterator[CellblockInterpreter]:
    interpreter = CellblockInterpreter({"add": lambda a, b=1: a + b})
    yield interpreter
    interpreter.shutdown()


def test_the_agent_of_the_page() -> None:
    steps = [
        {"reasoning": "I look it up.", "code": "price = price_of('tea')\nprint(price)"},
        {"reasoning": "I know it.", "code": "SUBMIT(price * 2)"},
    ]
    check_agent("DSPy", lm=DummyLM(steps))


def test_a_sub_model_is_asked_from_the_code() -> None:
    steps = [
        {"reasoning": "r", "code": "said = llm_query('how?')"},
        {"response": "fine"},
        {"reasoning": "r", "code": "SUBMIT(said)"},
    ]
    with dspy.context(lm=DummyLM(steps)):
        assert "fine" in dspy.RLM("question -> answer", interpreter_factory=CellblockInterpreter)(question="?").answer


def test_it_is_an_interpreter_as_dspy_describes_it(interpreter: CellblockInterpreter) -> None:
    assert isinstance(interpreter, CodeInterpreter)
    interpreter.start()
    interpreter.start()
    assert interpreter.execute("x = add(1, b=2)\nprint(x)") == "3"
    assert interpreter.execute("x") == 3
    assert interpreter.execute("y", {"y": {"a": [1, None, "ü"]}}) == {"a": [1, None, "ü"]}
    assert interpreter.execute("pass") is None


def test_submit_ends_the_cell_with_the_fields(interpreter: CellblockInterpreter) -> None:
    assert interpreter.execute("SUBMIT({'a': 1})\nraise SystemExit") == FinalOutput({"output": {"a": 1}})
    interpreter.output_fields = [{"name": "answer"}, {"name": "count", "type": "int"}]
    assert interpreter.execute("SUBMIT('yes', count=2)") == FinalOutput({"answer": "yes", "count": 2})
    for wrong in ("SUBMIT('yes')", "SUBMIT(1, 2, 3)", "SUBMIT('a', answer='b')", "SUBMIT('a', other=1)"):
        with pytest.raises(CodeExecutionError, match="SUBMIT takes answer, count"):
            interpreter.execute(wrong)


def test_errors_are_of_three_kinds(interpreter: CellblockInterpreter) -> None:
    with pytest.raises(SyntaxError):
        interpreter.execute("1 +")
    with pytest.raises(CodeExecutionError, match="ZeroDivisionError: division by zero"):
        interpreter.execute("z = 5\n1 / 0")
    assert interpreter.execute("z") == 5
    for _ in range(2):
        with pytest.raises(CodeInterpreterError, match="process ended") as raised:
            interpreter.execute("import os; os._exit(3)")
        assert not isinstance(raised.value, CodeExecutionError)
    with pytest.raises(CodeInterpreterError, match="process ended"):
        interpreter.start()


def test_code_that_takes_too_long_is_stopped_and_keeps_its_state() -> None:
    with CellblockInterpreter(timeout=2) as interpreter:
        interpreter.execute("kept = 1")
        with pytest.raises(CodeExecutionError, match="stopped at its deadline"):
            interpreter.execute("while True: pass")
        assert interpreter.execute("kept") == 1


def test_tools_may_change_and_run_in_the_context_of_the_caller(interpreter: CellblockInterpreter) -> None:
    async def setting(name: str) -> Any:
        return dspy.settings.get(name)

    interpreter.tools["setting"] = setting
    for value in (1, 2):
        with dspy.context(of_this_test=value):
            assert interpreter.execute("setting('of_this_test')") == value
    interpreter.tools["add"] = lambda a, b: f"{a} and {b}"
    assert interpreter.execute("add(1, 2)") == "1 and 2"


def test_after_its_shutdown_it_runs_nothing(interpreter: CellblockInterpreter) -> None:
    interpreter.execute("1")
    interpreter.shutdown()
    interpreter.shutdown()
    with pytest.raises(CodeInterpreterError, match="shut down"):
        interpreter.execute("1")
