"""`cellblock.adapters.openai_agents`, by a real `SandboxAgent` and by sandboxes as it uses them."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.sandbox import Manifest
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, ExecTransportError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from cellblock import InvalidInputError
from cellblock.adapters.openai_agents import CellblockOptions, CellblockSandboxClient
from frameworks.document import check_agent


class Scripted(Model):
    """A model that says one thing after the other: a text, or a tool with its arguments."""

    def __init__(self, *steps: str | tuple[str, dict[str, Any]]) -> None:
        self._steps = [*steps]
        self.seen: list[Any] = []

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        self.seen.append(options.get("input", arguments[1] if len(arguments) > 1 else None))
        step = self._steps.pop(0)
        if isinstance(step, str):
            content = ResponseOutputText(text=step, type="output_text", annotations=[])
            said: Any = ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")
        else:
            number = f"c{len(self._steps)}"
            said = ResponseFunctionToolCall(name=step[0], arguments=json.dumps(step[1]), call_id=number, type="function_call")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
async def sandbox() -> AsyncIterator[Any]:
    client = CellblockSandboxClient()
    session = await client.create(manifest=Manifest(entries={"notes/hello.md": File(content=b"hello\n")}))
    async with session:
        yield session
    await client.delete(session)


def test_the_agent_of_the_page() -> None:
    model = Scripted(("exec_command", {"cmd": "python3 -c 'print(6 * 7)' | tee answer.txt"}), "It is 42.")
    check_agent("OpenAI Agents", model=model)
    assert "42" in str(model.seen[1])


async def test_commands_and_files_are_in_the_sandbox(sandbox: Any) -> None:
    done = await sandbox.exec("cat notes/hello.md; echo error >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"hello\n", b"error\n", 3)
    assert (await sandbox.exec("no-such-program", shell=False)).exit_code == 127
    await sandbox.write(Path("a/b.bin"), io.BytesIO(b"\xff\x00"))
    assert (await sandbox.read(Path("a/b.bin"))).read() == b"\xff\x00"
    assert [Path(entry.path).name for entry in await sandbox.ls("a")] == ["b.bin"]
    await sandbox.rm(Path("a"), recursive=True)
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.read(Path("a/b.bin"))


async def test_a_timeout_and_an_end_are_the_sdks_errors(sandbox: Any) -> None:
    with pytest.raises(ExecTimeoutError):
        await sandbox.exec("sleep 60", timeout=0.5)
    with pytest.raises(NotImplementedError, match="one user"):
        await sandbox.read(Path("notes/hello.md"), user="nobody")
    await sandbox._inner.session.close()
    assert not await sandbox.running()
    with pytest.raises(ExecTransportError):
        await sandbox.exec("true")


async def test_a_program_with_a_terminal_is_typed_to(sandbox: Any) -> None:
    started = await sandbox.pty_exec_start("stty size; read line; echo got $line", tty=True, yield_time_s=0.5)
    assert started.output.strip() == b"24 80"
    ended = await sandbox.pty_write_stdin(session_id=started.process_id, chars="a line\n", yield_time_s=10)
    assert ended.output.splitlines() == [b"a line", b"got a line"]
    assert (ended.process_id, ended.exit_code) == (None, 0)
    waiting = await sandbox.pty_exec_start("sleep 600", yield_time_s=0.25)
    await sandbox.pty_terminate_all()
    with pytest.raises(Exception, match="PTY session not found"):
        await sandbox.pty_write_stdin(session_id=waiting.process_id, chars="")


async def test_a_state_names_a_living_sandbox_or_its_snapshot(tmp_path: Path) -> None:
    client = CellblockSandboxClient()
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        await session.exec("echo kept > file; mkdir empty; ln -s file link")
        payload = client.serialize_session_state(session.state)
        again = await client.resume(client.deserialize_session_state(payload))
        assert again._inner is session._inner
    payload = client.serialize_session_state(session.state)
    await client.delete(session)
    renewed = await client.resume(client.deserialize_session_state(payload))
    async with renewed:
        assert (await renewed.exec("cat link; ls -d empty")).stdout == b"kept\nempty\n"
    await client.delete(renewed)


async def test_options_are_the_clients_and_those_of_a_run() -> None:
    client = CellblockSandboxClient(kernel_env={"REGION": "north"})
    for options, region in ((None, b"north\n"), (CellblockOptions(options={"kernel_env": {"REGION": "south"}}), b"south\n")):
        session = await client.create(options=options, manifest=Manifest(environment={"value": {"SHIP": "sloop"}}))
        async with session:
            assert (await session.exec("echo $REGION")).stdout == region
            assert (await session.exec("echo $SHIP")).stdout == b"sloop\n"
        await client.delete(session)
    with pytest.raises(InvalidInputError, match="working_dirr"):
        CellblockSandboxClient(working_dirr=".")
