"""The Jupyter kernel API, as its clients use it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

import cellblock
from cellblock.fronts.gateway import jupyter as api
from cellblock.fronts.jupyter import kernel as kernel_module
from cellblock.fronts.jupyter.messages import Message
from gateways import Gateway, token
from jupyter_clients import Channels, channels
from processes import eventually

pytestmark = pytest.mark.slow

TOKENS: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def tokens(gateway: Gateway) -> None:
    """The tokens of the tests' clients."""
    TOKENS["run"], TOKENS["read"] = token("run"), token("read")


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client(TOKENS["run"]) as made:
        made.get("/api")  # opens the connection that it keeps, before a test counts what is open
        yield made


@pytest.fixture(scope="module")
def kernel(client: httpx.Client) -> str:
    """The id of a kernel that several tests use."""
    return str(client.post("/api/kernels", json={"name": "python3"}).json()["id"])


@pytest.fixture(params=[False, True], ids=["json", "v1"])
def both(request: pytest.FixtureRequest, gateway: Gateway, kernel: str) -> Iterator[Channels]:
    """Channels with either subprotocol."""
    with channels(gateway, TOKENS["run"], kernel, v1=request.param) as made:
        yield made


@pytest.fixture
def one(gateway: Gateway, kernel: str) -> Iterator[Channels]:
    with channels(gateway, TOKENS["run"], kernel, v1=True) as made:
        yield made


def said(messages: list[Message]) -> list[tuple[str, Any]]:
    """Return the types and the essence of messages."""
    essence = {"stream": "text", "execute_input": "code", "error": "ename", "execute_reply": "status", "clear_output": "wait"}
    return [(message.type, message.content.get(essence.get(message.type, "data"))) for message in messages]


# -- REST ----------------------------------------------------------------------------------------------------------------


def test_what_there_is(client: httpx.Client, kernel: str) -> None:
    assert client.get("/api").json() == {"version": cellblock.__version__}
    specs = client.get("/api/kernelspecs").json()
    assert specs["kernelspecs"][specs["default"]]["spec"]["language"] == "python"
    assert client.get("/api/kernelspecs/R").status_code == 404
    assert client.post("/api/kernels", json={"name": "R"}).status_code == 404
    assert kernel in [found["id"] for found in client.get("/api/kernels").json()]
    assert client.get("/api/status").json()["kernels"] >= 1
    assert client.get("/api/me").json()["identity"]["name"] == "cellblock"


def test_every_named_session_is_a_kernel(client: httpx.Client, gateway: Gateway) -> None:
    cellblock.get_or_create("mine")
    try:
        cellblock.execute("mine", "x = 5")
        (found,) = (found for found in client.get("/api/kernels").json() if found["session_name"] == "mine")
        with channels(gateway, TOKENS["run"], found["id"]) as one:
            assert said(one.execute("x"))[1] == ("execute_result", {"text/plain": "5"})
        only = token("run", session="mine")
        with gateway.client(only) as limited:
            assert [kernel["session_name"] for kernel in limited.get("/api/kernels").json()] == ["mine"]
            assert limited.post("/api/kernels").status_code == 403
            assert limited.get(f"/api/kernels/{found['id']}").status_code == 200
            other = client.post("/api/kernels").json()["id"]
            assert limited.get(f"/api/kernels/{other}").status_code == 403
            assert limited.get("/api/kernels/00000000-0000-0000-0000-000000000000").status_code == 403
            assert limited.delete(f"/api/kernels/{other}").status_code == 403
        assert client.delete(f"/api/kernels/{other}").status_code == 204
    finally:
        cellblock.destroy("mine")
    assert client.get(f"/api/kernels/{found['id']}").status_code == 404


