"""The broker: who decides, in which order, and what nobody decided."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import InvalidInputError, StateError
from cellblock.model.decisions import Decision
from cellblock.tools.approvals import broker as module
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.call import Origin
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.approvals.rules import Rule, Rules
from processes import eventually


class Desk:
    """Somebody who is asked, and a record of what was decided."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []
        self.decisions: list[Decision] = []

    def ask(self, request: ApprovalRequest) -> None:
        self.requests.append(request)

    async def record(self, decision: Decision) -> None:
        self.decisions.append(decision)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


def decide(broker: Broker, **arguments: Any) -> asyncio.Task[Decision]:
    return asyncio.create_task(broker.decide("tool", "files", "read", arguments))


async def test_rules_decide_before_people_and_are_recorded_like_them(desk: Desk) -> None:
    rules = Rules((Rule("deny", tool="write"), Rule("allow", server="files")))
    broker = Broker(rules, desk.ask, record=desk.record, session="s")
    assert (await broker.decide("tool", "files", "read", {})).allowed
    denied = await broker.decide("tool", "files", "write", {"a": 1})
    assert not denied.allowed
    assert "deny *.write" in denied.reason
    assert desk.requests == []
    assert [(d.outcome, d.by, d.session) for d in desk.decisions] == [
        ("allow", "allow files.*", "s"),
        ("deny", "deny *.write", "s"),
    ]


async def test_decisions_about_long_arguments_take_turns(desk: Desk) -> None:
    """Gathered calls are decided over many turns of the loop, and others have theirs between them."""
    rules = Rules((Rule("deny", server="files", arguments={"path": "**a*c*b"}), Rule("allow", server="files")))
    broker = Broker(rules, desk.ask)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    calls = (broker.decide("tool", "files", "read", {"path": "a" * 60_000 + "b"}) for _ in range(20))
    decisions = await asyncio.gather(*calls)
    counting.cancel()
    assert all(decision.allowed for decision in decisions)
    assert turns >= 40  # as many as there are pairs of a rule and a call


async def test_what_was_always_accepted_is_asked_again_if_the_tool_has_changed(desk: Desk) -> None:
    broker = Broker(ask=desk.ask)
    first = decide(broker)
    await eventually(lambda: bool(desk.requests))
    await desk.requests.pop().accept("tool")
    assert (await first).allowed
    assert (await decide(broker)).allowed
    changed = asyncio.create_task(broker.decide("tool", "files", "read", {}, changed="it is destructive now"))
    await eventually(lambda: bool(desk.requests))
    assert "it is destructive now" in str(desk.requests[0])
    await desk.requests[0].reject()
    assert not (await changed).allowed


async def test_what_is_shown_is_what_is_executed(desk: Desk) -> None:
    broker = Broker(None, desk.ask, record=desk.record)
    arguments = {"path": "/a", "list": [1]}
    task = asyncio.create_task(broker.decide("tool", "files", "read", arguments))
    await eventually(lambda: desk.requests)
    arguments["path"] = "/b"
    (request,) = desk.requests
    assert str(request) == "files.read(list=[1], path='/a')"
    request.tool_args["path"] = "/c"
    request.tool_args["list"].append(2)
    await request.accept()
    decision = await task
    assert decision.arguments == {"path": "/a", "list": [1]}
    assert decision.payload == b'{"list":[1],"path":"/a"}'
    assert desk.decisions == [decision]
    assert decision.by == "person"


async def test_a_thousand_requests_are_decided_in_any_order(desk: Desk) -> None:
    broker = Broker(None, desk.ask, record=desk.record)
    tasks = [decide(broker, n=n) for n in range(1000)]
    await eventually(lambda: len(desk.requests) == 1000)
    assert len(broker.pending) == 1000
    requests = desk.requests[:]
    random.shuffle(requests)
    for request in requests:
        await (request.accept() if request.tool_args["n"] % 2 else request.reject())
    decisions = await asyncio.gather(*tasks)
    assert [d.allowed for d in decisions] == [bool(n % 2) for n in range(1000)]
    assert [d.arguments["n"] for d in decisions] == [*range(1000)]
    assert not broker.pending
    assert len(desk.decisions) == 1000


async def test_always_this_tool(desk: Desk) -> None:
    broker = Broker(None, desk.ask, record=desk.record)
    tasks = [decide(broker, n=n) for n in range(3)]
    other = asyncio.create_task(broker.decide("tool", "files", "write", {}))
    await eventually(lambda: len(desk.requests) == 4)
    await desk.requests[1].accept(always="tool")
    assert all(d.allowed for d in await asyncio.gather(*tasks))
    assert (await broker.decide("tool", "files", "read", {"n": 77})).by == "person, always for this tool"
    assert not other.done()
    await desk.requests[3].reject()
    assert not (await other).allowed
    # Not what else has those names.
    broker.ask = None
    assert not (await broker.decide("shell", "files", "read", {})).allowed
    assert not (await broker.decide("tool", "files2", "read", {})).allowed
    broker.forget()
    assert not (await broker.decide("tool", "files", "read", {})).allowed


