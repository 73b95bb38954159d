"""Running code over HTTP, and looking up what ran."""

from __future__ import annotations

import base64
import json

import httpx
import pytest
from fastapi.responses import StreamingResponse

from cellblock.fronts.gateway.answers import packed_response
from cellblock.wire.packed import pack
from gateways import Gateway, token
from suite import first_quick


@pytest.fixture(autouse=True)
def session(api: httpx.Client) -> None:
    """The session that the tests share."""
    api.post("/sessions/s")


KERNELBOX = {
    "status",
    "output",
    "stderr",
    "error",
    "return_value",
    "execution_count",
    "duration_ms",
    "outputs",
    "attempts",
    "truncated",
}


@pytest.mark.parametrize("path", first_quick(["/sessions/s/execute", "/kernels/s/execute"]))
def test_results_have_what_kernelbox_has(api: httpx.Client, path: str) -> None:
    result = api.post(path, json={"code": "print('hello')\n2 + 2"}).json()
    assert result.keys() >= KERNELBOX
    assert (result["status"], result["output"], result["return_value"], result["error"]) == ("success", "hello\n", "4", None)
    failed = api.post(path, json={"code": "1 / 0"})
    assert failed.status_code == 200
    assert failed.json()["error"]["ename"] == "ZeroDivisionError"
    assert api.post(path, json={"code": "echo one", "language": "bash"}).json()["output"] == "one\n"
    slow = api.post(path, json={"code": "import time; time.sleep(60)", "timeout": 0.1})
    assert (slow.status_code, slow.json()["status"]) == (200, "timeout")


@pytest.mark.slow
def test_a_language_model_is_answered_with_one_short_text(api: httpx.Client) -> None:
    for path in ("/kernels/s/execute", "/sessions/s/execute", "/sessions/of-its-own/execute"):
        failed = api.post(path, params={"format": "model"}, json={"code": "print('so far')\n1 / 0"})
        assert failed.headers["content-type"] == "text/plain; charset=utf-8"
        assert failed.text.startswith("Error: ZeroDivisionError: division by zero\n\nso far\nCell In[")
        long = api.post(path, params={"format": "model", "max_chars": 300}, json={"code": "print('line\\n' * 1500)"}).text
        assert len(long) <= 300
        name = long.partition("characters left out: read ")[2].partition(" …")[0]
        assert api.post(path, json={"code": f"len(open({name!r}).read())"}).json()["return_value"] == "7499"
        for wrong in ({"format": "xml"}, {"format": "model", "max_chars": "0"}, {"max_chars": "9" * 5000}):
            refused = api.post(path, params=wrong, json={"code": "ran = True"})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
        assert api.post(path, json={"code": "'ran' in globals()"}).json()["return_value"] == "False"
        api.post(path, json={"code": "import shutil; shutil.rmtree('outputs'); open('outputs', 'w').close()"})
        long = api.post(path, params={"format": "model", "max_chars": 300}, json={"code": "print('line\\n' * 1500)"}).text
        assert "characters left out" in long  # what fits is shown, although there can be no file
        assert "read outputs" not in long
        api.post(path, json={"code": "import os; os.remove('outputs')"})


def test_a_session_is_made_by_its_first_execution(api: httpx.Client) -> None:
    assert api.post("/kernels/fresh/execute", json={"code": "1"}).status_code == 404
    assert api.post("/sessions/fresh/execute", json={"code": "x = 1\nx"}).json()["return_value"] == "1"
    assert api.post("/kernels/fresh/execute", json={"code": "x"}).json()["return_value"] == "1"


@pytest.mark.slow
def test_a_client_waits_for_the_result_of_what_it_has_submitted(gateway: Gateway, api: httpx.Client) -> None:
    code = "import time; time.sleep(0.2); print('line\\n' * 1500)\n7"
    execution = api.post("/sessions/s/executions", json={"code": code}).json()["id"]
    path = f"/executions/{execution}/result"
    result = api.get(path).json()
    assert (result["status"], result["return_value"], api.get(path).json()) == ("success", "7", result)
    text = api.get(path, params={"format": "model", "max_chars": 300}).text
    assert "characters left out: read outputs/" in text
    with gateway.client(token("read")) as reader:
        text = reader.get(path, params={"format": "model", "max_chars": 300}).text
        assert "characters left out" in text  # but no file is written for who may only read
        assert "read outputs" not in text
    assert api.get("/executions/none/result").status_code == 404
    waiting = api.post("/sessions/s/executions", json={"code": "import time; time.sleep(60)"}).json()["id"]
    never = api.post("/sessions/s/executions", json={"code": "1"}).json()["id"]
    assert api.post(f"/executions/{never}/cancel").json() == {"done": True}
    assert api.get(f"/executions/{never}/result").status_code in (409, 503)
    api.post(f"/executions/{waiting}/cancel")
    assert api.get(f"/executions/{waiting}/result").json()["status"] == "interrupted"