def test_the_life_of_a_kernel(client: httpx.Client, gateway: Gateway) -> None:
    made = client.post("/api/kernels")
    assert made.status_code == 201
    kernel = made.json()["id"]
    assert made.headers["location"] == f"/api/kernels/{kernel}"
    with channels(gateway, TOKENS["run"], kernel) as one:
        one.execute("x = 1")
        assert client.post(f"/api/kernels/{kernel}/restart").json()["id"] == kernel
        assert ("error", "NameError") in said(one.execute("x"))
        number = one.send("execute_request", {"code": "import time\nprint('on')\ntime.sleep(100)"})
        while one.receive().type != "stream":
            pass
        second = one.send("execute_request", {"code": "print('not run')"})
        assert client.get(f"/api/kernels/{kernel}").json()["execution_state"] == "busy"
        assert client.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
        assert ("error", "KeyboardInterrupt") in said(one.until_idle(number))
        assert ("execute_reply", "aborted") in said(one.until_idle(second))
        assert client.delete(f"/api/kernels/{kernel}").status_code == 204
        while (message := one.receive()).content.get("execution_state") != "dead":
            assert message.type == "status"
    assert client.delete(f"/api/kernels/{kernel}").status_code == 404
    with pytest.raises(InvalidStatus, match="404"), channels(gateway, TOKENS["run"], kernel):
        pass


def test_who_may_only_read_runs_nothing(gateway: Gateway, kernel: str) -> None:
    with gateway.client(TOKENS["read"]) as reader:
        assert reader.get(f"/api/kernels/{kernel}").status_code == 200
        for path in ("/api/kernels", "/api/sessions", f"/api/kernels/{kernel}/restart"):
            assert reader.post(path, json={}).status_code == 403
        assert reader.delete(f"/api/kernels/{kernel}").status_code == 403
    for given in (TOKENS["read"], "", "cb_00000000_" + "a" * 43):
        with pytest.raises(InvalidStatus, match=r"403|401"), channels(gateway, given, kernel):
            pass


# -- cells ---------------------------------------------------------------------------------------------------------------


def test_a_cell(both: Channels) -> None:
    found = both.execute("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1")
    assert said(found) == [
        ("execute_input", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1"),
        ("stream", "out\n"),
        ("stream", "err\n"),
        ("execute_result", {"text/plain": "2"}),
        ("execute_reply", "ok"),
    ]
    number = found[0].content["execution_count"]
    assert [message.content.get("execution_count") for message in (found[3], found[4])] == [number, number]
    assert [message.channel for message in found] == ["iopub"] * 4 + ["shell"]


def test_displays(one: Channels) -> None:
    code = """
from IPython.display import display, clear_output, Image, JSON
handle = display('a', display_id='d')
handle.update('b')
clear_output(wait=True)
display({'application/json': {'x': [1]}, 'image/png': b'\\x89PNG'}, raw=True)
"""
    found = one.execute(code)[1:]
    assert [message.type for message in found] == [
        "display_data",
        "update_display_data",
        "clear_output",
        "display_data",
        "execute_reply",
    ]
    assert found[0].content["transient"] == found[1].content["transient"] == {"display_id": "d"}
    assert found[3].content["data"] == {"application/json": {"x": [1]}, "image/png": "iVBORw=="}


def test_errors_and_what_waits_behind_them(one: Channels) -> None:
    first = one.send("execute_request", {"code": "import time; time.sleep(0.05); 1/0"})
    second = one.send("execute_request", {"code": "2"})
    info = one.send("complete_request", {"code": "impor", "cursor_pos": 5})
    assert said(one.until_idle(first))[-3:-1] == [("error", "ZeroDivisionError"), ("execute_reply", "error")]
    assert said(one.until_idle(second))[1:-1] == [("execute_reply", "aborted")]
    assert one.until_idle(info)[1].content["matches"] == ["import"]
    first = one.send("execute_request", {"code": "1/0", "stop_on_error": False})
    second = one.send("execute_request", {"code": "2"})
    one.until_idle(first)
    assert ("execute_reply", "ok") in said(one.until_idle(second))


def test_what_leaves_no_trace(one: Channels) -> None:
    count = one.execute("'begin'")[-1].content["execution_count"]
    assert said(one.execute("print(1)\n7", silent=True)) == [("execute_reply", "ok")]
    assert said(one.execute("8", store_history=False))[1] == ("execute_result", {"text/plain": "8"})
    assert one.execute("Out.get(_)")[-1].content["execution_count"] == count + 1
    found = one.execute("y = 2", user_expressions={"a": "y + 1", "b": "nope"})[-1].content["user_expressions"]
    assert found["a"]["data"] == {"text/plain": "3"}
    assert found["b"]["ename"] == "NameError"


def test_lines_and_passwords(both: Channels) -> None:
    asked = []

    def answer(message: Message) -> None:
        if message.type == "input_request":
            asked.append((message.channel, message.content))
            both.send("input_reply", {"value": "secret"}, "stdin", parent=message.header)

    found = both.execute("import getpass\ninput('a? ') + getpass.getpass('b? ')", answer, allow_stdin=True)
    assert asked == [("stdin", {"prompt": "a? ", "password": False}), ("stdin", {"prompt": "b? ", "password": True})]
    assert ("execute_result", {"text/plain": "'secretsecret'"}) in said(found)
    assert not any(message.type == "stream" for message in found)
    assert ("error", "StdinNotImplementedError") in said(both.execute("input()"))


def test_questions(one: Channels) -> None:
    one.execute("import os\nvalue = 3")
    info = one.ask("kernel_info_request", {})
    assert info["language_info"]["version"].startswith("3.")
    assert one.ask("kernel_info_request", {}, "control") == info
    found = one.ask("complete_request", {"code": "ä = valu", "cursor_pos": 8})
    assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["value"], 4, 8)
    assert "int" in one.ask("inspect_request", {"code": "value", "cursor_pos": 5})["data"]["text/plain"]
    assert one.ask("inspect_request", {"code": "nothing", "cursor_pos": 5})["found"] is False
    assert one.ask("is_complete_request", {"code": "for x in y:"}) == {"status": "incomplete", "indent": "    "}
    history = one.ask("history_request", {"hist_access_type": "tail", "n": 1})["history"]
    assert [line for _, _, line in history] == ["import os\nvalue = 3"]
    history = one.ask(
        "history_request", {"hist_access_type": "search", "pattern": "*value = *", "unique": True, "output": True}
    )
    assert history["history"][-1][2] == ["import os\nvalue = 3", None]


