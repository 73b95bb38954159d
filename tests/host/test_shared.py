"""The host that executors of one event loop share: made once, kept warm for a while, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellblock import CodeExecutor, Host, SandboxError
from cellblock.host import shared
from cellblock.walls.sandbox import probe
from processes import alive, below, command_line, eventually


@pytest.fixture(scope="module")
async def warm() -> AsyncIterator[None]:
    """A shared host that is open for the whole module, for tests that need not see it begin or end."""
    host = await shared.acquire()
    async with CodeExecutor():
        pass  # its fork server stays
    yield
    shared.release(host)
    await host.close()


@pytest.fixture(autouse=True)
async def no_shared_host_is_left(request: pytest.FixtureRequest, nothing_left_behind: None) -> AsyncIterator[None]:
    """Other tests begin without a shared host, and close their own, which would stay warm for the next otherwise."""
    if "warm" in request.fixturenames:
        yield
        return
    loop = asyncio.get_running_loop()
    before, shared._shared = shared._shared, {}
    yield
    if (left := shared._shared.pop(loop, None)) is not None:
        if left.timer is not None:
            left.timer.cancel()
        await left.host.close()
    shared._shared = before


def zygotes() -> set[int]:
    """The fork servers that this process has started."""
    return {pid for pid in below(os.getpid()) if "boot.py zygote" in command_line(pid) and _is_child(pid)}


def _is_child(pid: int) -> bool:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]) == os.getpid()


async def test_a_second_executor_starts_no_second_fork_server(warm: None) -> None:
    before = zygotes()
    async with CodeExecutor() as first:
        assert zygotes() == before
        async with CodeExecutor() as second:
            assert zygotes() == before
            await first.execute("x = 1")
            assert (await second.execute("'x' in globals()")).text == "False"


@pytest.mark.slow
async def test_executors_that_start_at_once_start_one_fork_server() -> None:
    before = zygotes()
    executors = [CodeExecutor() for _ in range(5)]
    await asyncio.gather(*(executor.start() for executor in executors))
    assert len(zygotes() - before) == 1
    results = await asyncio.gather(*(executor.execute(f"{number}") for number, executor in enumerate(executors)))
    assert [result.text for result in results] == ["0", "1", "2", "3", "4"]
    await asyncio.gather(*(executor.stop() for executor in executors))


@pytest.mark.slow
async def test_an_executor_after_another_finds_the_host_warm() -> None:
    before = zygotes()
    async with CodeExecutor():
        mine = zygotes() - before
    async with CodeExecutor() as executor:
        assert (await executor.execute("1")).ok
        assert zygotes() - before == mine


@pytest.mark.slow
async def test_a_host_that_nobody_uses_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LINGER", 0.0)
    before = zygotes()
    async with CodeExecutor():
        assert zygotes() - before
    await eventually(lambda: not zygotes() - before)
    async with CodeExecutor() as executor:
        assert (await executor.execute("1")).ok


async def test_a_host_of_ones_own_is_not_shared_and_stays_open(host: Host) -> None:
    before = zygotes()
    async with CodeExecutor(host=host, sandbox=False) as executor:
        assert (await executor.execute("1")).ok
        assert zygotes() == before
    assert not host.closed
    async with CodeExecutor(host=host, sandbox=False) as executor:
        assert (await executor.execute("1")).ok


# -- the sandbox, which is the default ---------------------------------------------------------------------------------

CONFINED = "'NoNewPrivs:\\t1' in open('/proc/self/status').read()"


async def test_a_kernel_is_in_a_sandbox_although_nobody_said_so(warm: None, tmp_path: Path) -> None:
    async with CodeExecutor(working_dir=tmp_path) as executor:
        assert (await executor.execute(CONFINED)).text == "True"


@pytest.mark.slow
async def test_sandbox_false_works_where_there_can_be_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "unsupported", lambda: "nothing that sandboxes are made of")
    async with CodeExecutor(sandbox=False) as executor:
        assert (await executor.execute(CONFINED)).text == "False"
    with pytest.raises(SandboxError, match="nothing that sandboxes are made of"):
        await CodeExecutor().start()


# -- other loops, and programs of their own ----------------------------------------------------------------------------


async def _loops(*, ceremony: bool, times: int) -> list[int]:
    """In a thread without a loop: run an executor in several loops one after the other; count fork servers after each."""

    async def use() -> None:
        async with CodeExecutor() as executor:
            assert (await executor.execute("1")).ok

    def run() -> list[int]:
        counts = []
        for _ in range(times):
            if ceremony:
                asyncio.run(use())
            else:
                loop = asyncio.new_event_loop()
                loop.run_until_complete(use())
                loop.close()
            counts.append(len(zygotes()))
        return counts

    return await asyncio.to_thread(run)


@pytest.mark.slow
async def test_each_asyncio_run_has_a_host_of_its_own_and_closes_it() -> None:
    before = len(zygotes())
    assert await _loops(ceremony=True, times=2) == [before, before]


@pytest.mark.slow
async def test_the_host_of_a_loop_that_was_left_is_closed_by_the_next_one() -> None:
    before = len(zygotes())
    assert await _loops(ceremony=False, times=3) == [before + 1] * 3
    await shared._close_left_behind()
    assert len(zygotes()) == before


@pytest.mark.slow
async def test_a_loop_that_goes_on_after_shutting_its_generators_down_gets_a_new_host() -> None:
    async def use() -> None:
        async with CodeExecutor() as executor:
            assert (await executor.execute("1")).ok

    def run() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        loop.run_until_complete(loop.shutdown_asyncgens())
        with pytest.warns(ResourceWarning, match="scheduled after loop.shutdown_asyncgens"):  # asyncio says so itself
            loop.run_until_complete(use())
        loop.close()

    await asyncio.to_thread(run)
    await shared._close_left_behind()


_ZYGOTE_INIT_WORKER = 3


@contextmanager
def _program(tmp_path: Path, source: str) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, path], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        try:
            yield process
        finally:
            process.kill()


async def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def _ends(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a program to end; return its exit code and what it wrote to stderr."""
    _, said = await asyncio.to_thread(process.communicate, None, 30)
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    ["asyncio.run(main())", "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()"],
    ids=["asyncio.run", "a loop left without ceremony"],
)
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "not stopped"])
async def test_a_program_ends_quietly_and_leaves_nothing(tmp_path: Path, ending: str, stopped: bool) -> None:
    source = """
import asyncio
from cellblock import CodeExecutor

async def main():
    global executor
    executor = CodeExecutor(recovery="none")  # no checkpoint is due while this waits
    await executor.start()
    print((await executor.execute("'running'")).text, flush=True)
    input()
    if STOPPED:
        await executor.stop()

"""
    with _program(tmp_path, source.replace("STOPPED", str(stopped)) + ending) as process:
        assert await _line(process) == "'running'"
        everything = below(process.pid)
        assert len(everything) >= _ZYGOTE_INIT_WORKER
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert await _ends(process) == (0, "")
    await eventually(lambda: not any(alive(pid) for pid in everything))


_INTERRUPTED = """
    import asyncio, signal
    from cellblock import CodeExecutor

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background inherits SIG_IGN

    async def main():
        async with CodeExecutor() as executor:
            async for item in executor.stream("print('busy')\\nwhile True: pass", chunks=True):
                print(item.text, flush=True)

    asyncio.run(main())
"""


@pytest.mark.slow
async def test_ctrl_c_of_a_program_that_awaits_a_cell_ends_it_and_everything_it_started(tmp_path: Path) -> None:
    with _program(tmp_path, _INTERRUPTED) as process:
        assert await _line(process) == "busy"
        everything = below(process.pid)
        assert len(everything) >= _ZYGOTE_INIT_WORKER
        process.send_signal(signal.SIGINT)
        code, said = await _ends(process)
    # What asyncio.run does for any program: one KeyboardInterrupt, and nothing of ours around it.
    assert code == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in said
    assert "exception was" not in said
    await eventually(lambda: not any(alive(pid) for pid in everything))