async def test_always_this_call(desk: Desk) -> None:
    broker = Broker(None, desk.ask)
    task = decide(broker, a=1, b=2)
    await eventually(lambda: desk.requests)
    await desk.requests[0].accept("call")
    assert (await task).allowed
    broker.ask = None
    assert (await decide(broker, b=2, a=1)).allowed
    assert not (await decide(broker, b=2, a=True)).allowed


async def test_a_rule_that_denies_wins_over_always(desk: Desk) -> None:
    broker = Broker(None, desk.ask)
    task = decide(broker)
    await eventually(lambda: desk.requests)
    await desk.requests[0].accept("tool")
    await task
    broker.rules = Rules((Rule("deny"),))
    assert not (await decide(broker)).allowed


async def test_nobody_there_is_a_denial(desk: Desk) -> None:
    decision = await Broker(record=desk.record).decide("network", "network", "example.org", {"port": 443})
    assert (decision.outcome, decision.by, decision.kind) == ("deny", "nobody", "network")
    assert desk.decisions == [decision]


async def test_nobody_in_time_is_a_denial_and_a_late_decision_changes_nothing(desk: Desk) -> None:
    broker = Broker(None, desk.ask, 0.05, desk.record)
    decision = await decide(broker)
    assert not decision.allowed
    assert "within 0.05 s" in decision.reason
    (request,) = desk.requests
    await request.accept(always="tool")
    assert request.state == "withdrawn"
    assert await request.response() is False
    assert not broker.pending
    broker.ask = None
    assert not (await decide(broker)).allowed


async def test_the_caller_decides_at_once(desk: Desk) -> None:
    broker = Broker(ask=lambda request: request.tool_name != "rm", record=desk.record)
    assert (await broker.decide("tool", "files", "ls", {})).by == "caller"
    assert not (await broker.decide("tool", "files", "rm", {})).allowed
    assert [d.outcome for d in desk.decisions] == ["allow", "deny"]


async def test_cancelling_withdraws(desk: Desk) -> None:
    broker = Broker(None, desk.ask, None, desk.record)
    task = decide(broker)
    await eventually(lambda: desk.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.requests[0].state == "withdrawn"
    assert not broker.pending
    assert desk.decisions == []


async def test_closing_denies_what_is_pending(desk: Desk) -> None:
    broker = Broker(None, desk.ask)
    task = decide(broker)
    await eventually(lambda: desk.requests)
    broker.close()
    assert (await task).reason == "the session has ended"


async def test_what_cannot_be_recorded_is_not_allowed() -> None:
    async def record(decision: Decision) -> None:
        raise OSError("no space left")

    decision = await Broker(Rules(default="allow"), record=record).decide("tool", "files", "read", {})
    assert not decision.allowed
    assert "recorded" in decision.reason


async def test_a_decision_is_on_record_before_it_is_known(desk: Desk) -> None:
    writing, written = asyncio.Event(), asyncio.Event()

    async def record(decision: Decision) -> None:
        writing.set()
        await written.wait()

    task = decide(Broker(Rules(default="allow"), record=record))
    await writing.wait()
    assert not task.done()
    written.set()
    assert (await task).allowed


async def test_what_waits_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 1000)
    broker = Broker(None, desk.ask)
    tasks = [decide(broker) for _ in range(2)]
    await eventually(lambda: len(desk.requests) == 2)
    assert "too many" in (await decide(broker, text="x" * 1000)).reason
    tasks.append(decide(broker))
    await eventually(lambda: len(desk.requests) == 3)
    assert "too many" in (await decide(broker)).reason
    broker.close()
    await asyncio.gather(*tasks)
    assert broker._bytes == 0


async def test_what_waits_is_weighed_by_what_it_becomes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 100_000)
    broker = Broker(None, desk.ask)
    assert "too many" in (await decide(broker, many=[{}] * 1000)).reason
    task = decide(broker, text="x" * 50_000)
    await eventually(lambda: desk.requests)
    broker.close()
    await task
    assert broker._bytes == 0


async def test_time_that_people_took_is_counted_once(desk: Desk) -> None:
    broker = Broker(None, desk.ask)
    assert broker.waited == 0
    began = time.monotonic()
    tasks = [decide(broker) for _ in range(10)]
    await eventually(lambda: broker.waited > 0.05)
    for request in desk.requests:
        await request.accept()
    await asyncio.gather(*tasks)
    assert 0.05 < broker.waited <= time.monotonic() - began
    stopped = broker.waited
    await Broker(Rules(default="allow")).decide("tool", "a", "b", {})
    assert broker.waited == stopped


