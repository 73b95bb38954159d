"""Programs that E2B's clients start."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import httpx
import pytest

import cellblock
from cellblock.errors import DaemonError
from cellblock.fronts.e2b.processes import Program, ended
from cellblock.model.programs import ExecResult, ProcessInfo, ProcessOutput, ProgramOutput
from cellblock.operations.programs import ReadProcess
from cellblock.service.daemon.link import SessionLink
from fronts.e2b.conftest import run
from gateways import Gateway
from processes import eventually

STREAM = "application/connect+json"


def envelope(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(data)) + data


def opened(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the messages of a stream; the last says how it ended."""
    while data:
        (size,) = struct.unpack_from(">xI", data)
        yield json.loads(data[5 : 5 + size])
        data = data[5 + size :]


def call(api: httpx.Client, method: str, message: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Call a method that takes one message, and answers with one."""
    found: dict[str, Any] = api.post(f"/process.Process/{method}", json=message, headers=headers).json()
    return found


def bash(command: str, **more: Any) -> dict[str, Any]:
    """Return what starts a command, as the SDKs do it."""
    return {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command], "envs": {}} | more.pop("process", {}), **more}


def start(api: httpx.Client, message: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """Start a program; return what was told of it."""
    headers = {"Content-Type": STREAM} | {name.replace("_", "-"): value for name, value in headers.items()}
    answer = api.post("/process.Process/Start", content=envelope(message), headers=headers)
    return [one.get("event", one) for one in opened(answer.content)]


def printed(events: list[dict[str, Any]], stream: str = "stdout") -> str:
    """Return what a program has printed."""
    return b"".join(base64.b64decode(one["data"].get(stream, "")) for one in events if "data" in one).decode()


def running(api: httpx.Client) -> list[dict[str, Any]]:
    """Return the programs that run."""
    found: list[dict[str, Any]] = call(api, "List", {})["processes"]
    return found


@pytest.fixture
async def begun(server: Gateway) -> AsyncIterator[Any]:
    """Starts a program, and returns its pid and what is told of it, which goes on for as long as the test."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as client:
        opened_ones = []

        async def begin(message: dict[str, Any], method: str = "Start") -> tuple[int, AsyncIterator[dict[str, Any]]]:
            request = client.build_request(
                "POST", f"/process.Process/{method}", content=envelope(message), headers={"Content-Type": STREAM}
            )
            answer = await client.send(request, stream=True)
            opened_ones.append(answer)
            events = _events(answer)
            first = await anext(events)
            return first["event"]["start"]["pid"], events

        yield begin
        for answer in opened_ones:
            await answer.aclose()


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    data = b""
    async for piece in answer.aiter_raw():
        data += piece
        while len(data) >= 5 and len(data) >= 5 + (size := struct.unpack_from(">xI", data)[0]):
            yield json.loads(data[5 : 5 + size])
            data = data[5 + size :]


def test_a_command_is_started_and_its_output_and_end_are_told(api: httpx.Client) -> None:
    code = "echo out; echo err >&2; pwd; echo $HOME $USER $A; exit 3"
    first, *events, end, last = start(api, bash(code, process={"envs": {"A": "1"}}))
    assert first["start"]["pid"] > 1
    assert printed(events) == "out\n/home/user\n/home/user user 1\n"
    assert printed(events, "stderr") == "err\n"
    assert end == {"end": {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}}
    assert last == {}
    assert start(api, bash("true"))[-2] == {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}
    assert printed(start(api, bash("pwd", process={"cwd": "/tmp"}))) == "/tmp\n"
    assert printed(start(api, {"process": {"cmd": "/bin/echo", "args": ["$HOME", "*"]}})) == "$HOME *\n"


@pytest.mark.slow
def test_programs_have_the_files_of_the_code_and_run_beside_it(api: httpx.Client) -> None:
    run(api, "open('from-code.txt', 'w').write('code')")
    assert printed(start(api, bash("cat from-code.txt; echo program > from-program.txt"))) == "code"
    assert run(api, "open('/home/user/from-program.txt').read()")[-1]["text"] == "program\\n"
    with api.stream("POST", "/execute", json={"code": "import time\nprint('begun')\ntime.sleep(3600)"}) as answer:
        lines = answer.iter_lines()
        assert "number_of_executions" in next(lines)
        assert "begun" in next(lines)
        assert printed(start(api, bash("echo beside"))) == "beside\n"


def test_what_cannot_be_started_is_the_end_of_the_stream(api: httpx.Client) -> None:
    for message, headers, code in (
        ({"process": {"cmd": "/nowhere"}}, {}, "invalid_argument"),
        ({"process": {"cmd": ""}}, {}, "invalid_argument"),
        ({"process": {"cmd": "x", "envs": {"A=": "1"}}}, {}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true", "cwd": "/nowhere"}}, {}, "invalid_argument"),
        ({}, {}, "invalid_argument"),
        ({"process": {"cmd": "/bin/true"}, "pty": {"size": {"cols": 0, "rows": 1}}}, {}, "invalid_argument"),
        (bash("true"), {"Connect-Timeout-Ms": "soon"}, "invalid_argument"),
        (bash("true"), {"Connect-Timeout-Ms": "9" * 11}, "invalid_argument"),
        (bash("true"), {"Authorization": f"Basic {base64.b64encode(b'root:').decode()}"}, "unimplemented"),
    ):
        (end,) = start(api, message, **headers)
        assert end["error"]["code"] == code, (message, end)
        assert end["error"]["message"]
    assert printed(start(api, bash("id -un"), Authorization=f"Basic {base64.b64encode(b'user:').decode()}")) == "user\n"


def test_a_program_ends_with_all_it_has_started_when_its_time_is_over(api: httpx.Client) -> None:
    begun = time.monotonic()
    events = start(api, bash("echo begun; setsid sleep 3600 & sleep 3600"), Connect_Timeout_Ms="300")
    assert printed(events) == "begun\n"
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert time.monotonic() - begun < 60
    assert running(api) == []
    alive = printed(start(api, bash("cat /proc/[0-9]*/comm")))
    assert "cat" in alive
    assert "sleep" not in alive


async def test_a_program_goes_on_without_its_client_and_others_can_listen(api: httpx.Client, begun: Any) -> None:
    pid, events = await begun(bash("echo one; read line; echo $line; read line; echo $line", stdin=True, tag="mine"))
    assert base64.b64decode((await anext(events))["event"]["data"]["stdout"]) == b"one\n"
    (shown,) = running(api)
    assert (shown["pid"], shown["tag"], shown["config"]["cmd"]) == (pid, "mine", "/bin/bash")
    again, others = await begun({"process": {"tag": "mine"}}, "Connect")
    assert again == pid
    await events.aclose()
    for line in ("two", "three"):
        data = base64.b64encode(f"{line}\n".encode()).decode()
        assert call(api, "SendInput", {"process": {"pid": pid}, "input": {"stdin": data}}) == {}
    told = [one.get("event", one) async for one in others]
    assert printed(told) == "two\nthree\n"
    assert told[-2]["end"]["exitCode"] == 0
    assert running(api) == []


@pytest.mark.slow
async def test_what_nobody_listens_to_does_not_stop_a_program(api: httpx.Client, begun: Any) -> None:
    _, events = await begun(bash("head -c 20000000 /dev/zero; echo done > flooded.txt"))
    await events.aclose()
    await eventually(lambda: "done" in api.get("/files", params={"path": "flooded.txt"}).text, 30)


@pytest.mark.slow
async def test_a_client_that_reads_slowly_gets_all_of_it(begun: Any) -> None:
    _, events = await begun(bash("head -c 10000000 /dev/zero | tr '\\0' x"))
    size = 0
    async for one in events:
        await asyncio.sleep(0.001)
        size += len(base64.b64decode(one.get("event", {}).get("data", {}).get("stdout", "")))
    assert size == 10_000_000


@pytest.mark.slow
async def test_input_ends_and_signals_end_a_program(api: httpx.Client, begun: Any) -> None:
    pid, events = await begun(bash("cat; echo end", stdin=True))
    assert call(api, "CloseStdin", {"process": {"pid": pid}}) == {}
    assert printed([one.get("event", one) async for one in events]) == "end\n"
    for name, number in (("SIGNAL_SIGKILL", 9), ("SIGNAL_SIGTERM", 15)):
        pid, events = await begun(bash("sleep 3600 & wait"))
        assert call(api, "SendSignal", {"process": {"pid": pid}, "signal": name}) == {}
        (end,) = [one["event"]["end"] async for one in events if "end" in one.get("event", {})]
        assert (end["exitCode"], end["exited"]) == (-1, False), number
    for method, more in (
        ("SendSignal", {"signal": "SIGNAL_SIGKILL"}),
        ("SendInput", {"input": {"stdin": ""}}),
        ("CloseStdin", {}),
        ("Update", {"pty": {"size": {"cols": 1, "rows": 1}}}),
    ):
        assert call(api, method, {"process": {"pid": pid}, **more})["code"] == "not_found", method
        assert call(api, method, {"process": {"tag": "none"}, **more})["code"] == "not_found", method
    (end,) = opened(
        api.post(
            "/process.Process/Connect", content=envelope({"process": {"pid": pid}}), headers={"Content-Type": STREAM}
        ).content
    )
    assert end["error"]["code"] == "not_found"
    assert call(api, "SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGSTOP"})["code"] == "invalid_argument"
    assert call(api, "SendInput", {"process": {"pid": 1}, "input": {"stdin": "?"}})["code"] == "invalid_argument"


async def test_a_program_can_have_a_terminal(api: httpx.Client, begun: Any) -> None:
    message = {"process": {"cmd": "/bin/sh", "args": ["-c", "stty size; read line; stty size"]}}
    pid, events = await begun(message | {"pty": {"size": {"cols": 80, "rows": 24}}})
    assert base64.b64decode((await anext(events))["event"]["data"]["pty"]) == b"24 80\r\n"
    assert call(api, "Update", {"process": {"pid": pid}, "pty": {"size": {"cols": 100, "rows": 30}}}) == {}
    data = base64.b64encode(b"x\n").decode()
    assert call(api, "SendInput", {"process": {"pid": pid}, "input": {"pty": data}}) == {}
    told = [one.get("event", one) async for one in events]
    assert printed(told, "pty").endswith("30 100\r\n")


@pytest.mark.slow
async def test_a_silent_stream_is_kept_alive(server: Gateway) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as client:
        headers = {"Content-Type": STREAM, "Keepalive-Ping-Interval": "1"}
        answer = await client.post("/process.Process/Start", content=envelope(bash("sleep 1.5")), headers=headers)
    assert {"event": {"keepalive": {}}} in list(opened(answer.content))


def test_programs_end_with_their_context(api: httpx.Client) -> None:
    context = api.get("/contexts").json()[0]["id"]
    with api.stream(
        "POST", "/process.Process/Start", content=envelope(bash("sleep 3600")), headers={"Content-Type": STREAM}
    ) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        cellblock.destroy(context)
        (end, last) = [one.get("event", one) for one in opened(b"".join(pieces))]
    assert "end" in end or "error" in end
    assert running(api) == []
    assert last is not None


def test_an_end_is_told_as_go_tells_it() -> None:
    assert ended(ExecResult(status="exited", exit_code=0)) == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    gone = ended(ExecResult(status="unknown", exit_code=None, reason="nobody knows"))
    assert gone == {"exitCode": -1, "exited": False, "status": "nobody knows", "error": "nobody knows"}


class Silent:
    """A daemon with one program, which ends when it is asked for the third time, or fails."""

    def __init__(self, *answers: ProcessOutput | Exception) -> None:
        self.answers = [*answers]

    async def call(self, request: Any, _: bytes = b"") -> dict[str, Any]:
        """Answer."""
        assert isinstance(request, ReadProcess)
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer.to_dict()


INFO = ProcessInfo(id="p1", pid=7, command=("x",), label="", running=True, terminal=False, started=0.0)


def output(*data: bytes, end: bool = False) -> ProcessOutput:
    result = ExecResult(status="exited", exit_code=0) if end else None
    pieces = tuple(ProgramOutput("stdout", one, 0) for one in data)
    return ProcessOutput(pieces=pieces, position=sum(map(len, data)), finished=end, result=result)


async def test_who_comes_when_it_has_ended_is_told_so() -> None:
    program = Program(cast(SessionLink, Silent(output(b"a"), output(end=True))), "s", INFO, None)
    await program.task
    assert [one["event"] async for one in program.events(60)][1]["end"]["exitCode"] == 0


async def test_a_daemon_that_is_lost_is_told_to_all_who_listen() -> None:
    program = Program(cast(SessionLink, Silent(output(b"a"), DaemonError("gone"))), "s", INFO, None)
    first, second = program.events(60), program.events(60)
    for events in (first, second):
        assert "start" in (await anext(events))["event"]
        assert "data" in (await anext(events))["event"]
        with pytest.raises(DaemonError, match="gone"):
            await anext(events)
