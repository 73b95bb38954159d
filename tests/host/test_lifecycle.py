"""Starts, stops and cancellations at any moment: nothing is lost, and what was begun can be completed.

What is left after a test, `nothing_left_behind` counts: processes, descriptors, files.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellblock import (
    CellblockError,
    CodeExecutor,
    Host,
    InvalidInputError,
    KernelDiedError,
    LaunchError,
    Session,
    StateError,
)
from cellblock.host.kernels import stopping
from cellblock.host.shared import _shared
from clocks import hurry_stopping
from iterations import cancelled_after
from processes import eventually

_NUMBERS = {"zygote": (0, 2, 6, 12), "spawn": (0, 1, 2, 3, 5, 8)}


@pytest.fixture(params=["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
def launching(request: pytest.FixtureRequest, zygote_host: Host) -> tuple[Host, tuple[int, ...]]:
    """A host for each launcher, and after how many iterations operations are cancelled."""
    name: str = request.param
    return (zygote_host if name == "zygote" else request.getfixturevalue("spawn_host")), _NUMBERS[name]


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that can go back to an earlier state."""
    async with host.session(images_dir=tmp_path) as session:
        yield session


Operation = Callable[[Session], Coroutine[Any, Any, object]]

OPERATIONS: dict[str, Operation] = {
    "execute": lambda session: session.execute("import time; time.sleep(0.01)"),
    "complete": lambda session: session.complete("pri"),
    "reset": lambda session: session.reset(),
    "interrupt": lambda session: session.interrupt(),
}


def kernels_of(host: Host) -> int:
    return len(host.kernels.alive)


async def test_a_start_that_is_cancelled_anywhere_leaves_nothing(
    launching: tuple[Host, tuple[int, ...]], tmp_path: Path
) -> None:
    host, numbers = launching
    before = kernels_of(host), len(host._sessions)
    for number in numbers:
        session = host.session(images_dir=tmp_path)
        await cancelled_after(number, session.start())
        await session.close()
        assert (kernels_of(host), len(host._sessions)) == before, number


@pytest.mark.parametrize("name", OPERATIONS)
async def test_after_an_operation_that_is_cancelled_anywhere_the_session_goes_on(
    launching: tuple[Host, tuple[int, ...]], tmp_path: Path, name: str
) -> None:
    host, numbers = launching
    before = kernels_of(host)
    async with host.session(images_dir=tmp_path) as session:
        for number in numbers:
            await cancelled_after(number, OPERATIONS[name](session))
            assert (await session.execute("1 + 1")).return_value == "2", number
            assert kernels_of(host) == before + 1, number
    assert kernels_of(host) == before


async def test_a_close_that_is_cancelled_anywhere_is_completed(
    launching: tuple[Host, tuple[int, ...]], tmp_path: Path
) -> None:
    host, numbers = launching
    before = kernels_of(host), len(host._sessions)
    for number in numbers[::2]:
        session = host.session(images_dir=tmp_path)
        await session.start()
        await cancelled_after(number, session.close())
        await session.close()
        assert (kernels_of(host), len(host._sessions)) == before, number


@pytest.mark.slow
async def test_an_executor_that_is_cancelled_anywhere_leaves_nothing(host: Host, tmp_path: Path) -> None:
    before = kernels_of(host), len(host._sessions)
    for number in (0, 1, 2, 3, 5, 8, 12, 20):
        executor = CodeExecutor(host=host, sandbox=False, images_dir=tmp_path)
        await cancelled_after(number, executor.start())
        await executor.stop()
        assert (kernels_of(host), len(host._sessions)) == before, number
        await executor.start()
        await cancelled_after(number, executor.stop())
        await executor.stop()
        assert (kernels_of(host), len(host._sessions)) == before, number


@pytest.mark.slow
async def test_a_host_whose_close_is_cancelled_anywhere_can_be_closed(tmp_path: Path) -> None:
    for number in (0, 2, 5, 9):
        host = Host(isolate="none")
        await host.session(images_dir=tmp_path).start()
        await cancelled_after(number, host.close())
        await host.close()
        assert (kernels_of(host), host._sessions, host.kernels.launchers.in_use) == (0, {}, {})


# -- while a session starts --------------------------------------------------------------------------------------------


async def test_a_cell_during_the_start_runs_in_the_kernel_that_is_starting(host: Host, tmp_path: Path) -> None:
    before, session = kernels_of(host), host.session(images_dir=tmp_path)
    starting = asyncio.create_task(session.start())
    await asyncio.sleep(0)
    assert (await session.execute("6 * 7")).return_value == "42"
    await starting
    assert kernels_of(host) == before + 1
    await session.close()
    assert kernels_of(host) == before


