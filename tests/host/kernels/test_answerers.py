"""Threads that wait for a caller's answers: few, and none that anything else waits for."""

from __future__ import annotations

import contextvars
import threading

import pytest

from cellblock.host.kernels.answerers import Answerers

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
