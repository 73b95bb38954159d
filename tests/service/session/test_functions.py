"""Code in sessions calls functions of the program: what arrives, what comes back, and who decides."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cellblock import CodeExecutionError, CodeExecutor, Host, InvalidInputError, Rule, Rules
from cellblock.service.session.functions import caller
from cellblock.tools.calling.content import MAX_MESSAGE
from tool_sessions import accept, recorded, reject, streamed


def priced(item: str, /, currency: str = "EUR", *more: int, scale: float = 1.0, **rest: Any) -> dict[str, Any]:
    """Return what a call has given."""
    return {"item": item, "currency": currency, "more": list(more), "scale": scale, **rest}


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value * 2


def failing(kind: str) -> None:
    raise {"key": KeyError("nothing"), "exit": SystemExit(3), "stop": StopIteration(), "own": OSError(2, "gone")}[kind]


@pytest.fixture
async def offering(executor: CodeExecutor) -> CodeExecutor:
    """An executor whose code has functions."""
    await executor.execute(executor.offer({"priced": priced, "later": later, "failing": failing, "largest": max}))
    return executor


async def test_arguments_arrive_as_they_were_given(offering: CodeExecutor) -> None:
    cases: list[tuple[str, object]] = [
        ("priced('tea')", {"item": "tea", "currency": "EUR", "more": [], "scale": 1.0}),
        (
            "priced('tea', 'USD', 1, 2, scale=2, size='ü')",
            {"item": "tea", "currency": "USD", "more": [1, 2], "scale": 2, "size": "ü"},
        ),
        ("priced('tea', currency='USD')", {"item": "tea", "currency": "USD", "more": [], "scale": 1.0}),
        (
            "priced('tea', self=1, server=2)",
            {"item": "tea", "currency": "EUR", "more": [], "scale": 1.0, "self": 1, "server": 2},
        ),
        ("later(21)", 42),
        ("largest(3, 5, 4)", 5),
        ("largest([3, 5, 4])", 5),
    ]
    for call, result in cases:
        assert (await offering.execute(f"assert {call} == {result!r}, {call}")).ok


async def test_what_fails_is_an_error_in_the_code_and_nowhere_else(offering: CodeExecutor) -> None:
    cases: list[tuple[str, str]] = [
        ("failing('key')", "KeyError: 'nothing'"),
        ("failing('own')", "FileNotFoundError: [Errno 2] gone"),
        ("failing('exit')", "RuntimeError: SystemExit: 3"),
        ("failing('stop')", "RuntimeError: StopIteration: "),
        ("later()", "TypeError: later() missing 1 required positional argument: 'value'"),
        ("later(1, 2)", "TypeError: later() takes 1 positional argument but 2 were given"),
        ("priced(scale=1)", "TypeError: priced() missing 1 required positional argument: 'item'"),
        ("priced('tea', when=float('nan'))", "The arguments of program.priced are not valid JSON"),
        ("priced(b'tea')", "The arguments of program.priced are not valid JSON"),
    ]
    await offering.execute("import cellblock")
    for call, error in cases:
        code = f"try:\n    {call}\nexcept cellblock.errors.ToolRunnerError as error:\n    print(error)\nprint(later(1))"
        text = (await offering.execute(code)).text or ""
        assert text.startswith(error.strip())
        assert text.endswith("\n2")  # the next call is as usual


@pytest.mark.slow
async def test_two_values_for_one_argument_are_an_error_at_once(offering: CodeExecutor) -> None:
    with pytest.raises(CodeExecutionError, match=r"later\(\) got multiple values for argument 'value'"):
        await offering.execute("later(1, value=2)")


async def test_results_are_json_data_of_some_size() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: {1, 2}, "TypeError: its result is not JSON data: Object of type set is not JSON serializable"),
        (lambda: float("inf"), "TypeError: its result is not JSON data: Out of range float values are not JSON compliant"),
        (lambda: "x" * MAX_MESSAGE, "ValueError: its result has 16,777,228 bytes as JSON; the limit is 16,777,216"),
    ]
    for function, error in cases:
        outcome = await caller({"f": function})("f", {})
        assert outcome.is_error
        assert outcome.text.startswith(error)


async def test_what_is_awaitable_is_awaited_whatever_made_it() -> None:
    class Called:
        async def __call__(self, value: int) -> int:
            return await later(value)

    for function in (later, partial(later), Called(), lambda value: later(value)):
        assert (await caller({"f": function})("f", {"value": 2})).encoded == b'{"value":4}'


async def test_functions_see_the_context_in_which_they_were_offered() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def awaited() -> str:
        return variable.get()

    token = variable.set("offered")
    call = caller({"plain": variable.get, "awaited": awaited})
    variable.reset(token)
    assert [(await call(name, {})).encoded for name in ("plain", "awaited")] == [b'{"value":"offered"}'] * 2


async def test_a_function_that_blocks_holds_up_nobody_and_a_withdrawn_call_does_not_wait_for_it() -> None:
    go, went = threading.Event(), threading.Event()

    def block() -> None:
        go.wait()
        went.set()

    call = caller({"block": block, "quick": lambda: 1})
    blocked = [asyncio.create_task(call("block", {})) for _ in range(50)]
    assert (await call("quick", {})).encoded == b'{"value":1}'
    for task in blocked:
        task.cancel()
    await asyncio.wait(blocked)
    assert all(task.cancelled() for task in blocked)
    go.set()
    await asyncio.to_thread(went.wait)


@pytest.mark.slow
async def test_a_function_that_was_not_offered_is_none(offering: CodeExecutor) -> None:
    code = "from cellblock.tools.calling.runner import ToolRunner\nToolRunner({!r}).run_sync('other', {{}})"
    with pytest.raises(CodeExecutionError, match="there is no function 'other'"):
        await offering.execute(code.format("program"))
    with pytest.raises(CodeExecutionError, match="there is no MCP server 'elsewhere'"):
        await offering.execute(code.format("elsewhere"))


async def test_rules_and_readers_decide_about_calls_and_the_record_has_them(native_host: Host, tmp_path: Path) -> None:
    rules = Rules((Rule("deny", server="shop", tool="priced", arguments={"item": "gold"}),))
    async with CodeExecutor(host=native_host, working_dir=tmp_path, rules=rules) as executor:
        await executor.execute(executor.offer({"priced": priced}, "shop"))
        with pytest.raises(CodeExecutionError, match=r"shop\.priced was not accepted: denied by the rule"):
            await executor.execute("priced('gold')")
        accepted = await streamed(executor, "priced('tea')['item']", accept)
        assert accepted.result.text == "'tea'"
        with pytest.raises(CodeExecutionError, match="rejected"):
            await streamed(executor, "priced('tea')", reject)
        calls = [(decision.server, decision.tool, decision.arguments, decision.outcome) for decision in recorded(3)]
    assert calls == [
        ("shop", "priced", {"item": "gold"}, "deny"),
        ("shop", "priced", {"item": "tea"}, "allow"),
        ("shop", "priced", {"item": "tea"}, "deny"),
    ]


@pytest.mark.slow
async def test_functions_are_offered_before_a_start_and_to_branches(native_host: Host, tmp_path: Path) -> None:
    executor = CodeExecutor(host=native_host, working_dir=tmp_path)
    definitions = executor.offer({"later": later})
    async with executor:
        await executor.execute(definitions)
        (branch,) = await executor.fork(1)
        async with branch_of(branch):
            assert (await branch.execute("later(2)")).text == "4"
        executor.offer({"later": lambda value: "replaced"})
        assert (await executor.execute("later(2)")).text == "'replaced'"


class branch_of:  # noqa: N801  # used like a function
    """Stops a branch, which is started already."""

    def __init__(self, branch: CodeExecutor) -> None:
        self._branch = branch

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exception: object) -> None:
        await self._branch.stop()


async def test_help_shows_the_function_of_the_program(offering: CodeExecutor) -> None:
    shown = (await offering.execute("print(priced.__doc__)\npriced")).text or ""
    assert shown.startswith("priced(item: 'str', /, currency: 'str' = 'EUR', *more: 'int', scale: 'float' = 1.0")
    assert shown.endswith("Return what a call has given.\n<function priced of the program>")


def test_what_cannot_be_offered_is_refused() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ([priced], "program", "functions must be a dict of functions by their names"),
        ({"a b": priced}, "program", "must be an ASCII identifier of Python, not 'a b'"),
        ({"class": priced}, "program", "must be an ASCII identifier of Python, not 'class'"),
        ({"ü": priced}, "program", "must be an ASCII identifier"),
        ({"f": 5}, "program", "but f is 5"),
        ({"f": priced}, "my server", "the name of a server must be an ASCII identifier of Python, not 'my server'"),
        ({"f": priced}, None, "the name of a server must be"),
    ]
    for functions, server, complaint in cases:
        with pytest.raises(InvalidInputError, match=complaint):
            CodeExecutor().offer(functions, server)
