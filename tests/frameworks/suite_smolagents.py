"""`cellblock.adapters.smolagents`, by a real `CodeAgent`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import PIL.Image
import pytest
from smolagents import ChatMessage, CodeAgent, Model, tool
from smolagents.models import MessageRole

from cellblock import Rule, Rules, SyncCodeExecutor
from cellblock.adapters.smolagents import CellblockExecutor
from cellblock.errors import CodeExecutionError, InvalidInputError, StateError
from frameworks.document import check_agent


class Scripted(Model):
    """A model that says one text after the other."""

    def __init__(self, *texts: str) -> None:
        super().__init__(model_id="scripted")
        self._texts = iter(texts)

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=next(self._texts))


def code(text: str) -> str:
    return f"<code>\n{text}\n</code>"


@tool
def population(city: str) -> int:
    """Return how many people live in a city.

    Args:
        city: Its name.
    """
    return {"Vienna": 2_000_000}[city]


@tool
def scaled(picture: PIL.Image.Image, size: tuple) -> PIL.Image.Image:  # type: ignore[type-arg]
    """Return a picture in another size.

    Args:
        picture: The picture.
        size: Its new size.
    """
    assert isinstance(picture, PIL.Image.Image)
    assert isinstance(size, tuple)
    return picture.resize(size)


@pytest.fixture
def executor() -> Iterator[CellblockExecutor]:
    executor = CellblockExecutor()
    yield executor
    executor.cleanup()


def test_the_agent_of_the_page() -> None:
    model = Scripted(code("people = population('Vienna')\nprint(people)"), code("final_answer(people // 2)"))
    check_agent("smolagents", model=model)


def test_what_fails_is_an_observation_with_what_was_printed_before(executor: CellblockExecutor) -> None:
    model = Scripted(code("print('before')\n1 / 0"), code("population('Rome')"), code("final_answer(1)"))
    with CodeAgent([population], model, executor=executor, verbosity_level=0) as agent:
        assert agent.run("?") == 1
        steps = agent.memory.steps[1:]
    assert "before" in steps[0].observations
    assert "ZeroDivisionError: division by zero" in str(steps[0].error)
    assert "KeyError: 'Rome'" in str(steps[1].error)


def test_values_that_are_not_json_go_to_tools_and_come_back(executor: CellblockExecutor) -> None:
    given = {"start": PIL.Image.new("RGB", (2, 2)), "day": datetime.date(2026, 1, 2), "pair": (1, {2})}
    model = Scripted(
        code("small = scaled(start, (1, 1))\nassert pair == (1, {2})"),
        code("final_answer((small.size, day, pair))"),
    )
    with CodeAgent([scaled], model, executor=executor, verbosity_level=0) as agent:
        assert agent.run("?", additional_args=given) == ((1, 1), datetime.date(2026, 1, 2), (1, {2}))


def test_a_managed_agent_runs_in_the_program(executor: CellblockExecutor) -> None:
    inner = CodeAgent([], Scripted(code("final_answer('found it')")), name="finder", description="Finds.", verbosity_level=0)
    model = Scripted(code("said = finder(task='find it')\nfinal_answer('found it' in said)"))
    with CodeAgent([], model, executor=executor, managed_agents=[inner], verbosity_level=0) as agent:
        assert agent.run("?") is True


def test_the_last_expression_is_the_output(executor: CellblockExecutor) -> None:
    assert executor("1 + 1").output == "2"
    picture = executor("import PIL.Image\nPIL.Image.new('RGB', (3, 4))").output
    assert isinstance(picture, PIL.Image.Image)
    assert picture.size == (3, 4)


def test_a_tool_that_a_rule_denies_is_not_called() -> None:
    rules = Rules((Rule("deny", server="smolagents", tool="population", arguments={"city": "Vienna"}),), default="allow")
    with SyncCodeExecutor(rules=rules) as given:
        executor = CellblockExecutor(given)
        executor.send_tools({"population": population})
        with pytest.raises(CodeExecutionError, match="denied by the rule"):
            executor("population(city='Vienna')")
        executor.cleanup()
        assert given.execute("2").text == "2", "a given executor stays its owner's"


def test_tools_are_there_again_after_the_kernel_was_lost() -> None:
    with SyncCodeExecutor(recovery="none") as given:
        executor = CellblockExecutor(given)
        executor.send_tools({"population": population})
        with pytest.raises(CodeExecutionError, match="fresh kernel"):
            executor("import os; os._exit(1)")
        assert executor("population('Vienna')").output == "2000000"


def test_options_are_checked_at_once_and_an_end_is_an_end(executor: CellblockExecutor) -> None:
    with pytest.raises(InvalidInputError, match="timeout"):
        CellblockExecutor(timeout=-1)
    with SyncCodeExecutor() as given, pytest.raises(InvalidInputError, match="not both"):
        CellblockExecutor(given, timeout=5)
    executor("1")
    executor.cleanup()
    with pytest.raises(StateError, match="closed"):
        executor("1")
