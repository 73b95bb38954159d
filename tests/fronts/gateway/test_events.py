"""Following executions over HTTP: nothing is missed by those who come back, and nothing comes twice."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from gateways import Gateway, token

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session(api: httpx.Client) -> None:
    """The session that the tests share."""
    api.post("/sessions/s")


def submit(api: httpx.Client, code: str, **options: Any) -> str:
    """Submit code; return the execution's id."""
    number: str = api.post("/sessions/s/executions", json={"code": code, **options}).json()["id"]
    return number


def sent_events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, of which id and name must say what the data says."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            event = json.loads(fields["data"])
            assert (fields["id"], fields["event"]) == (str(event["seq"]), event["kind"])
            yield event
            fields = {}


def followed(api: httpx.Client, execution: str, after: int = 0) -> list[dict[str, Any]]:
    """Return all events of an execution after one."""
    with api.stream("GET", f"/executions/{execution}/events", params={"after": after}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(sent_events(answer))


def test_events_come_in_order_and_again(api: httpx.Client) -> None:
    number = submit(api, "print('a')\nimport sys\nprint('b', file=sys.stderr)\n3")
    found = followed(api, number)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    assert (found[0]["kind"], found[-1]["kind"]) == ("begun", "result")
    texts = [event["data"] for event in found if event["kind"] == "stream"]
    assert texts == [{"name": "stdout", "text": "a\n"}, {"name": "stderr", "text": "b\n"}]
    assert found[-1]["data"]["return_value"] == "3"
    assert followed(api, number) == found
    assert followed(api, number, 2) == found[2:]
    with api.stream("GET", f"/executions/{number}/events", headers={"Last-Event-ID": "3"}) as answer:
        assert list(sent_events(answer)) == found[3:]


def test_a_reader_that_leaves_misses_nothing(api: httpx.Client) -> None:
    number = submit(api, "for i in range(3):\n    print(input())", stdin=True)
    known: list[dict[str, Any]] = []
    for line in ("one", "two", "three"):
        with api.stream("GET", f"/executions/{number}/events", params={"after": len(known)}) as answer:
            for event in sent_events(answer):
                known.append(event)
                if event["kind"] == "input":
                    break
        assert api.post(f"/executions/{number}/input", json={"line": line}).json() == {"done": True}
    known += followed(api, number, len(known))
    assert [event["seq"] for event in known] == list(range(1, len(known) + 1))
    assert (
        "".join(event["data"]["text"] for event in known if event["kind"] == "stream") == "one\none\ntwo\ntwo\nthree\nthree\n"
    )


def test_a_web_socket_follows_answers_and_cancels(gateway: Gateway, api: httpx.Client) -> None:
    number = submit(api, "print(input('? '))\nimport time\ntime.sleep(60)", stdin=True)
    address = f"{gateway.url.replace('http', 'ws')}/executions/{number}/events?token={token('run')}"
    with connect(address) as web_socket:
        kinds, shown, cancelled = [], "", False
        for message in web_socket:
            event = json.loads(message)
            kinds.append(event["kind"])
            shown += event["data"]["text"] if event["kind"] == "stream" else ""
            if event["kind"] == "input":
                assert event["data"]["prompt"] == "? "
                web_socket.send('{"answer": "here"}')
            elif shown.endswith("here\n") and not cancelled:
                cancelled = True
                web_socket.send('{"cancel": true}')
        assert kinds[-1] == "result"
        assert event["data"]["status"] == "interrupted"


def test_a_web_socket_without_the_right_to_run_only_looks(gateway: Gateway, api: httpx.Client) -> None:
    number = submit(api, "input()", stdin=True)
    address = f"{gateway.url.replace('http', 'ws')}/executions/{number}/events?token={token('read')}"
    with connect(address) as web_socket:
        web_socket.send('{"answer": "x"}')
        with pytest.raises(ConnectionClosedError):
            deque(iter(web_socket.recv, None))
        assert web_socket.close_code == 1008
    assert api.get(f"/executions/{number}").json()["state"] == "running"
    assert api.post(f"/executions/{number}/cancel").json() == {"done": True}


@pytest.mark.parametrize("said", ["[" * 100_000, "x", "[1]"])
def test_what_is_no_answer_ends_a_web_socket_with_a_reason(gateway: Gateway, api: httpx.Client, said: str) -> None:
    number = submit(api, "import time; time.sleep(60)")
    with connect(f"{gateway.url.replace('http', 'ws')}/executions/{number}/events?token={token('run')}") as web_socket:
        web_socket.send(said)
        with pytest.raises(ConnectionClosedError):
            deque(iter(web_socket.recv, None))
        assert web_socket.close_code in (1003, 1008)
    assert api.post(f"/executions/{number}/cancel").json() == {"done": True}


def test_pictures_are_events(api: httpx.Client) -> None:
    number = submit(api, "from IPython.display import display\ndisplay({'image/png': bytes(200_000)}, raw=True)")
    (shown,) = [event for event in followed(api, number) if event["kind"] == "display"]
    assert shown["data"]["data"]["image/png"].startswith("AAAA")
    assert len(shown["data"]["data"]["image/png"]) == 266_668


def test_what_is_unknown_is_told_by_the_status(api: httpx.Client) -> None:
    assert api.get("/executions/unknown/events").status_code == 404