def test_all_clients_see_a_cell_and_only_one_gets_the_reply(gateway: Gateway, kernel: str, one: Channels) -> None:
    with channels(gateway, TOKENS["run"], kernel) as other:
        other.ask("kernel_info_request", {})
        number = one.send("execute_request", {"code": "print(3)"})
        seen = [message for message in other.until_idle(number) if message.type != "status"]
        assert said(seen) == [("execute_input", "print(3)"), ("stream", "3\n")]
        assert ("execute_reply", "ok") in said(one.until_idle(number))


async def test_a_client_that_comes_back_gets_what_it_has_missed(client: httpx.Client, gateway: Gateway) -> None:
    kernel = client.post("/api/kernels").json()["id"]
    os.mkfifo("go")  # the workspace of the session is the current directory of this process
    with channels(gateway, TOKENS["run"], kernel, session="s") as one:
        number = one.send("execute_request", {"code": "print('a')\nopen('go').read()\nprint('b')"})
        while one.receive().type != "stream":
            pass
    Path("go").write_text("")
    await eventually(lambda: client.get(f"/api/kernels/{kernel}").json()["execution_state"] == "idle")
    with channels(gateway, TOKENS["run"], kernel, session="s") as one:
        assert said(one.until_idle(number))[:2] == [("stream", "b\n"), ("execute_reply", "ok")]
    client.delete(f"/api/kernels/{kernel}")


def test_a_kernel_that_dies_says_so_and_goes_on(one: Channels) -> None:
    number = one.send("execute_request", {"code": "import os; os._exit(1)"})
    states = []
    while True:
        message = one.receive()
        states.append((message.type, message.content.get("execution_state", message.content.get("ename"))))
        if message.parent.get("msg_id") == number and message.content.get("execution_state") == "idle":
            break
    assert ("error", "KernelDied") in states
    count = one.execute("1")[0].content["execution_count"]
    assert ("status", "restarting") in states or count > 1  # it was restored as it had been before


