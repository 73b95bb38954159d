"""The session behind an adapter: given and left alone, or made on first use and ended with its directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellblock import CodeExecutor, Host, InvalidInputError, StateError, SyncCodeExecutor
from cellblock.adapters.adapter_session import AsyncSession, SyncSession
from cellblock.common import loop_thread


@pytest.fixture
def loop_ends(nothing_left_behind: None) -> Iterator[None]:
    """The loop that synchronous executors share ends with the test."""
    yield
    loop_thread.shared().close()


async def test_the_first_use_makes_one_session_in_an_empty_directory_and_closing_removes_both(native_host: Host) -> None:
    session = AsyncSession(None, {"host": native_host, "kernel_env": {"REGION": "north"}})
    executors = await asyncio.gather(*(session.executor() for _ in range(3)))
    assert len({*map(id, executors)}) == 1
    workspace = (await executors[0].execute("import os; os.makedirs('a/b'); print(os.getcwd(), os.environ['REGION'])")).text
    assert workspace is not None
    place = Path(workspace.removesuffix(" north"))
    assert place.name.startswith(f"cellblock-work-{os.geteuid()}-")
    await session.close()
    await session.close()
    assert not place.exists()
    with pytest.raises(StateError, match="closed"):
        await session.executor()


async def test_a_given_executor_or_directory_stays_its_owners(
    native_host: Host, executor: CodeExecutor, tmp_path: Path
) -> None:
    session = AsyncSession(executor, {})
    assert await session.executor() is executor
    await session.close()
    assert (await executor.execute("1")).text == "1"
    (tmp_path / "mine").mkdir()
    session = AsyncSession(None, {"host": native_host, "working_dir": tmp_path / "mine"})
    await (await session.executor()).execute("open('kept', 'w').close()")
    await session.close()
    assert (tmp_path / "mine" / "kept").exists()


async def test_a_start_that_failed_can_be_tried_again_and_leaves_nothing(native_host: Host) -> None:
    session = AsyncSession(None, {"host": native_host, "kernel_init_timeout": 0.000001})
    for _ in range(2):
        with pytest.raises(Exception, match="kernel_init_timeout"):
            await session.executor()
    await session.close()


@pytest.mark.slow
def test_threads_share_one_session(loop_ends: None) -> None:
    session = SyncSession(None, {})
    with ThreadPoolExecutor(4) as pool:
        executors = [*pool.map(lambda _: session.executor, range(4))]
    assert len({*map(id, executors)}) == 1
    place = Path(executors[0].execute("import os; print(os.getcwd())").text or "")
    assert place.is_dir()
    session.close()
    session.close()
    assert not place.exists()
    with pytest.raises(StateError, match="closed"):
        _ = session.executor


@pytest.mark.slow
def test_a_given_synchronous_executor_stays_its_owners(loop_ends: None, tmp_path: Path) -> None:
    with SyncCodeExecutor(working_dir=tmp_path) as executor:
        session = SyncSession(executor, {})
        assert session.executor is executor
        session.close()
        assert executor.execute("1").text == "1"


def test_what_is_wrong_is_said_before_anything_is_started() -> None:
    for kind in (SyncSession, AsyncSession):
        with pytest.raises(InvalidInputError, match="working_dirr"):
            kind(None, {"working_dirr": "."})
    with pytest.raises(InvalidInputError, match="executor must be a SyncCodeExecutor, not CodeExecutor"):
        SyncSession(CodeExecutor(), {})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="timeout: pass either an executor or options"):
        AsyncSession(CodeExecutor(), {"timeout": 5})
