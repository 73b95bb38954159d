"""Kernels outlive the process of their host, if a custodian holds them: the next host goes on with them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import processes
from cellblock.errors import CustodianError
from cellblock.host import Host
from cellblock.host.options import SessionHooks, SessionOptions
from cellblock.host.session import Session
from cellblock.host.survival.recording import TapeRecording
from cellblock.launch.custody.custodian import SOCKET
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model import CodeExecutionResult
from git_repositories import Repository
from host.survival.killed_host import Killed
from next_hosts import next_host

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
CHAIN = TESTS / "killed_hosts.py"
RANDOM = TESTS / "random_kills.py"


async def resumed(session: Session, skip: int = 0) -> tuple[list[Any], CodeExecutionResult]:
    """Return the events and the result of the execution that goes on."""
    *events, result = [event async for event in session.cells.resume(skip)]
    assert isinstance(result, CodeExecutionResult)
    return events, result


@pytest.mark.parametrize("killed", ["none", "native", "landlock"], indirect=True)
async def test_variables_outlive_the_host(killed: Killed) -> None:
    killed.run("await session.execute('x = 41; import os; pid = os.getpid()')")
    async with killed.session() as session:
        assert session.succession.adopted
        await resumed(session)
        assert (await session.execute("x += 1; x")).return_value == "42"
        await session.reset()  # the next kernel comes from a zygote of this host
        assert (await session.execute("'x' in globals()")).return_value == "False"


async def test_a_clone_outlives_the_host(killed: Killed) -> None:
    project = Repository(killed.workspace)
    project.commit(a="one")
    killed.run("await session.execute('!echo two > a && git commit -qam two')", workspace="clone")
    async with killed.session(workspace="clone") as session:
        assert (await session.execute("!git log -1 --format=%s")).text == "two"
        assert (await session.clone_fetch()).commits == 1
    assert "refs/cellblock/" not in project.git("for-each-ref")


async def test_branches_of_a_clone_outlive_the_host(killed: Killed) -> None:
    project = Repository(killed.workspace)
    project.commit(a="one")
    body = """
    (branch,) = await session.fork()
    branch.succession.relabel("branch")
    await branch.execute("!echo two > a && git commit -qam two")
    """
    killed.run(body, workspace="clone")
    options = SessionOptions(working_dir=killed.workspace, images_dir=killed.state / "images", workspace="clone")
    async with next_host(killed.state, "native") as (host, remains):
        left = {one.label: one for one in remains}
        session = host.session(options, remains=left["label"], label="label")
        branch = host.session(options, remains=left["branch"], label="branch")
        await session.start()
        await session.close()
        await branch.start()
        assert (await branch.execute("!git log -1 --format=%s")).text == "two"
        assert (await branch.clone_fetch()).commits == 1
        await branch.reset()
        assert (await branch.execute("!git log -1 --format=%s")).text == "two"
        root = Path(branch.workspace).parent
        await branch.close()
        await processes.eventually(lambda: not root.exists())
    assert "refs/cellblock/" not in project.git("for-each-ref")


BEFORE_IT_IS_SENT = """
await session.execute('x = 1', tag='a')
await session.execute('x = 2', tag='b')
from cellblock.host.kernels.kernel import Kernel
Kernel.begin = lambda *_: die()
await session.execute('x = 3', tag='c')
"""
WHILE_IT_IS_WRITTEN = """
await session.execute('x = 1', tag='a')
await session.execute('x = 2', tag='b')
def cut(fd, parts, place):
    os.pwrite(fd, parts[0], place)
    die()
os.pwritev = cut
await session.execute('x = 3', tag='c')
"""
AFTER_ONE_THAT_WAS_NOT_SENT = """
import errno
from cellblock.errors import BusyError
from cellblock.host.survival.tape import Tape
await session.execute('x = 1', tag='a')
await session.execute('x = 2', tag='b')
queue = Tape.queue
def full(*_):
    raise OSError(errno.ENOSPC, "no space")
Tape.queue = full
try:
    await session.execute('x = 3', tag='c')
except BusyError as error:
    assert "no space" in str(error), error
    assert session.next_count == 3
    assert [cell.code for cell in session.history()] == ['x = 1', 'x = 2']
    Tape.queue = queue
    {then}
    die()
