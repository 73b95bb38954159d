"""Running code for E2B's clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import cellblock
from cellblock.fronts.e2b import executions
from cellblock.fronts.e2b.executions import Lines
from cellblock.operations.executions import Cancel
from fronts.e2b.conftest import run, texts
from gateways import Gateway
from processes import eventually


@pytest.mark.slow
def test_what_code_shows_comes_in_order_one_object_a_line(api: httpx.Client) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay({'text/latex': '$x$'}, raw=True)\n'value'"
    begun, out, err, shown, value = run(api, code)
    assert begun["type"] == "number_of_executions"
    assert begun["execution_count"] > 0
    assert (out["type"], out["text"], err["type"], err["text"]) == ("stdout", "out\n", "stderr", "err\n")
    assert 1.7e18 < out["timestamp"] < 3e18  # nanoseconds
    assert shown == {"type": "result", "is_main_result": False, "latex": "$x$"}
    assert value == {"type": "result", "is_main_result": True, "text": "value"}


def test_variables_stay_and_failures_are_messages(api: httpx.Client) -> None:
    run(api, "x = 20")
    assert run(api, "x + 1")[-1]["text"] == "21"
    error = run(api, "1 / 0")[-1]
    assert (error["type"], error["name"], error["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "----> 1 1 / 0" in error["traceback"]
    assert [one["name"] for one in run(api, "import os; os._exit(3)") if one["type"] == "error"] == ["KernelDied"]
    assert run(api, "input()")[-1]["name"] == "StdinNotImplementedError"


def test_output_comes_while_code_runs(api: httpx.Client) -> None:
    with api.stream("POST", "/execute", json={"code": "print('a')\nwhile True: pass"}) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["type"] == "number_of_executions"
        assert json.loads(next(lines))["text"] == "a\n"


@pytest.mark.slow
async def test_who_leaves_stops_the_code(server: Gateway, api: httpx.Client) -> None:
    """Nothing is sent meanwhile by which it could be seen that the client is gone."""
    async with httpx.AsyncClient(base_url=server.url, verify=False) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/execute", json={"code": "import time\nz = 1\ntime.sleep(3600)"}, timeout=0.5)
    answer = await asyncio.to_thread(run, api, "z")
    assert answer[-1]["text"] == "1"


@pytest.mark.slow
async def test_a_client_that_leaves_before_its_turn_stops_nobody_else(server: Gateway, api: httpx.Client) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as client:
        first = asyncio.create_task(client.post("/execute", json={"code": "import time\ntime.sleep(1)\n'first'"}))
        await eventually(_running, 10)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/execute", json={"code": "never = 1"}, timeout=0.2)
        assert '"text":"first"' in (await first).text
    assert run(api, "never")[-1]["name"] == "NameError"


def _running() -> bool:
    return any(record.status == "running" for record in cellblock.list_kernels())


@pytest.mark.slow
def test_variables_of_the_environment_hold_for_one_cell(api: httpx.Client) -> None:
    code = "import os\nos.environ.get('A'), os.environ.get('HOME')"
    before = run(api, code)[-1]["text"]
    assert before == "(None, '/home/user')"
    given = {"A": 'it\'s "\\n" ü', "HOME": "/x"}
    assert run(api, "[os.environ['A'], os.environ['HOME']]", env_vars=given)[-1]["json"] == [given["A"], "/x"]
    assert run(api, code)[-1]["text"] == before
    assert run(api, "1 / 0", env_vars=given)[-1]["name"] == "ZeroDivisionError"
    assert run(api, code)[-1]["text"] == before
    assert texts(run(api, "echo $A", env_vars={"A": "one"}, language="bash")) == "one\n"
    assert texts(run(api, "echo ${A:-none}", language="bash")) == "none\n"


@pytest.mark.slow
async def test_variables_do_not_come_to_the_cells_of_others(server: Gateway, api: httpx.Client) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as client:
        code = "import os, time\ntime.sleep(0.05)\nprint(os.environ.get('N'))"
        wanted = [{"code": code, "env_vars": {"N": str(n)}} for n in range(10)] + [{"code": code}] * 5
        answers = await asyncio.gather(*(client.post("/execute", json=one) for one in wanted))
        found = [next(json.loads(line)["text"] for line in one.text.splitlines() if "stdout" in line) for one in answers]
        assert found == [f"{n}\n" for n in range(10)] + ["None\n"] * 5
        running = asyncio.create_task(client.post("/execute", json={"code": "time.sleep(1)"}))
        await eventually(_running, 10)
        with pytest.raises(httpx.ReadTimeout):  # it has not begun
            await client.post("/execute", json={"code": code, "env_vars": {"N": "withdrawn"}}, timeout=0.2)
        await running
    assert texts(run(api, code)) == "None\n"


def test_the_directory_stays_from_cell_to_cell(api: httpx.Client) -> None:
    assert texts(run(api, "!pwd")) == "/home/user\n"
    run(api, "import os\nos.makedirs('one/two', exist_ok=True)\nos.chdir('one')")
    assert texts(run(api, "%cd two")).endswith("/one/two\n")
    assert texts(run(api, "pwd", language="bash")).endswith("/one/two\n")
    run(api, "os.rmdir('../two')")
    assert "cannot return" in texts(run(api, "os.chdir('/home/user')"), "stderr")
    assert texts(run(api, "!pwd")) == "/home/user\n"
    assert Path("one").is_dir()  # where the server was started


@pytest.mark.slow
def test_data_frames_dicts_and_pictures_are_data(api: httpx.Client) -> None:
    code = (
        "import datetime\nimport pandas as pd\n"
        "pd.DataFrame({'a': [1, None], 3: [datetime.datetime(2026, 1, 2)] * 2, 'c': ['x', float('inf')]})"
    )
    value = run(api, code)[-1]
    assert value["data"] == {"a": [1.0, None], "3": ["2026-01-02T00:00:00"] * 2, "c": ["x", None]}
    assert "<table" in value["html"]
    assert run(api, "{'a': [1, {'b': None}]}")[-1]["json"] == {"a": [1, {"b": None}]}
    assert "json" not in run(api, "{'a': object()}")[-1]
    figure = run(api, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")[-1]
    assert figure["png"].startswith("iVBOR")
    assert figure.keys() <= {"type", "is_main_result", "text", "png", "chart"}
    saved = "from PIL import Image\nImage.new('RGB', (2, 2)).save('saved.png')"
    assert run(api, saved)[-1]["png"].startswith("iVBOR")
    assert run(api, "Image.new('RGB', (2, 2)).show()")[-1]["png"].startswith("iVBOR")


@pytest.mark.slow
def test_charts_are_data_if_the_sessions_interpreter_can_read_them(api: httpx.Client) -> None:
    """Another package of this name would do as well: only E2B's own tests look at what it says."""
    run(
        api,
        "import sys, types\nsys.modules['e2b_charts'] = types.SimpleNamespace("
        "chart_figure_to_dict=lambda figure: {'type': 'line', 'title': figure.axes[0].get_title()})",
    )
    figure = run(api, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('T')\nplt.show()")[-1]
    assert figure["chart"] == {"type": "line", "title": "T"}
    run(api, "del sys.modules['e2b_charts']")


def test_what_cannot_be_run_is_a_status(api: httpx.Client) -> None:
    for wanted, status, what in (
        ({"code": "1", "context_id": "x", "language": "python"}, 400, "Only one of"),
        ({"code": "1", "context_id": "nobody"}, 404, "Context nobody not found"),
        ({"code": "1", "language": "cobol"}, 501, "no Jupyter kernel for 'cobol'"),
        ({"code": "1", "language": "../python"}, 400, "language must be the name"),
        ({"code": 1}, 400, "code: "),
        ({}, 400, "code: Field required"),
        ({"code": "1", "env_vars": {"A": 1}}, 400, "env_vars.A: "),
        ({"code": "1", "env_vars": {"A=B": "1"}}, 400, "'A=B' cannot be set"),
        ({"code": "1", "env_vars": {"": "1"}}, 400, "cannot be set"),
        ({"code": "1", "env_vars": {"A": "\0"}}, 400, "cannot be set"),
        ({"code": "1", "env_vars": {str(n): "" for n in range(1001)}}, 400, "more than 1,000 items"),
        ([], 400, "body: "),
    ):
        answer = api.post("/execute", json=wanted)
        assert (answer.status_code, what in answer.text) == (status, True), (wanted, answer.text)
    assert api.post("/execute", content=b'{"code"', headers={"Content-Type": "application/json"}).status_code == 400
    assert api.post("/execute", content=b'{"code": "1"}', headers={"Content-Type": "text/plain"}).status_code == 400
    surrogate = api.post("/execute", content=b'{"code": "\\ud800"}', headers={"Content-Type": "application/json"})
    assert surrogate.status_code == 200, "the cell says what is wrong with it"
    assert "the code has a lone surrogate" in surrogate.text
    assert run(api, "1", more="is ignored")[-1]["text"] == "1"


class Silent:
    """A link to a daemon, in which an execution never says anything."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    async def follow(self, _: Any) -> AsyncGenerator[Any, None]:
        """Say nothing."""
        await asyncio.Event().wait()
        yield

    async def call(self, request: Any) -> bool:
        """Note what is asked."""
        await asyncio.sleep(0)
        self.called.append(request)
        return True


async def test_something_is_sent_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "_QUIET", 0.01)
    link, sent = Silent(), asyncio.Queue[Any]()

    async def never() -> Any:
        await asyncio.Event().wait()

    answering = asyncio.create_task(Lines(cast("Any", link), "e1")({"type": "http"}, never, sent.put))
    assert (await sent.get())["status"] == 200
    assert json.loads((await sent.get())["body"]) == {"type": "keepalive"}
    answering.cancel()  # as a server that ends
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert link.called == [Cancel("e1")]