@pytest.mark.slow
def test_a_model_reads_the_last_attempt(api: httpx.Client) -> None:
    body = {"code": "1 / 0", "replacement_codes": ["6 * 7"]}
    assert api.post("/kernels/s/execute/retry", params={"format": "model"}, json=body).text == "42"
    failed = api.post("/kernels/s/execute/retry", params={"format": "model"}, json={"code": "1 / 0", "max_attempts": 2})
    assert failed.text.startswith("Gave up after 2 attempts: ZeroDivisionError: division by zero\n\nCell In[")


@pytest.mark.slow
@pytest.mark.parametrize("path", first_quick(["execute/retry", "execute_with_retry"]))
def test_code_is_replaced_until_it_succeeds(api: httpx.Client, path: str) -> None:
    body = {"code": "1 / 0", "replacement_codes": ["undefined", "6 * 7"], "max_attempts": 5}
    result = api.post(f"/kernels/s/{path}", json=body).json()
    assert (result["status"], result["return_value"]) == ("success", "42")
    assert [(one["attempt"], one["code"], one["status"]) for one in result["attempts"]] == [
        (1, "1 / 0", "error"),
        (2, "undefined", "error"),
        (3, "6 * 7", "success"),
    ]
    never = api.post(f"/kernels/s/{path}", json={"code": "1 / 0", "max_attempts": 2}).json()
    assert (never["status"], len(never["attempts"]), never["error"]["ename"]) == (
        "max_attempts_exceeded",
        2,
        "ZeroDivisionError",
    )


def test_what_is_wrong_does_not_run(api: httpx.Client) -> None:
    cases: list[dict[str, object]] = [
        {},
        {"code": None},
        {"code": "1", "language": "perl"},
        {"code": "1", "timeout": 0},
        {"code": "1", "timeout": -1},
        {"code": "1", "timeout": 1e300},
        {"code": "1", "max_attempts": 0},
        {"code": "1", "replacement_codes": [1]},
    ]
    for body in cases:
        answer = api.post("/kernels/s/execute/retry", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        assert answer.json()["errors"]


def test_what_is_no_json_does_not_run(api: httpx.Client) -> None:
    for body in (b"", b"{", b"[" * 100_000, b'{"code": "\\ud800"}', b"\xff", b'{"code": NaN}'):
        answer = api.post("/kernels/s/execute", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code in (400, 413, 422), answer.headers["content-type"]) == (True, "application/problem+json")
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Idempotency-Key": "x" * 201}):
        answer = api.post("/sessions/s/execute", content=b'{"code": "1"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")


@pytest.mark.slow
def test_large_results_come_whole(api: httpx.Client) -> None:
    code = """
from IPython.display import display
display({"image/png": bytes(range(256)) * 4000, "text/plain": "é" * 300_000}, raw=True)
print("x" * 500_000)
"""
    result = api.post("/kernels/s/execute", json={"code": code}).json()
    assert [one["kind"] for one in result["outputs"]] == ["display_data", "stream"]
    shown = result["outputs"][0]["data"]
    assert base64.b64decode(shown["image/png"]) == bytes(range(256)) * 4000
    assert shown["text/plain"] == "é" * 300_000


def test_submitted_code_is_looked_up_and_runs_once(api: httpx.Client) -> None:
    first = api.post(
        "/sessions/s/executions", json={"code": "n = globals().get('n', 0) + 1"}, headers={"Idempotency-Key": "k"}
    )
    assert first.status_code == 202
    record = first.json()
    assert first.headers["location"] == f"/executions/{record['id']}"
    again = api.post("/sessions/s/executions", json={"code": "n = globals().get('n', 0) + 1", "key": "k"})
    assert again.json()["id"] == record["id"]
    assert api.post("/kernels/s/execute", json={"code": "n"}).json()["return_value"] == "1"
    assert api.get(f"/executions/{record['id']}").json()["state"] == "done"
    assert record["id"] in [one["id"] for one in api.get("/sessions/s/executions").json()["executions"]]
    assert api.post(f"/executions/{record['id']}/cancel").json() == {"done": False}
    assert api.get("/executions/unknown").status_code == 404


def test_an_execution_is_cancelled(api: httpx.Client) -> None:
    record = api.post("/sessions/s/executions", json={"code": "import time; time.sleep(60)"}).json()
    waiting = api.post("/sessions/s/executions", json={"code": "never = 1"}).json()
    assert api.post(f"/executions/{waiting['id']}/cancel").json() == {"done": True}
    assert api.post(f"/executions/{record['id']}/cancel").json()["done"] in (True, False)  # it may not have begun yet
    api.post("/kernels/s/interrupt")
    assert api.post("/kernels/s/execute", json={"code": "'never' in globals()"}).json()["return_value"] == "False"


async def test_a_large_result_is_sent_in_pieces_as_it_is_packed() -> None:
    data = {"outputs": ["ü" * 1000] * 300}
    answer = packed_response(pack(data))
    assert isinstance(answer, StreamingResponse)
    pieces = [piece async for piece in answer.body_iterator]
    assert len(pieces) > 5
    assert json.loads(b"".join(bytes(piece) for piece in pieces if not isinstance(piece, str))) == data
    small = packed_response(pack({"output": "ü"}))
    assert json.loads(bytes(small.body)) == {"output": "ü"}