async def test_deciding_twice(desk: Desk) -> None:
    told: list[bool] = []

    async def respond(accepted: bool) -> None:
        told.append(accepted)

    request = ApprovalRequest("files", "read", {"a": 1}, respond)
    await request.accept()
    await request.accept()
    with pytest.raises(StateError, match="already accepted"):
        await request.reject()
    assert told == [True]
    assert await request.response()
    with pytest.raises(InvalidInputError, match="always"):
        await ApprovalRequest("files", "read", {}).accept("forever")  # type: ignore[arg-type]


async def test_a_response_that_fails_leaves_the_request_pending() -> None:
    async def respond(accepted: bool) -> None:
        raise ConnectionError

    request = ApprovalRequest("files", "read", {}, respond)
    with pytest.raises(ConnectionError):
        await request.accept("tool")
    assert (request.state, request.always) == ("pending", None)


async def test_ids_are_not_guessable() -> None:
    ids = {ApprovalRequest("a", "b", {}).id for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(number) == 32 for number in ids)


# Halves of characters included, and what steers terminals often.
NAMES = st.text(st.characters() | st.sampled_from("\r\n\x1b\x9b\u2028\u202e\ud800\udfff=(),.'"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@given(NAMES, NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
async def test_whatever_is_asked_is_shown_as_one_line_that_can_be_printed(
    server: str, tool: str, arguments: dict[str, Any]
) -> None:
    request = ApprovalRequest(server, tool, arguments)
    for text in (str(request), repr(request)):
        assert text.isprintable()
        assert len(text.splitlines()) == 1
        text.encode()


async def test_names_that_look_like_more_than_names_are_quoted() -> None:
    shown = str(ApprovalRequest("a.b-c", "read/x", {"path": "x", "größe": 1, "b=1, c": 2, "\r\x1b[2Kgit.log(": "\udc80"}))
    assert shown == r"a.b-c.read/x(path='x', größe=1, 'b=1, c'=2, '\r\x1b[2Kgit.log('='\udc80')"
    assert str(ApprovalRequest("files.read()\r", "", {})) == r"'files.read()\r'.''()"
    request = ApprovalRequest("\x1b]0;x\x07", "read", {})
    await request.accept()
    with pytest.raises(StateError) as caught:
        await request.reject()
    assert str(caught.value).isprintable()


async def test_a_permission_covers_no_other_server_of_the_same_name() -> None:
    asked: list[ApprovalRequest] = []
    broker = Broker(ask=asked.append)
    first = Origin("/work", "aa")

    async def call(origin: Origin) -> bool:
        """Return whether a person was asked, who allows it for good."""
        before = len(asked)
        task = asyncio.create_task(broker.decide("tool", "docs", "get", {}, origin=origin))
        while not task.done() and len(asked) == before:
            await asyncio.sleep(0)
        if len(asked) > before:
            await asked[-1].accept(always="tool")
        assert (await task).allowed
        return len(asked) > before

    assert await call(first)
    assert not await call(first)
    assert await call(Origin("/work/inner", "aa"))
    assert await call(Origin("/work", "bb"))
    assert not await call(first)


async def test_a_rule_that_names_a_server_means_the_first_one_of_that_name() -> None:
    rules = Rules((Rule("allow", server="docs"), Rule("allow", server="wiki", root="/work", digest="aa")))
    broker = Broker(rules)
    assert (await broker.decide("tool", "docs", "get", {}, origin=Origin("/work", "aa"))).allowed
    assert not (await broker.decide("tool", "docs", "get", {}, origin=Origin("/work", "bb"))).allowed
    assert not (await broker.decide("tool", "docs", "get", {}, origin=Origin("/inner", "aa"))).allowed
    assert (await broker.decide("tool", "wiki", "get", {}, origin=Origin("/work", "aa"))).allowed
    assert not (await broker.decide("tool", "wiki", "get", {}, origin=Origin("/work", "bb"))).allowed


async def test_a_permission_to_register_a_server_is_for_these_parameters() -> None:
    broker = Broker(ask=lambda _: None)
    waits = asyncio.create_task(broker.decide("server", "docs", "register", {"command": "one"}))
    while not broker.pending:
        await asyncio.sleep(0)
    await next(iter(broker.pending.values())).accept(always="tool")
    assert (await waits).allowed
    broker.ask = None
    assert (await broker.decide("server", "docs", "register", {"command": "one"})).allowed
    assert not (await broker.decide("server", "docs", "register", {"command": "other"})).allowed