def test_messages_of_widgets(both: Channels) -> None:
    code = "import comm\nc = comm.create_comm(target_name='t', data={'a': 1}, buffers=[b'xy'])\n"
    found = both.execute(code + "c.on_msg(lambda m: (print(m['content']['data'], bytes(m['buffers'][0])), c.send({'b': 2})))")
    (opened,) = (message for message in found if message.type == "comm_open")
    assert (opened.content["target_name"], opened.content["data"], opened.buffers) == ("t", {"a": 1}, [b"xy"])
    number = opened.content["comm_id"]
    assert both.ask("comm_info_request", {"target_name": "t"})["comms"][number] == {"target_name": "t"}
    found = both.until_idle(both.send("comm_msg", {"comm_id": number, "data": {"x": 1}}, buffers=[b"\x00"]))
    shown = {message.type: message.content for message in found[1:-1]}
    assert shown["stream"]["text"] == "{'x': 1} b'\\x00'\n"
    assert shown["comm_msg"]["data"] == {"b": 2}
    both.until_idle(both.send("comm_close", {"comm_id": number, "data": {}}))
    assert number not in both.ask("comm_info_request", {})["comms"]
    both.until_idle(both.send("comm_open", {"comm_id": "z", "target_name": "nobody", "data": {}}))
    assert both.execute("1")


def test_shutting_down(client: httpx.Client, gateway: Gateway) -> None:
    kernel = client.post("/api/kernels").json()["id"]
    with channels(gateway, TOKENS["run"], kernel) as one:
        one.execute("x = 1")
        assert one.ask("shutdown_request", {"restart": True}, "control")["restart"] is True
        assert ("error", "NameError") in said(one.execute("x"))
        assert one.ask("interrupt_request", {}, "control") == {"status": "ok"}
        assert one.ask("shutdown_request", {"restart": False}, "control")["status"] == "ok"
    assert client.get(f"/api/kernels/{kernel}").status_code == 404


@pytest.mark.parametrize("data", ["{", b"\x00", "[]", '{"header": {}}'])
def test_a_client_that_talks_nonsense_is_told_and_disconnected(one: Channels, data: str | bytes) -> None:
    one.socket.send(data)
    with pytest.raises(ConnectionClosed, match="1003"):
        one.until_idle("")


def test_requests_do_not_wait_without_limit() -> None:
    assert kernel_module.check_room(10, 1000)
    assert not kernel_module.check_room(10_000, 1000)
    assert not kernel_module.check_room(10, 65 * 1024 * 1024)


async def test_a_flood_of_messages_lets_others_have_their_turn() -> None:
    """What has come can be received at once, and a client that reads can be sent to at once: nothing there waits."""
    header = {"msg_id": "1", "msg_type": "kernel_info_request", "session": "s"}
    text = json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": {}, "channel": "shell"})
    coming, taken, sent = ["connect"] + ["receive"] * 1000 + ["disconnect"], [], []

    async def receive() -> dict[str, Any]:
        return {"type": f"websocket.{coming.pop(0)}", "text": text}

    async def send(message: Any) -> None:
        sent.append(message)

    class Kernel:
        def take(self, message: Any, client: Any) -> None:
            taken.append(message)
            client.send(reply)

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    reply = Message("iopub", {"msg_id": "2", "msg_type": "status"}, {}, {}, {}, [])
    socket = WebSocket({"type": "websocket", "path": "/", "headers": []}, receive, send)
    await socket.accept()
    client = api.Channels(socket, "s", v1=False)
    counting = asyncio.create_task(count())
    await client.read(cast("Any", Kernel()))
    assert (len(taken), turns >= 40) == (1000, True)
    turns = 0
    writing = asyncio.create_task(client.write())
    await eventually(lambda: len(sent) == 1001)
    assert turns >= 40
    for task in (writing, counting):
        task.cancel()
    await asyncio.wait([writing, counting])


def test_a_client_that_does_not_read_is_let_go() -> None:
    assert not api.too_slow(1000)
    assert api.too_slow(api._MAX_UNREAD + 1)
