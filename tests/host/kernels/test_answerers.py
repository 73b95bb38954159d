"""Threads that wait for a caller's answers: few, and none that anything else waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest

from cellblock import StateError
from cellblock.host.kernels.answerers import Answerers
from processes import eventually

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


async def test_an_answer_comes_from_a_thread_that_sees_the_callers_context() -> None:
    NAME.set("ada")
    here = threading.get_ident()
    said = await Answerers().run(lambda prompt: f"{prompt}{NAME.get()} {threading.get_ident() != here}", "who? ")
    assert said == "who? ada True"


class OddError(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [ValueError("no"), OddError("odd")])
async def test_what_a_function_raises_is_raised_to_who_waits(error: BaseException) -> None:
    def fail(_prompt: str) -> str:
        raise error

    with pytest.raises(type(error)) as raised:
        await Answerers().run(fail, "")
    assert raised.value is error


async def test_a_cell_has_three_threads_and_is_told_about_the_fourth() -> None:
    answerers, go = Answerers(), threading.Event()

    def wait(_prompt: str) -> str:
        go.wait()
        return "late"

    waiting = [asyncio.create_task(answerers.run(wait, "")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StateError, match="has not yet returned for 3 earlier questions"):
        await answerers.run(wait, "")
    waiting[0].cancel()  # its thread waits on, and counts
    with pytest.raises(StateError, match="3 earlier questions"):
        await answerers.run(wait, "")
    go.set()
    assert await asyncio.gather(*waiting[1:]) == ["late", "late"]
    free: Callable[[str], str] = lambda prompt: prompt  # noqa: E731

    async def ask() -> bool:
        try:
            return await answerers.run(free, "free") == "free"
        except StateError:
            return False

    await eventually(ask)
