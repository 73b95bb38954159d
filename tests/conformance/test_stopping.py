"""A timeout, a cancellation and an interrupt mean that the code has stopped; the session goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock import CodeExecutionResult, Host, Session, StateError
from cellblock.host.kernels import stopping
from cellblock.host.kernels.kernel import Kernel
from cells import ok, running, value
from processes import eventually
from suite import first_quick

# Code that lets go at the first interrupt, whatever it is doing.
ENDLESS = {
    "a loop": "while True: pass",
    "a sleep": "import time; time.sleep(60)",
    "an await": "import asyncio; await asyncio.sleep(60)",
    "a command": "!sleep 60",
    "a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(5,), daemon=True)\nt.start(); t.join()",
    "a bash cell": "%%bash\nsleep 60",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '60'])",
    "a pipe": "import os; r, w = os.pipe(); os.read(r, 1)",
    "a select": "import select; select.select([], [], [])",
    "prints": "while True: print('x' * 60)",
    "prints of another kind": "import itertools\nfor i in itertools.count(): print(i, end=' ')",
    "displays": "from IPython.display import display, HTML\nwhile True: display(HTML('x'))",
    "writes": "import os\nwhile True: os.write(1, b'x' * 1000)",
    "a noisy command": "!yes",
    "asyncio.run": "import asyncio\nasyncio.run(asyncio.sleep(60))",
    "a gather": "import asyncio\nawait asyncio.gather(*(asyncio.sleep(60) for _ in range(10)))",
    "a repr": "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
    "a generator": "sum(1 for _ in iter(int, 1))",
    "a finally": "import time\ntry:\n    time.sleep(60)\nfinally:\n    done = True",
    "timeit": "%timeit -n 1000000000 pass",
}


async def stopped(session: Session, code: str, timeout: float = 0.1) -> CodeExecutionResult:
    """Run a cell past its deadline, and check that the session answers at once afterwards."""
    result = await session.execute(code, timeout=timeout)
    assert result.status == "timeout", result.text
    assert result.error is not None
    assert result.error.ename == "TimeoutError"
    assert await value(session, "40 + 2") == 42
    return result


@pytest.mark.parametrize("code", first_quick(ENDLESS.values(), 4), ids=ENDLESS)
async def test_a_cell_is_stopped_by_one_interrupt_and_keeps_its_variables(session: Session, code: str) -> None:
    await ok(session, "kept = 'kept'")
    result = await stopped(session, code, timeout=0.1)
    assert result.recovery == "interrupted"
    assert not result.state_lost
    assert await value(session, "kept") == "kept"


async def test_a_stopped_cell_says_where_it_was(session: Session) -> None:
    result = await session.execute("def busy():\n    while True:\n        pass  # here\nprint('begun')\nbusy()", timeout=0.2)
    assert result.error is not None
    assert "in busy()" in "\n".join(result.error.traceback)
    assert "# here" in "\n".join(result.error.traceback)
    assert result.error.traceback[-1].startswith("TimeoutError: ")
    assert "KeyboardInterrupt" not in "\n".join(result.error.traceback)
    assert result.output == "begun\n"
    assert "deadline" in result.error.evalue


@pytest.mark.slow
async def test_a_cell_that_catches_one_interrupt_is_stopped_by_the_second(session: Session) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(60)"
    assert (await stopped(session, "kept = 1\n" + code)).recovery == "interrupted_twice"
    assert await value(session, "kept") == 1


@pytest.mark.slow
async def test_an_await_that_swallows_its_cancellation_is_stopped_by_the_second_interrupt(session: Session) -> None:
    code = "import asyncio\ntry:\n    await asyncio.sleep(60)\nexcept asyncio.CancelledError:\n    await asyncio.sleep(60)"
    assert (await stopped(session, "kept = 1\n" + code)).recovery == "interrupted_twice"
    assert await value(session, "kept") == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let interrupts have a tenth of the time in which they usually work: here they never do."""
    steps = [(name, act, seconds / 10 if act is Kernel.interrupt else seconds) for name, act, seconds in stopping._LADDER]
    monkeypatch.setattr(stopping, "_LADDER", tuple(steps))


@pytest.mark.launcher
@pytest.mark.slow
async def test_a_cell_that_waits_for_a_stubborn_child_is_stopped_by_killing_the_child(
    session: Session, impatient: None
) -> None:
    code = """
import subprocess
kept = 1
child = subprocess.Popen(["sh", "-c", "trap '' INT; while true; do sleep 60; done"])
while True:
    try:
        child.wait()
        break
    except KeyboardInterrupt:
        pass
"""
    assert (await stopped(session, code)).recovery == "killed_children"
    assert await value(session, "kept") == 1