"""


@pytest.mark.parametrize(
    "program",
    [
        BEFORE_IT_IS_SENT,
        WHILE_IT_IS_WRITTEN,
        AFTER_ONE_THAT_WAS_NOT_SENT.format(then=""),
        AFTER_ONE_THAT_WAS_NOT_SENT.format(then="await session.execute('x += 1; y = x'); await session.undo()"),
    ],
    ids=["killed before", "killed meanwhile", "killed after", "killed after another"],
)
async def test_a_cell_that_was_not_sent_leaves_no_trace(killed: Killed, program: str) -> None:
    """The last cell is the one before, which is in the history once, and is what undo undoes."""
    killed.run(program)
    async with killed.session() as session:
        if session.cells.resumed is not None:
            await resumed(session)
        assert [cell.code for cell in session.history() if not cell.abandoned] == ["x = 1", "x = 2"]
        assert (await session.execute("x, 'y' in globals()")).return_value == "(2, False)"
        assert [cell.code for cell in (await session.undo(2)).cells] == ["x = 2", "x, 'y' in globals()"]
        assert (await session.execute("x")).return_value == "1"


def chain(killed: Killed, first: int, last: int, step: int, *mode: str) -> list[dict[str, Any]]:
    """Run a chain of hosts; return what each has said."""
    arguments = (CHAIN, killed.state, killed.workspace, killed.isolate, first, last, step, *mode)
    command = [sys.executable, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def expected(number: int) -> list[object]:
    """Return what the cell of a chain results in, when it is run for the nth time."""
    line = "?line\nline\n" if number % 2 else "x" * 5000 + "\n"
    outputs = [
        ["stream", "stdout", f"begin {number}\npipe {number}\nthen {number}\n"],
        ["display_data", None, f"{number}"],
        ["stream", "stdout", line],
        ["execute_result", None, str(number)],
    ]
    return ["success", outputs, number]


def check_chain(said: list[dict[str, Any]]) -> None:
    """Check that every execution that began has had its whole result, and ran once."""
    results: dict[str, object] = {}
    for line in said:
        if "passed" in line:
            continue
        assert line["adopted"]
        if line["tag"] is not None:
            results.setdefault(line["tag"], line["result"])
            assert results[line["tag"]] == line["result"]
    assert list(results.values()) == [expected(number) for number in range(1, len(results) + 1)]


@pytest.mark.parametrize("killed", ["none", "native", "landlock"], indirect=True)
@pytest.mark.sampled(2)
def test_a_host_can_be_killed_at_every_step(killed: Killed) -> None:
    said = chain(killed, 1, 90, 1)
    check_chain(said)
    assert any("passed" in line for line in said)  # so every point before was tried


@pytest.mark.parametrize("killed", ["none", "native"], indirect=True)
@pytest.mark.sampled(2)
def test_a_host_can_be_killed_while_it_takes_over(killed: Killed) -> None:
    said = chain(killed, 1, 36, 1, "early")
    assert said[-1]["result"] == expected(1)
    assert said[-2]["passed"] < 36  # so every point was tried


@pytest.mark.parametrize(("killed", "kills"), [("none", 30), ("native", 20)], indirect=["killed"])
@pytest.mark.sampled(2)
def test_fifty_hosts_can_be_killed_at_any_moment(killed: Killed, kills: int) -> None:
    command = [sys.executable, str(RANDOM), str(killed.state), str(killed.workspace), killed.isolate, str(kills), "1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    results: dict[str, object] = {}
    for line in map(json.loads, ran.stdout.splitlines()):
        results.setdefault(line["tag"], line)
        assert results[line["tag"]] == line
        output = sorted([*(f"{line['tag']} {i}" for i in range(5)), *map(str, range(5)), ""])
        assert (line["status"], line["output"]) == ("success", output)
    begun = (killed.workspace / "ran").read_text().split()
    assert len(set(begun)) == len(begun)  # none ran twice
    assert set(begun) == set(results)  # none was lost


async def test_a_reader_goes_on_where_the_last_one_was(killed: Killed) -> None:
    code = "import time\nfor i in range(300):\n    print('line', i, flush=True)\n    time.sleep(0.001)"
    killed.run("await until(session, 'line 50', timeout=60)", code)
    async with killed.session() as session:
        assert session.cells.resumed == "tag"
        events, result = await resumed(session)
        lines = [f"line {i}" for i in range(300)]
        assert "".join(event.text for event in events).splitlines() == lines
        assert result.output.splitlines() == lines
    assert result.ok


async def test_events_that_were_kept_are_skipped(killed: Killed) -> None:
    code = "for i in range(9):\n    print('line', i, flush=True)\n    display({'text/html': str(i)}, raw=True)\ninput()"
    killed.run("await until(session, 'line 8', on_input=lambda prompt: asyncio.sleep(1000))", code)
    async with killed.session(on_input=lambda prompt: "x") as session:
        events, _ = await resumed(session, skip=5)
        texts = "".join(event.text for event in events)
        assert texts.startswith("2\nline 3\n"), texts


async def test_fifty_megabytes_go_on_and_cost_little(killed: Killed) -> None:
    code = "for i in range(50_000):\n    print(i, 'x' * 1000)\nprint(input())"
    killed.run("await until(session, '40000 x', on_input=lambda prompt: 'y')", code)
    async with killed.session(on_input=lambda prompt: "y") as session:
        _, result = await resumed(session)
        assert result.ok
        assert result.truncated
        assert result.output.startswith("0 xxx")
        assert result.output.endswith("x\ny\ny\n")
        kernel = session._kernels.current
        assert kernel is not None
        assert isinstance(kernel.recording, TapeRecording)
        assert sum(os.fstat(fd).st_blocks * 512 for fd in kernel.recording.tape.fds) < 16 * 1024 * 1024


async def test_input_is_asked_for_again(killed: Killed) -> None:
    killed.run(
        """
        async def ask(prompt):
            die()
        await session.execute("print('before'); print('got', input('name? '))", on_input=ask, tag="asks")
        """
    )
    prompts = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "Ada"

    async with killed.session(on_input=answer) as session:
        assert session.cells.resumed == "asks"
        _, result = await resumed(session)
        assert prompts == ["name? "]
        assert result.output == "before\nname? Ada\ngot Ada\n"


async def test_a_deadline_counts_from_the_real_beginning(killed: Killed) -> None:
    killed.run("await until(session, 'go', timeout=0.3)", "import time\nprint('go', flush=True)\ntime.sleep(1000)")
    async with killed.session() as session:
        _, result = await resumed(session)
        assert result.status == "timeout"
        assert (await session.execute("1")).ok


async def test_a_kernel_that_died_meanwhile_says_how(killed: Killed) -> None:
    code = """
