"""What Jupyter's clients get beside cells: messages of widgets, prompts, answers to questions."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from cellblock.host import Session
from cellblock.host.kernels.cell import Prompt
from cellblock.model import CodeExecutionResult, OutputItem
from cellblock.wire.messages import VALUE_MIME, Comm

ASK = "__import__('cellblock.worker.comms', fromlist=['answer']).answer({!r}, {!r})"
TAKE = "__import__('cellblock.worker.comms', fromlist=['take']).take({!r}, {!r}, {!r})"


async def run(session: Session, code: str, parent: str = "p", **options: Any) -> tuple[list[Any], CodeExecutionResult]:
    async with aclosing(session.stream(code, rich=True, parent=parent, **options)) as events:
        found: list[Any] = [event async for event in events]
    return found[:-1], found[-1]


async def test_messages_of_widgets_are_events_for_a_jupyter_client_alone(session: Session) -> None:
    """A client answers them; one that is too large does not break the cell."""
    code = "import comm\nc = comm.create_comm(target_name='t', data={'a': 1}, buffers=[b'xy'])\nc.send({'b': 2})"
    events, result = await run(session, code)
    first, second = (event for event in events if isinstance(event, Comm))
    assert (first.kind, first.buffers) == ("comm_open", (b"xy",))
    content = json.loads(first.content)["content"]
    assert (content["target_name"], content["data"]) == ("t", {"a": 1})
    assert (second.kind, json.loads(second.content)["content"]["data"]) == ("comm_msg", {"b": 2})
    assert result.ok
    assert result.outputs == []
    events, result = await run(session, "c.send({})\nget_ipython().kernel.get_parent()", parent="")
    assert not any(isinstance(event, Comm) for event in events)
    assert result.return_value == "{}"
    # A message that is too large does not break the cell.
    code = (
        "import comm\nc = comm.create_comm(target_name='t')\n"
        "c.send({}, buffers=[b'x' * 3_000_000])\nc.send({}, buffers=[b''] * 65)"
    )
    _, result = await run(session, code)
    assert result.ok
    assert result.stderr.count("a widget's message cannot be sent") == 2
    # A client talks to a comm.
    await run(
        session,
        "import comm\ndef opened(c, message):\n    c.on_msg(lambda m: print(m['content']['data'], bytes(m['buffers'][0])))\n"
        "    c.send({'welcome': True})\ncomm.get_comm_manager().register_target('t', opened)",
    )
    content = {"comm_id": "1", "target_name": "t", "data": {}}
    events, _ = await run(session, TAKE.format("comm_open", json.dumps({"content": content}), []), silent=True)
    (welcome,) = events
    assert json.loads(welcome.content)["content"] == {"data": {"welcome": True}, "comm_id": "1"}
    content["data"] = {"x": 5}
    events, _ = await run(session, TAKE.format("comm_msg", json.dumps({"content": content}), [b"z"]), silent=True)
    assert "".join(event.text for event in events) == "{'x': 5} b'z'\n"


async def ask(session: Session, name: str, **arguments: Any) -> Any:
    (event,), _ = await run(session, ASK.format(name, json.dumps(arguments)), silent=True)
    assert isinstance(event, OutputItem)
    value = event.data[VALUE_MIME]
    assert isinstance(value, bytes)
    return json.loads(value)


async def test_questions(session: Session) -> None:
    assert (await ask(session, "is_complete", code="for x in y:"))["status"] == "incomplete"
    assert (await ask(session, "is_complete", code="1 +"))["status"] == "invalid"
    assert await ask(session, "is_complete", code="1") == {"status": "complete"}
    found = await ask(session, "evaluate", expressions={"a": "1 + 1", "b": "nope"})
    assert found["a"]["data"]["text/plain"] == "2"
    assert found["b"]["ename"] == "NameError"
    assert (await ask(session, "about"))["python"].startswith("3.")
    assert await ask(session, "comm_info", target_name=None) == {}


async def test_who_answers_learns_that_it_is_a_password_and_a_jupyter_client_shows_the_prompt_itself(session: Session) -> None:
    asked: list[Prompt] = []

    async def line(prompt: Prompt) -> str:
        asked.append(prompt)
        return "secret"

    code = "import getpass\nprint(getpass.getpass('pw '), input('name '))"
    _, result = await run(session, code, on_input=line)
    assert [(prompt, prompt.password) for prompt in asked] == [("pw ", True), ("name ", False)]
    assert result.output == "secret secret\n"
    _, result = await run(session, code, parent="", on_input=line)
    assert result.output == "pw ********\nname secret\nsecret secret\n"


async def test_the_number_of_the_next_cell_is_known(session: Session) -> None:
    assert session.next_count == 1
    await session.execute("1")
    await run(session, "2", silent=True)
    assert session.next_count == 2
    await session.reset()
    assert session.next_count == 1
