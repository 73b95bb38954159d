"""How requests are read, and how long their answers last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from cellblock.errors import InvalidInputError
from cellblock.fronts.e2b.answers import as_json, as_text, parse, while_here
from cellblock.fronts.problems import Problem


class Wanted(BaseModel):
    """A message."""

    name: str = "default"


def test_a_body_is_what_a_model_wants_or_an_error_that_names_the_field() -> None:
    assert parse(b"", Wanted).name == "default"
    assert parse(b'{"name": "x", "more": 1}', Wanted).name == "x"
    for body, what in ((b'{"name": 1}', "^name: "), (b"[]", "^body: "), (b"{", "^body: "), (b"\xff", "^body: ")):
        with pytest.raises(InvalidInputError, match=what):
            parse(body, Wanted)


def test_problems_are_told_in_two_forms() -> None:
    problem = Problem(422, "invalid_input", "it is wrong")
    assert (as_text(problem).status_code, bytes(as_text(problem).body)) == (400, b"it is wrong")
    assert bytes(as_json(problem).body) == b'{"code": 400, "message": "it is wrong"}'
    assert as_json(Problem(404, "files", "gone")).status_code == 404


class Client:
    """One end of a connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._said = False

    async def receive(self) -> dict[str, Any]:
        """Return the rest of a body, and then wait until the client has left."""
        if not self._said:
            self._said = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_is_done_for_as_long_as_its_client_stays() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    async def endless(ended: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise ValueError

    client, ended = Client(), asyncio.Event()
    assert await while_here(client.receive, work())
    with pytest.raises(ValueError, match=r"^$"):
        await while_here(client.receive, fails())
    waiting = asyncio.create_task(while_here(client.receive, endless(ended)))
    await asyncio.sleep(0)
    client.gone.set()
    assert not await waiting
    assert ended.is_set()
    ended.clear()
    waiting = asyncio.create_task(while_here(Client().receive, endless(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()