async def test_a_close_during_the_start_ends_it(host: Host, tmp_path: Path) -> None:
    before = kernels_of(host)
    for turns in range(4):
        session = host.session(images_dir=tmp_path)
        starting = asyncio.create_task(session.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await session.close()
        await asyncio.wait([starting])
        assert kernels_of(host) == before
        with pytest.raises(StateError):
            await (session.start() if turns == 0 else starting)


async def test_an_executor_that_is_stopped_during_its_start_is_stopped(host: Host, tmp_path: Path) -> None:
    before = kernels_of(host)
    executor = CodeExecutor(host=host, sandbox=False, images_dir=tmp_path)
    starting = asyncio.create_task(executor.start())
    await asyncio.sleep(0)
    await executor.stop()
    with pytest.raises(StateError, match="stopped while it started"):
        await starting
    assert kernels_of(host) == before
    async with executor:  # it can be started again
        assert (await executor.execute("1")).return_value == "1"


async def test_a_shared_host_is_given_back_when_a_start_is_cancelled(tmp_path: Path) -> None:
    executor = CodeExecutor(sandbox=False, images_dir=tmp_path)
    await cancelled_after(3, executor.start())
    await executor.stop()
    shared = _shared[asyncio.get_running_loop()]
    assert shared.users == 0
    await shared.host.close()


# -- completion and inspection -----------------------------------------------------------------------------------------

ENDLESS = "class Endless:\n    def __dir__(self):\n        while True: pass\nendless = Endless()"


async def test_a_completion_that_is_cancelled_is_stopped_and_cells_go_on(session: Session) -> None:
    await session.execute(ENDLESS)
    asking = asyncio.create_task(session.complete("endless."))
    await eventually(lambda: session.cells._questioned is not None)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert (await session.execute("1 + 1")).return_value == "2"


async def test_a_completion_that_cannot_be_stopped_says_why_its_kernel_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_QUESTION_TIMEOUT", 0.1)
    hurry_stopping(monkeypatch)
    stubborn = ENDLESS.replace("while", "__import__('signal').pthread_sigmask(0, [2])\n        while")
    await session.execute(stubborn)
    with pytest.raises(KernelDiedError, match="neither ended nor could be interrupted"):
        await session.complete("endless.")
    assert (await session.execute("'endless' in globals()")).return_value == "True"  # it goes on from its last state


async def test_a_kernel_that_cannot_be_copied_any_more_says_so(session: Session) -> None:
    await session.execute("import os; os.waitpid = None; x = 1")
    result = await session.execute("x")
    assert (result.return_value, result.not_undoable) == ("1", "no copy could be made: 'NoneType' object is not callable")


@pytest.mark.slow
async def test_a_kernel_that_does_not_answer_when_its_state_is_kept_says_why_it_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_QUESTION_TIMEOUT", 0.1)
    monkeypatch.setattr(stopping, "_PATIENCES", (0.1,))
    stubborn = "def stay():\n    signal.pthread_sigmask(0, [2])\n    while True: pass"
    await session.execute(f"import os, signal\n{stubborn}\nos.register_at_fork(before=stay)")
    assert "it did not answer when a checkpoint was made" in ((await session.execute("1")).text or "")


async def test_code_that_breaks_the_loop_costs_its_own_cell(session: Session) -> None:
    for code in (
        "import asyncio; asyncio.get_running_loop().call_soon = None",
        "import time; time.monotonic = None",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",  # `poll` fails
    ):
        await session.execute("x = 1")
        await session.execute(code)
        result = await session.execute("x")
        assert (result.return_value, result.recovery) == ("1", "restored_earlier"), code
        assert "the code broke the kernel's channel or its modules" in (result.text or "")


async def test_a_reset_does_not_wait_for_a_completion_that_never_ends(session: Session) -> None:
    await session.execute(ENDLESS)
    asking = asyncio.create_task(session.complete("endless."))
    await eventually(lambda: session.cells._questioned is not None)  # the kernel may not have read it yet
    async with asyncio.timeout(8):
        await session.reset()
    await asyncio.wait([asking])
    assert (await session.execute("'endless' in globals()")).return_value == "False"


async def test_a_kernel_that_dies_as_soon_as_it_is_ready_is_an_error_of_launching(session: Session) -> None:
    slot = session._kernels
    launch = slot._launch

    async def doomed(dead: Any) -> Any:
        kernel = await launch(dead)
        await kernel.kill()
        return kernel

    slot._launch = doomed
    await session.execute("import os; os._exit(1)")
    with pytest.raises(LaunchError, match="died as soon as they were ready"):
        await session.execute("1")
    slot._launch = launch
    assert (await session.execute("1")).return_value == "1"


# -- lines of input ----------------------------------------------------------------------------------------------------

ASK = "try: input()\nexcept EOFError: print('no line')"


def cancelled(_prompt: str) -> str:
    raise asyncio.CancelledError


async def cancelled_later(_prompt: str) -> str:
    raise asyncio.CancelledError


async def test_a_line_that_cannot_be_passed_on_is_an_error_at_once(session: Session) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda _: "x" * (17 * 1024 * 1024), "a line of 17,825,792 bytes, over the limit"),
        (cancelled, "raised CancelledError"),
        (cancelled_later, "raised CancelledError"),
    ]
    for on_input, complaint in cases:
        with pytest.raises(InvalidInputError, match=complaint):
            await session.execute(ASK, timeout=None, on_input=on_input)
        assert (await session.execute("1 + 1")).return_value == "2"