import os, time
print('go', flush=True)
while os.path.exists('stay'):
    time.sleep(0.001)
print('last', flush=True)
os.kill(os.getpid(), 11)
"""
    stay = killed.workspace / "stay"
    stay.touch()
    killed.run("await until(session, 'go')", code)
    stay.unlink()
    async with killed.session() as session:
        _, result = await resumed(session)
        assert result.status == "died"
        assert result.output == "go\nlast\n"
        assert result.error is not None
        assert "segmentation fault" in result.error.evalue
        assert (await session.execute("1")).ok


@pytest.mark.parametrize("earlier", ["restarted", "restored_earlier"])
@pytest.mark.parametrize("moment", ["while it is replaced", "afterwards"])
async def test_that_a_kernel_has_died_between_cells_is_said_by_the_next_host(
    killed: Killed, earlier: str, moment: str
) -> None:
    killed.run(f"""
        from cellblock.host.kernels.kernel import Kernel
        await session.execute("x = 1")
        while not session.checkpoints():
            await asyncio.sleep(0.001)
        for checkpoint in session.checkpoints() if {earlier == "restarted"} else ():
            await checkpoint.drop()
        await session.execute("y = 2; import asyncio, os; asyncio.get_running_loop().call_soon(os._exit, 3)")
        if {moment == "while it is replaced"}:
            Kernel.take_over_output = lambda *_: die()
        while await session.has_kernel():
            await asyncio.sleep(0.001)
        await session.wait_for_kernel()
    """)
    async with killed.session() as session:
        result = await session.execute("'x' in globals(), 'y' in globals()")
        assert result.recovery == earlier
        assert (result.text or "").count("The kernel died between cells: ") == 1
        assert result.return_value == str((earlier == "restored_earlier", False))
        assert (await session.execute("1")).recovery is None


async def test_all_ends_with_the_custodian(killed: Killed) -> None:
    killed.run("await until(session, 'go')", "import time\nprint('go', flush=True)\ntime.sleep(1000)")
    custodian = Custodian.connect(killed.state)
    place = Path(json.loads(next(entry.data for key, entry in custodian.entries.items() if key[:6] == "place/"))["path"])
    running = processes.below(custodian.pid)
    assert running
    os.kill(custodian.pid, signal.SIGKILL)
    custodian.close()
    await processes.eventually(lambda: not any(map(processes.alive, running)))
    await processes.eventually(lambda: not place.exists())


async def test_a_host_whose_custodian_has_ended_says_so(killed: Killed) -> None:
    custodian = Custodian.connect(killed.state)
    host = Host(isolate="none", custodian=custodian)
    await host.adopt()
    session = host.session(working_dir=killed.workspace, images_dir=killed.state / "images")
    await session.start()
    os.kill(custodian.pid, signal.SIGKILL)
    kernel = session._kernels.current
    assert kernel is not None
    await processes.eventually(lambda: kernel.death is not None)
    with pytest.raises(CustodianError, match="restart the daemon"):
        await session.execute("1")
    await host.close()
    custodian.close()


async def test_a_long_session_costs_no_descriptors_and_little_memory(killed: Killed) -> None:
    async with next_host(killed.state, "none") as (host, _):
        session = host.session(working_dir=killed.workspace, images_dir=killed.state / "images")
        await session.start()
        await session.execute("x = 1")
        await processes.eventually(session.checkpoints)  # the first one opens a connection
        await session.execute("x = 1")
        before = len(processes.descriptors())
        for _ in range(400):
            await session.execute("print('x' * 5000)")
        await processes.eventually(lambda: len(processes.descriptors()) <= before)
        kernel = session._kernels.current
        assert kernel is not None
        assert isinstance(kernel.recording, TapeRecording)
        assert sum(os.fstat(fd).st_blocks * 512 for fd in kernel.recording.tape.fds) < 3 * 1024 * 1024


async def test_a_call_that_waits_fails_and_the_next_one_is_served(killed: Killed) -> None:
    code = """
