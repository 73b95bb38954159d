"""`cellblock.adapters.verifiers`, by real rollouts and as verifiers describes runtimes.

This module is a harness plugin, too: ``HarnessConfig(id="suite_verifiers")``. Its program does what the model says.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.runtimes.base import ProgramResult, Runtime

from cellblock import CodeExecutor
from cellblock.adapters.verifiers import CellblockRuntime
from frameworks.document import check_agent

__all__ = ["Obedient"]

_PROGRAM = """
import json, subprocess, sys, urllib.request
endpoint, secret, model, prompt = sys.argv[1:]
said = {"model": model, "messages": [{"role": "user", "content": prompt}]}
headers = {"Authorization": "Bearer " + secret, "Content-Type": "application/json"}
request = urllib.request.Request(endpoint + "/chat/completions", json.dumps(said).encode(), headers)
answer = json.load(urllib.request.urlopen(request, timeout=60))
subprocess.run(answer["choices"][0]["message"]["content"], shell=True, check=True)
"""


class Obedient(vf.Harness[vf.HarnessConfig]):
    """A harness whose program asks the model once, and runs its answer as a shell command."""

    async def launch(
        self, ctx: Any, trace: Any, runtime: Runtime, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> ProgramResult:
        argv = ["python3", "-c", _PROGRAM, endpoint, secret, ctx.model, data.prompt]
        return await runtime.run_program(argv, {})


@contextmanager
def config(answer: str) -> Iterator[vf.AgentConfig]:
    """Configure an agent whose model gives one answer to everything."""

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            client = EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NO_KEY")
            yield vf.AgentConfig(harness=vf.HarnessConfig(id="suite_verifiers"), model="m", client=client)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
async def interception() -> AsyncIterator[InterceptionServer]:
    async with InterceptionServer() as server:
        yield server


@pytest.fixture
async def runtime(interception: InterceptionServer) -> AsyncIterator[CellblockRuntime]:
    async with CellblockRuntime(interception) as runtime:
        yield runtime


def test_the_agent_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_KEY", "none")
    with config("echo $((6 * 7)) > answer.txt") as given:
        check_agent("verifiers", config=given)


async def test_a_run_with_a_closed_network_reaches_the_model_and_nothing_else(
    interception: InterceptionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY", "none")
    task = vf.Task(vf.TaskData(idx=0, prompt="Do it."))
    with config("curl -s -o /dev/null -w '%{http_code}' http://pypi.example/ > code.txt; true") as given:
        agent = vf.Agent(given, interception=interception)
        async with CellblockRuntime(interception, allow=[], allow_hosts=["pypi.example"]) as runtime:
            trace = await agent.run(task, runtime=runtime)
            assert (trace.ok, trace.errors, trace.num_turns) == (True, [], 1)
            assert await runtime.read("code.txt") == b"403"
            assert type(trace).model_validate_json(trace.model_dump_json()).agent.runtime.id.startswith("cellblock:")
            again = await agent.run(task, runtime=runtime)
            assert not again.ok
            assert "closed permanently" in str(again.errors[0])


async def test_programs_have_their_environment_and_a_status(runtime: CellblockRuntime) -> None:
    view = runtime.with_env({"A": "task", "B": "task"})
    assert await view.run(["sh", "-c", "echo $A $B; echo err >&2; exit 3"], {"B": "own"}) == ProgramResult(
        3, "task own\n", "err\n"
    )
    assert (await runtime.run(["no such program"], {})).exit_code == 127
    assert await runtime.alive()
    with pytest.raises(SandboxError, match="printed more"):
        await runtime.run(["sh", "-c", "head -c 70000000 /dev/zero"], {})


async def test_a_cancelled_program_ends_with_all_it_has_started(runtime: CellblockRuntime) -> None:
    running = asyncio.create_task(runtime.run(["sh", "-c", "setsid sleep 600 & echo $! > pid; mkfifo f; echo > f; wait"], {}))
    while not await _has(runtime, "f"):
        await asyncio.sleep(0)
    await runtime.run(["cat", "f"], {})
    pid = (await runtime.read("pid")).decode().strip()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await runtime.run(["kill", "-0", pid], {})).exit_code != 0


async def test_a_live_process_is_talked_with(runtime: CellblockRuntime) -> None:
    process = await runtime.open_process(["sh", "-c", "read a; echo $a; read b; echo $b >&2; exec sleep 600"], {})
    await process.write(b"one\ntwo\n")
    said = await asyncio.gather(anext(process.stderr), anext(process.stdout))
    assert [*said] == [b"two\n", b"one\n"]
    assert await process.poll() is None
    await process.terminate()
    assert await process.wait() == await process.poll() == 128 + 15
    assert [piece async for piece in process.stdout] == [piece async for piece in process.stderr] == []


async def test_what_runs_in_the_background_ends_with_the_runtime(interception: InterceptionServer) -> None:
    async with CellblockRuntime(interception) as runtime:
        await runtime.run_background(["sh", "-c", "mkfifo f; echo said; echo > f; exec sleep 600"], {}, "log.txt")
        while not await _has(runtime, "f"):
            await asyncio.sleep(0)
        await runtime.run(["cat", "f"], {})
        assert await runtime.read("log.txt") == b"said\n"
    assert runtime.stopped
    assert not await runtime.alive()
    await runtime.stop()


async def test_files_are_read_up_to_a_limit(runtime: CellblockRuntime) -> None:
    await runtime.write("a/b.bin", b"\x00\xff12")
    assert await runtime.read("a/b.bin") == await runtime.read("a/b.bin", max_bytes=4) == b"\x00\xff12"
    for path, limit in (("a/b.bin", 3), ("a/b.bin", 2), ("nothing", 9), ("nothing", None)):
        with pytest.raises(SandboxError):
            await runtime.read(path, max_bytes=limit)


async def test_a_given_executor_stays_its_owners(interception: InterceptionServer) -> None:
    async with CodeExecutor(working_dir=".", allow_hosts=[f"127.0.0.1:{interception.port}"]) as executor:
        async with CellblockRuntime(interception, executor) as runtime:
            assert (await runtime.run(["echo", "1"], {})).stdout == "1\n"
        assert (await executor.execute("1")).text == "1"
        assert [process for process in executor.processes() if process.running] == []


async def test_a_session_that_cannot_reach_the_model_is_refused(interception: InterceptionServer) -> None:
    async with CodeExecutor(working_dir=".") as executor:
        with pytest.raises(SandboxError, match="cannot be relayed"):
            await CellblockRuntime(interception, executor).start()


async def _has(runtime: CellblockRuntime, path: str) -> bool:
    return bool((await runtime.run(["test", "-e", path], {})).exit_code == 0)
