"""`put` and `get` of sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellblock import CodeExecutor, Host, InvalidInputError, KernelDiedError, Limits, ProtocolError, Session, StateError


@pytest.mark.slow
async def test_values_go_in_and_out_and_leave_nothing(native_host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=native_host, working_dir=tmp_path) as executor:
        await executor.execute("before = set(globals())")
        files = set(tmp_path.iterdir())
        frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
        values: list[Any] = [{"a": [1, None, 2.5]}, "text", b"bytes", frame, np.arange(6).reshape(2, 3)]
        for value in values:
            await executor.put("value", value)
            back = await executor.get("value")
            assert type(back) is type(value)
            assert repr(back) == repr(value)
        result = await executor.execute("sorted(set(globals()) - before - {'before', 'value'}), _i, Out")
        assert result.execution_count == 2
        assert "exchange" not in (result.return_value or "")
        assert [entry.code[:6] for entry in executor.session.history()] == ["before", "sorted"]
        assert set(tmp_path.iterdir()) == files


async def test_what_cannot_be_carried_is_named(session: Session) -> None:
    await session.execute("import fractions; x = fractions.Fraction(1, 2)")
    with pytest.raises(InvalidInputError, match=r"of type fractions\.Fraction"):
        await session.get("x")
    assert str(await session.get("x", unpickle=True)) == "1/2"
    with pytest.raises(InvalidInputError, match="no variable 'nothing'"):
        await session.get("nothing")
    with pytest.raises(InvalidInputError, match="of type set"):
        await session.put("x", {1})
    for name in ("a b", "class", "", "x; import os"):
        with pytest.raises(InvalidInputError, match="identifier"):
            await session.put(name, 1)


async def test_a_value_is_held_to_the_limits_of_a_cell(host: Host) -> None:
    async with host.session(limits=Limits(media=100_000)) as session:
        await session.execute("x = b'1' * 100_000")
        with pytest.raises(InvalidInputError, match="over the limit"):
            await session.get("x")
        with pytest.raises(InvalidInputError, match="over the limit"):
            await session.put("x", b"1" * 100_000)


async def test_a_hostile_answer_is_an_error(session: Session) -> None:
    cases: list[tuple[str, type[Exception]]] = [
        ("get_ipython().display_pub.publish = lambda *_args, **_more: None", InvalidInputError),
        (
            "import cellblock.worker.values.exchange as e; e._send = lambda _: get_ipython().display_pub.publish("
            "{e.VALUE_MIME: b'pickle\\n' + __import__('pickle').dumps(1)})",
            InvalidInputError,
        ),
        ("import cellblock.worker.values.exchange as e, os; e.give = lambda *_: os._exit(3)", KernelDiedError),
    ]
    for code, error in cases:
        await session.reset()
        await session.execute(f"x = 1\n{code}")
        with pytest.raises(error):
            await session.get("x")
        assert (await session.execute("1")).return_value == "1"


async def test_values_wait_for_the_running_cell(session: Session) -> None:
    """What background work prints meanwhile is in the next result."""
    running = asyncio.create_task(session.execute("import asyncio\nawait asyncio.sleep(0.05)\nx = 5"))
    await asyncio.sleep(0)
    assert await session.get("x") == 5
    await running
    # What background work prints meanwhile is in the next result.
    await session.execute(
        "import cellblock.worker.values.exchange as e\nold = e.give\ndef give(*a):\n    print('meanwhile')\n    old(*a)"
    )
    await session.execute("e.give = give")
    assert await session.get("__name__") == "__main__"
    assert (await session.execute("print('now')")).output == "meanwhile\nnow\n"
    # A large value goes in and out in pieces.
    value = np.random.default_rng(1).bytes(10_000_000)
    await session.put("value", value)
    assert await session.get("value") == value


async def test_a_session_that_is_closed_says_so(host: Host) -> None:
    session = host.session()
    with pytest.raises(StateError):
        await session.get("x")
    await session.close()


async def test_variables_are_listed_and_leave_nothing(session: Session) -> None:
    await session.execute("import math; x = 1; table = [1, 2]; del math")
    await session.execute("class Loud:\n    def __repr__(self): raise SystemExit\nloud = Loud()")
    found = {one.name: one for one in await session.variables()}
    assert [*found] == ["x", "table", "Loud", "loud"]
    assert (found["table"].type, found["table"].shape, found["table"].preview) == ("list", (2,), "[1, 2]")
    assert (await session.execute("1")).execution_count == 3


async def test_what_a_session_says_of_its_variables_is_checked(session: Session) -> None:
    await session.execute("import cellblock.worker.values.exchange as e\ne.survey = lambda *a: b'[' * 1000")
    with pytest.raises(ProtocolError, match="survey"):
        await session.variables()