async def test_a_callback_that_executes_in_the_session_that_waits_for_it_is_told_so(session: Session) -> None:
    async def execute(_prompt: str) -> str:
        return (await session.execute("1")).text or ""

    async def complete(_prompt: str) -> str:
        return str(await session.complete("1"))

    for on_input in (execute, complete, lambda prompt: execute(prompt)):
        with pytest.raises(StateError, match="running the cell that called this function"):
            await session.execute(ASK, timeout=None, on_input=on_input)
    assert (await session.execute("1 + 1")).return_value == "2"


ASK_AND_GIVE_UP = """
import signal
class GivesUp(Exception): pass
def give_up(*_): raise GivesUp
signal.signal(signal.SIGALRM, give_up)
for _ in range(60):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try: input()
    except GivesUp: pass
    except EOFError: break
signal.setitimer(signal.ITIMER_REAL, 0)
"""


async def test_repeated_questions_leave_the_programs_own_threads_alone(session: Session, tmp_path: Path) -> None:
    let_go = threading.Event()

    def block(_prompt: str) -> str:
        let_go.wait(60)
        return "late"

    (tmp_path / "file").write_text("text")
    running = asyncio.create_task(session.execute(ASK_AND_GIVE_UP, timeout=60, on_input=block))
    try:
        with pytest.raises(StateError, match="has not yet returned for 3 earlier questions"):
            await running
        assert await asyncio.to_thread((tmp_path / "file").read_text) == "text"
    finally:
        let_go.set()
    assert sum("on-input" in thread.name for thread in threading.enumerate()) <= 3


# -- everything at once ------------------------------------------------------------------------------------------------

ACTIONS: dict[str, Operation] = {
    "execute": lambda session: session.execute("x = 1"),
    "sleep": lambda session: session.execute("import time; time.sleep(60)"),
    "print": lambda session: _read(session),
    "die": lambda session: session.execute("import os; os._exit(1)"),
    "complete": lambda session: session.complete("pri"),
    "interrupt": lambda session: session.interrupt(),
    "reset": lambda session: session.reset(),
    "start": lambda session: session.start(),
    "close": lambda session: session.close(),
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*ACTIONS]), st.integers(0, 6), st.sampled_from(["leave", "leave", "cancel"])),
    min_size=2,
    max_size=8,
)


async def _read(session: Session) -> None:
    async with aclosing(session.stream("print(1)")) as events:
        async for _ in events:
            break


@pytest.mark.slow
async def test_any_operations_at_once_leave_nothing_and_raise_what_is_documented(host: Host, tmp_path: Path) -> None:
    before = kernels_of(host), len(host._sessions)
    loop = asyncio.get_running_loop()

    async def play(steps: list[tuple[str, int, str]]) -> None:
        session = host.session(images_dir=tmp_path)
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(session.start())]
        for name, turns, fate in steps:
            tasks.append(asyncio.create_task(ACTIONS[name](session)))
            for _ in range(turns):
                await asyncio.sleep(0)
            if fate == "cancel":
                tasks[-1].cancel()
        await session.close()
        done, pending = await asyncio.wait(tasks, timeout=20)
        assert not pending
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, CellblockError), error
        assert (kernels_of(host), len(host._sessions)) == before

    @settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
    @given(STEPS)
    def examples(steps: list[tuple[str, int, str]]) -> None:
        asyncio.run_coroutine_threadsafe(play(steps), loop).result(60)

    await asyncio.to_thread(examples)