STUBBORN = {
    "ignores the signal": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "catches everything": "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException: pass",
    "blocks the signal": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass",
    "ignores all it can": "import signal\nfor n in signal.valid_signals() - {9, 19}:\n    signal.signal(n, signal.SIG_IGN)\n"
    "while True: pass",
    "is stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "is in C code": "sum(iter(int, 1))",
}


@pytest.mark.launcher
@pytest.mark.slow
@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
async def test_a_cell_that_ignores_signals_is_stopped_and_costs_only_itself(
    session: Session, impatient: None, code: str
) -> None:
    await ok(session, "kept = 1")
    result = await session.execute(f"kept = 2; print('said')\n{code}", timeout=0.2)
    assert result.status == "timeout"
    assert result.recovery == "restored"
    assert not result.state_lost
    assert result.output == "said\n"
    assert result.error is not None
    assert "variables have the values from then" in result.error.evalue
    assert await value(session, "kept") == 1


async def test_code_that_ran_past_its_deadline_runs_no_more(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    code = f"import time\nwhile True:\n    open({str(file)!r}, 'a').write('x')\n    time.sleep(0.001)"
    assert (await session.execute(code, timeout=0.2)).status == "timeout"
    size = file.stat().st_size
    assert size > 0
    await ok(session, "import time; time.sleep(0.1)")
    assert file.stat().st_size == size


async def test_a_cell_that_finishes_in_its_own_way_when_interrupted_is_still_a_timeout(session: Session) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('cleaned up')"
    result = await stopped(session, code)
    assert result.output == "cleaned up\n"
    assert result.recovery == "interrupted"


@pytest.mark.slow
async def test_a_timeout_while_a_flood_of_output_comes_keeps_its_head_and_tail(session: Session) -> None:
    result = await stopped(session, "n = 0\nwhile True:\n    print(n)\n    n += 1", timeout=1)
    assert result.recovery == "interrupted"
    assert result.output.startswith("0\n1\n2\n")
    last = await value(session, "n")
    assert int(result.output.rstrip().rpartition("\n")[2]) in (last, last - 1)


async def test_a_timeout_while_input_is_awaited_stops_the_cell(session: Session) -> None:
    async def never(_prompt: str) -> str:
        await asyncio.sleep(60)
        return "late"

    result = await session.execute("input('? ')", timeout=0.2, on_input=never)
    assert result.status == "timeout"
    assert result.recovery == "interrupted"
    assert await value(session, "input()", on_input=lambda _prompt: "prompt") == "prompt"


async def test_a_timeout_during_an_import_leaves_an_interpreter_that_can_import_it(session: Session, tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import time, pathlib\nif not pathlib.Path(__file__ + 'x').exists(): time.sleep(60)\n"
    )
    await ok(session, f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert (await stopped(session, "import slow_module")).recovery == "interrupted"
    (tmp_path / "slow_module.pyx").touch()
    await ok(session, "import slow_module")


async def test_interrupt_stops_the_running_cell_and_says_that_it_did(session: Session) -> None:
    cell = await running(session, "kept = 1\nprint('on')\nwhile True: pass")
    assert await session.interrupt() is True
    result = await asyncio.wait_for(cell, 10)
    assert result.status == "interrupted"
    assert result.recovery == "interrupted"
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert await value(session, "kept") == 1


async def test_interrupt_without_a_running_cell_does_nothing(session: Session) -> None:
    assert await session.interrupt() is False
    assert await value(session, "1") == 1


async def test_an_interrupt_right_after_the_start_stops_the_cell_at_once(session: Session) -> None:
    cases: list[float] = [0, 0.0005, 0.001, 0.002]
    for moment in cases:
        for _ in range(2):
            # Not a sleep: Python does not notice a signal that comes just before a system call, until a second one comes.
            running = asyncio.create_task(session.execute("while True: pass"))
            await asyncio.sleep(moment)
            while not await session.interrupt():
                await asyncio.sleep(0)
            result = await running
            assert (result.status, result.recovery) == ("interrupted", "interrupted")


async def test_an_interrupt_of_a_callback_before_the_code_stops_the_cell_as_well(session: Session, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"""
import pathlib, time
def before(info):
    get_ipython().events.unregister("pre_run_cell", before)
    pathlib.Path({str(begun)!r}).touch()
    time.sleep(60)
get_ipython().events.register("pre_run_cell", before)
"""
    await ok(session, code)
    running = asyncio.create_task(session.execute("ran = True; time.sleep(60)"))
    await eventually(begun.exists)
    assert await session.interrupt()
    result = await running
    assert (result.status, result.recovery) == ("interrupted", "interrupted")
    assert await value(session, "'ran' in globals()") is False


async def test_a_deadline_that_is_over_before_the_cell_begins_stops_it_at_once(session: Session) -> None:
    for _ in range(2):
        result = await session.execute("while True: pass", timeout=1e-9)
        assert (result.status, result.recovery) == ("timeout", "interrupted")


async def test_cancelling_the_task_that_waits_stops_the_code(session: Session, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"n = 1\nimport pathlib; pathlib.Path({str(begun)!r}).touch()\nwhile True: n += 1"
    cell = asyncio.create_task(session.execute(code))
    await eventually(begun.exists)
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    first = await value(session, "n")
    assert first > 0
    assert await value(session, "n") == first


async def test_cancelling_a_task_that_waits_for_its_turn_leaves_the_running_cell_alone(
    session: Session, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    cell = await running(
        session, f"import os, time\nprint('on')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n'done'"
    )
    waiting = asyncio.create_task(session.execute("ran = True"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.touch()
    assert (await cell).return_value == "'done'"
    assert (await session.execute("ran")).status == "error"


async def test_breaking_out_of_a_stream_stops_the_code(session: Session) -> None:
    stream = session.stream("n = 0\nwhile True:\n    n += 1\n    print(n)")
    async for _chunk in stream:
        break
    await stream.aclose()
    first = await value(session, "n")
    assert await value(session, "n") == first


@pytest.mark.launcher
async def test_closing_during_a_cell_ends_it_with_a_result(host: Host, tmp_path: Path) -> None:
    session = host.session(images_dir=tmp_path)
    await session.start()
    cell = await running(session, "print('on', flush=True)\nwhile True: pass")
    await session.close()
    result = await cell
    assert result.status == "interrupted"
    assert result.output == "on\n"
    with pytest.raises(StateError, match="closed"):
        await session.execute("1")


async def test_closing_while_cells_wait_for_their_turn_refuses_them(host: Host, tmp_path: Path) -> None:
    session = host.session(images_dir=tmp_path)
    await session.start()
    cells = [await running(session, "print('on')\nimport time; time.sleep(60)")]
    cells += [asyncio.create_task(session.execute("import time; time.sleep(60)")) for _ in range(2)]
    await asyncio.sleep(0)
    await session.close()
    first, *others = await asyncio.wait_for(asyncio.gather(*cells, return_exceptions=True), 5)
    assert isinstance(first, CodeExecutionResult)
    assert first.status == "interrupted"
    assert [type(other) for other in others] == [StateError, StateError]


@pytest.mark.launcher
async def test_reset_during_a_cell_ends_it_and_gives_a_fresh_kernel(session: Session) -> None:
    cell = await running(session, "old = 1\nprint('on')\nwhile True: pass")
    await session.reset()
    assert (await cell).status == "interrupted"
    assert (await session.execute("old")).status == "error"
    assert (await ok(session, "1")).execution_count == 2


@pytest.mark.launcher
async def test_children_of_an_interrupted_cell_that_were_started_in_it_get_the_interrupt_too(session: Session) -> None:
    code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\ntime.sleep(60)"
    await stopped(session, code)
    assert await value(session, "child.wait(5)") == -2


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep({})",
        "import asyncio; await asyncio.sleep({})",
        "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass",
        "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: print(1)",
        "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: display(1)",
        "import time; time.sleep({}); print('end'); 1",
    ],
    ids=["sleep", "await", "loop", "prints", "displays", "value"],
)
async def test_a_late_interrupt_never_hits_the_next_cell(session: Session, code: str) -> None:
    await ok(session, "runs = 0")
    seen = set()
    duration = 0.004
    for run in range(60):
        result = await session.execute(code.format(duration), timeout=duration + (run % 20) * 0.0002)
        assert result.status in ("success", "timeout"), result.text
        assert result.recovery in (None, "interrupted"), result.text
        seen.add(result.status)
        result = await session.execute("print('a')\nruns += 1\nprint('b')")
        assert result.status == "success", result.text
        assert result.text == "a\nb"
    assert await value(session, "runs") == 60
    assert "timeout" in seen


@pytest.mark.stress
@pytest.mark.slow
async def test_a_late_interrupt_by_the_caller_never_hits_the_next_cell(session: Session) -> None:
    await ok(session, "runs = 0")
    for run in range(200):
        running = asyncio.create_task(session.execute("import time; time.sleep(0.003)"))
        await asyncio.sleep(0.003 + run % 20 * 0.0002)
        await session.interrupt()
        assert (await running).status in ("success", "interrupted")
        await ok(session, "runs += 1")
    assert await value(session, "runs") == 200
