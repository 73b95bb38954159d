"""Handlers that code sets for signals run, may raise, and never put the kernel out of step with its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Session
from cells import ok, value
from processes import eventually


async def test_an_alarm_whose_handler_raises_ends_the_cell_with_its_error(session: Session) -> None:
    """Also a cell that awaits."""
    code = """
import signal, time
def late(number, frame):
    raise TimeoutError("too late")
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(60)
"""
    result = await session.execute(code)
    assert result.status == "error"
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("TimeoutError", "too late")
    assert await value(session, "1") == 1
    # An alarm whose handler raises ends a cell that awaits.
    code = """
import signal, asyncio
def late(number, frame):
    raise TimeoutError("too late")
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.05)
await asyncio.sleep(60)
"""
    result = await session.execute(code, timeout=20)
    assert result.status == "error"
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("TimeoutError", "too late")
    assert await value(session, "1") == 1


async def test_a_handler_that_raises_between_cells_is_reported_with_the_next_and_the_kernel_lives(
    session: Session, tmp_path: Path
) -> None:
    code = f"""
import pathlib, signal
kept = 1
def late(number, frame):
    pathlib.Path({str(tmp_path)!r}, 'late').touch()
    raise TimeoutError("nobody is here")
signal.signal(signal.SIGALRM, late)
_ = signal.setitimer(signal.ITIMER_REAL, 0.05)
"""
    await ok(session, code)
    await eventually((tmp_path / "late").exists)
    result = await ok(session, "kept")
    assert result.return_value == "1"
    assert "nobody is here" in result.stderr
    assert not result.state_lost


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("action", ["print('x' * 50)", "display(1)", "print('a', end=' '); sys.stderr.write('b\\n')"])
async def test_handlers_that_raise_a_thousand_times_a_second_never_cut_a_frame(
    session: Session, action: str, threads: int
) -> None:
    # With other threads about, the system hands the signal to one of those where the main thread blocks it.
    code = f"""
import signal, sys, threading, time
stop = threading.Event()
for _ in range({threads}):
    threading.Thread(target=stop.wait).start()
class Tick(Exception):
    pass
armed, hits = False, 0
def tick(number, frame):
    global armed, hits
    if armed:
        hits += 1
        armed = False  # here, as the next one may come before anybody has caught this one
        raise Tick
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        armed = True
        for _ in range(1000):
            {action}
        armed = False
    except Tick:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
"""
    result = await session.execute(code, timeout=30)
    # IPython shows what a formatter raises, and goes on; that is an error that does not end the cell.
    shown = action == "display(1)" and result.error is not None and result.error.ename == "Tick"
    assert result.status == "success" or shown, result.text
    assert await value(session, "hits") > 0
    result = await ok(session, "print('in step')\n42")
    assert result.text == "in step\n42"


@pytest.mark.stress
@pytest.mark.slow
async def test_handlers_that_raise_at_any_moment_never_cost_a_cell_its_reply(session: Session) -> None:
    code = "import signal\ndef tick(number, frame):\n    raise TimeoutError\n_ = signal.signal(signal.SIGALRM, tick)"
    await ok(session, code)
    await session.execute("_ = signal.setitimer(signal.ITIMER_REAL, 0.007, 0.007)")
    seen = set()
    for _ in range(300):
        result = await session.execute("print('a')\n_ = sum(range(100_000))", timeout=10)
        seen.add(result.status)
        assert result.recovery is None
    assert seen == {"success", "error"}
    while (await session.execute("_ = signal.setitimer(signal.ITIMER_REAL, 0)")).status != "success":
        pass
    assert await value(session, "40 + 2") == 42


async def test_handlers_of_the_code_are_called(session: Session) -> None:
    """A cell can handle the interrupt itself."""
    # Code sees its own handlers.
    code = """
import signal
def mine(number, frame): ...
before = signal.signal(signal.SIGUSR1, mine)
(before == signal.SIG_DFL, signal.getsignal(signal.SIGUSR1) is mine, signal.signal(signal.SIGUSR1, before) is mine)
"""
    assert await value(session, code) == (True, True, True)
    # A handler that prints in the middle of a print is heard.
    code = """
import itertools, signal
numbers, heard = itertools.count(1), 0
def tick(number, frame):
    global heard
    mine = next(numbers)
    print(f"tick {mine}\\n", end="")  # in one piece: the next tick may come in the middle of this one
    heard = mine
signal.signal(signal.SIGALRM, tick)
_ = signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while heard < 20:
    print(".")
_ = signal.setitimer(signal.ITIMER_REAL, 0)
"""
    result = await ok(session, code)
    heard = await value(session, "next(numbers)") - 1
    assert heard >= 20
    assert not result.truncated
    assert [number for number in range(1, heard + 1) if f"tick {number}\n" not in result.output] == []
    # Asyncio signal handlers work.
    code = """
import asyncio, os, signal
got = asyncio.Event()
loop = asyncio.get_running_loop()
loop.add_signal_handler(signal.SIGUSR1, got.set)
os.kill(os.getpid(), signal.SIGUSR1)
await asyncio.wait_for(got.wait(), 5)
loop.remove_signal_handler(signal.SIGUSR1)
"""
    await ok(session, code)
    assert (await session.execute("while True: pass", timeout=0.1)).recovery == "interrupted"
    # A cell can handle the interrupt itself.
    code = """
import signal, time
stopped = False
def handler(number, frame):
    global stopped
    stopped = True
before = signal.signal(signal.SIGINT, handler)
while not stopped:
    time.sleep(0.01)
_ = signal.signal(signal.SIGINT, before)
print("finished in its own way")
"""
    result = await session.execute(code, timeout=0.2)
    assert result.recovery == "interrupted"
    assert result.output == "finished in its own way\n"
    assert (await session.execute("while True: pass", timeout=0.1)).recovery == "interrupted"
