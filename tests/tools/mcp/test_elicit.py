"""What a server asks in the middle of a call, and whom."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cellblock.tools.approvals.elicitation import Elicitation, Person
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.mcp.servers import Servers
from processes import eventually

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

SERVERS = Path(__file__).parents[2] / "servers"


class Somebody:
    """Somebody who answers what servers ask, when a test lets them."""

    def __init__(self, name: str, answer: Mapping[str, Any] | None = None, *, waits: bool = False) -> None:
        self.person = Person(name, self.ask)
        self.answer = answer
        self.asked: list[Elicitation] = []
        self.goes_on = asyncio.Event()
        self.left = False
        if not waits:
            self.goes_on.set()

    async def ask(self, elicitation: Elicitation) -> Mapping[str, Any] | None:
        self.asked.append(elicitation)
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.left = True
            raise
        if self.answer is not None and "raise" in self.answer:
            raise ValueError
        return self.answer


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    """Servers that ask."""
    params = StdioServer(sys.executable, (str(SERVERS / "hostile_server.py"), "good"))
    async with Servers(lambda _: params) as made:
        yield made


async def ask(servers: Servers, person: Person | None, **arguments: Any) -> dict[str, Any]:
    """Have a server ask; return what it was answered."""
    said: dict[str, Any] = json.loads((await servers.call("desk", "ask", arguments, person=person)).text)
    return said


async def test_a_person_answers_and_what_is_no_answer_is_not_passed_on(servers: Servers) -> None:
    ada = Somebody("a", {"yes": True})
    assert await ask(servers, ada.person) == {"action": "accept", "content": {"yes": True}}
    assert (ada.asked[0].server, ada.asked[0].message) == ("desk", "May I?")
    ada.answer = None
    assert await ask(servers, ada.person) == {"action": "decline"}
    assert await ask(servers, None) == {"action": "decline"}
    for answer in ({"yes": "maybe"}, {"raise": True}):
        assert await ask(servers, Somebody("a", answer).person) == {"action": "cancel"}
    bob = Somebody("b", {})
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": ["\u200b"]}}}  # it cannot be shown
    assert await ask(servers, bob.person, schema=schema) == {"action": "decline"}
    assert bob.asked == []


async def test_a_question_that_could_be_anothers_is_shown_to_nobody(servers: Servers) -> None:
    ada, bob = Somebody("a", {"yes": True}), Somebody("b", {"yes": True})
    going = asyncio.create_task(servers.call("desk", "hang", {}, person=bob.person))
    await eventually(lambda: "desk" in servers._connections and servers._connections["desk"].usable)
    await servers.call("desk", "pid", {})  # the one before has arrived
    assert await ask(servers, ada.person) == {"action": "decline"}
    assert ada.asked == bob.asked == []
    going.cancel()
    await asyncio.wait([going])


async def test_a_question_after_a_cancelled_call_of_another_is_shown_to_nobody(servers: Servers) -> None:
    """The server may still work at it, and ask about it."""
    ada, bob = Somebody("a", {"yes": True}, waits=True), Somebody("b", {"yes": True})
    going = asyncio.create_task(ask(servers, ada.person))
    await eventually(lambda: ada.asked)
    going.cancel()
    await asyncio.wait([going])
    await eventually(lambda: ada.left)
    assert await ask(servers, bob.person) == {"action": "decline"}
    assert bob.asked == []
    ada.goes_on.set()
    await servers.reset()
    assert await ask(servers, bob.person) == {"action": "accept", "content": {"yes": True}}


async def test_calls_of_one_session_at_a_time_are_asked_about(servers: Servers) -> None:
    ada = Somebody("a", {"yes": True}, waits=True)
    going = [asyncio.create_task(ask(servers, ada.person)) for _ in range(6)]
    await eventually(lambda: len(ada.asked) == 4 and sum(one.done() for one in going) == 2)
    ada.goes_on.set()
    actions = sorted([(await one)["action"] for one in going])
    assert actions == ["accept"] * 4 + ["decline"] * 2  # nobody answers more at a time


@pytest.mark.slow
async def test_in_the_version_without_sessions_each_call_asks_its_own_person() -> None:
    params = StdioServer(sys.executable, (str(SERVERS / "asking_server.py"),))
    async with Servers(lambda _: params) as made:
        people = [Somebody(str(number), {"day": f"day {number}"}) for number in range(3)]
        said = await asyncio.gather(*(made.call("desk", "book", {"city": "Ulm"}, person=one.person) for one in people))
        assert [outcome.text for outcome in said] == [f"Ulm, day {number}" for number in range(3)]
        assert [[asked.message for asked in one.asked] for one in people] == [["Which day in Ulm?"]] * 3
