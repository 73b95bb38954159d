"""`input()` of an execution: who answers, and when there are no more lines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from cellblock.host.kernels.cell import Prompt
from cellblock.service.named import stdin
from cellblock.service.named.stdin import Stdin


class Asked:
    """What clients are told."""

    def __init__(self) -> None:
        self.questions: list[Mapping[str, Any]] = []
        self.stdin = Stdin(self.questions.append)

    async def ask(self, text: str) -> asyncio.Task[str | None]:
        """Ask, and return what waits for the answer, once the clients were told."""
        asking = asyncio.create_task(self.stdin.ask(Prompt(text, password=False)))
        known = len(self.questions)
        while len(self.questions) == known and not asking.done():
            await asyncio.sleep(0)
        return asking


async def test_a_question_is_told_and_gets_one_answer() -> None:
    asked = Asked()
    assert not asked.stdin.answer("too early")
    asking = await asked.ask("name? ")
    assert asked.questions == [{"prompt": "name? ", "password": False}]
    asks = [asked.stdin.asks]
    assert asked.stdin.answer("Ada")
    asks.append(asked.stdin.asks)
    assert asks == [True, False]
    assert not asked.stdin.answer("again")
    assert await asking == "Ada"
    assert not asked.stdin.answer("too late")


async def test_input_ends_when_the_last_client_is_gone_and_goes_on_with_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin, "REJOIN", 0)
    asked = Asked()
    asked.stdin.add_reader()
    asked.stdin.add_reader()
    asking = await asked.ask("a? ")
    asked.stdin.remove_reader()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    asked.stdin.remove_reader()
    assert await asking is None
    assert await (await asked.ask("b? ")) is None
    assert len(asked.questions) == 1
    asked.stdin.add_reader()
    asking = await asked.ask("c? ")
    assert asked.stdin.answer("line")
    assert await asking == "line"