import os, socket

def call(text):
    connection = socket.create_connection(("127.0.0.1", int(os.environ["CELLBLOCK_TOOL_PORT"])))
    connection.sendall(text)
    try:
        return connection.recv(100)
    except ConnectionError:
        return b""

print(call(b"first"))
print(call(b"second"))
"""
    killed.run(
        """
        async def serve(reader, writer):
            assert await reader.read(100) == b"first"
            die()

        def take(listener):
            global serving
            serving = asyncio.create_task(asyncio.start_server(serve, sock=listener))
            return listener.close

        from cellblock.host.options import SessionHooks, SessionOptions
        other = host.session(
            working_dir=session.workspace, images_dir="/tmp", label="tools", hooks=SessionHooks(tool_port=take)
        )
        await other.start()
        await other.execute(CODE, timeout=60, tag="calls")
        """.replace("CODE", repr(code))
    )
    heard = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.write(b"answer")
        writer.close()

    serving: list[asyncio.Task[asyncio.Server]] = []

    def take(listener: socket.socket) -> Callable[[], None]:
        serving.append(asyncio.create_task(asyncio.start_server(serve, sock=listener)))
        return listener.close

    async with next_host(killed.state, "native") as (host, remains):
        plain, tools = sorted(remains, key=lambda left: left.label)
        await host.discard(plain)
        session = host.session(
            working_dir=killed.workspace,
            images_dir=killed.state,
            label="tools",
            remains=tools,
            hooks=SessionHooks(tool_port=take),
        )
        await session.start()
        _, result = await resumed(session)
        assert result.output == "b''\nb'answer'\n"
        assert heard == [b"second"]
        server = await serving[0]
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("killed", ["native", "landlock"], indirect=True)
async def test_code_cannot_reach_the_custodian(killed: Killed) -> None:
    async with next_host(killed.state, killed.isolate) as (host, _):
        session = host.session(working_dir=killed.workspace, images_dir=killed.state / "images")
        await session.start()
        # From within the directory: an address may have 107 bytes only.
        result = await session.execute(
            f"import os, socket\nos.chdir({str(killed.state)!r})\n"
            f"socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect({SOCKET!r})"
        )
        assert result.error is not None
        assert result.error.ename in ("FileNotFoundError", "PermissionError")
