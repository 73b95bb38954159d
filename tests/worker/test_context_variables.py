"""Context variables: all cells of a session share one context, and its copies have what it had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from checkpoint_sessions import made, rolled, value

SET = "import decimal; decimal.getcontext().prec = 6"
THIRD = "str(decimal.Decimal(1) / 3)"


@pytest.fixture
async def recovering(zygote_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that makes checkpoints by itself."""
    async with made(zygote_host, tmp_path) as session:
        yield session


async def test_what_a_cell_sets_holds_in_later_cells(session: Session) -> None:
    """After an await, in tasks, in a completion, and when a cell was stopped."""
    assert (await session.execute(SET)).ok
    assert await value(session, THIRD) == "'0.333333'"
    assert (await session.execute("import numpy as np; np.set_printoptions(precision=2); np.seterr(divide='raise')")).ok
    assert await value(session, "np.array([1 / 3])") == "array([0.33])"
    assert (await session.execute("np.array([1.0]) / 0")).error.ename == "FloatingPointError"  # type: ignore[union-attr]
    assert (await session.execute("%precision 3")).ok
    assert await value(session, "np.array([2 / 3])") == "array([0.667])"
    # It holds after an await and in tasks of later cells.
    assert (await session.execute(f"import asyncio\nawait asyncio.sleep(0)\n{SET}\nawait asyncio.sleep(0)")).ok
    code = f"async def third(): return {THIRD}\n[await asyncio.create_task(third()), asyncio.run(third()), {THIRD}]"
    assert await value(session, code) == "['0.333333', '0.333333', '0.333333']"
    # A stopped cell and one that fails leave the context usable.
    assert (await session.execute(f"{SET}; 1 / 0")).error is not None
    stopped = await session.execute("import asyncio; await asyncio.sleep(3600)", timeout=0.1)
    assert stopped.recovery == "interrupted"
    assert await value(session, THIRD) == "'0.333333'"
    # What a task sets is its own as everywhere.
    code = "import asyncio, contextvars\nv = contextvars.ContextVar('v', default=0)\nasync def task(): v.set(1)\n"
    assert await value(session, code + "await asyncio.create_task(task())\nv.get()") == "0"
    assert await value(session, "v.get()") == "0"
    # A token can be used in a later cell.
    code = "import contextvars\nv = contextvars.ContextVar('v', default='before')\ntoken = v.set('set')"
    assert (await session.execute(code)).ok
    assert await value(session, "v.get()") == "'set'"
    assert await value(session, "v.reset(token); v.get()") == "'before'"
    # Completion and inspection see it.
    code = "import contextvars\nv = contextvars.ContextVar('v', default='unset')\nv.set('seen')\n"
    code += "class Seer:\n    def __dir__(self): return [v.get()]\nseer = Seer()"
    assert (await session.execute(code)).ok
    assert (await session.complete("seer.")).matches == [".seen"]
    # A task factory of the code does not get in the way.
    code = "import asyncio\nloop = asyncio.get_running_loop()\n"
    code += "loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))"
    assert (await session.execute(f"{code}\n{SET}")).ok
    assert await value(session, THIRD) == "'0.333333'"
    if await value(session, "hasattr(asyncio, 'eager_task_factory')") == "True":
        assert (await session.execute("loop.set_task_factory(asyncio.eager_task_factory)")).ok
        assert await value(session, THIRD) == "'0.333333'"


async def test_exit_handlers_see_it(session: Session, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import atexit\n{SET}\natexit.register(lambda: open({str(told)!r}, 'w').write({THIRD}))"
    assert (await session.execute(code)).ok
    await session.close()
    assert told.read_text() == "0.333333"


async def test_undo_and_restore_bring_back_what_was_set(recovering: Session) -> None:
    assert (await recovering.execute("import contextvars; v = contextvars.ContextVar('v'); token = v.set(1)")).ok
    await rolled(recovering)
    checkpoint = await recovering.checkpoint()
    assert (await recovering.execute(f"v.set(2); {SET}")).ok
    await recovering.undo()
    assert await value(recovering, "v.get()") == "1"
    assert (await recovering.execute("v.set(3)")).ok
    await recovering.restore(checkpoint)
    assert await value(recovering, "v.get()") == "1"
    assert await value(recovering, "v.reset(token); v.get('gone')") == "'gone'"  # the context is the same one in a copy


async def test_a_branch_has_it_and_adoption_brings_its_own(recovering: Session) -> None:
    assert (await recovering.execute("import contextvars; v = contextvars.ContextVar('v'); v.set(1)")).ok
    first, second = await recovering.fork(2, files="shared")
    try:
        assert (await first.execute("v.set(v.get() + 10)")).ok
        assert await value(second, "v.get()") == "1"
        await recovering.adopt(first)
        assert await value(recovering, "v.get()") == "11"
    finally:
        await asyncio.gather(first.close(), second.close())


async def test_a_session_that_goes_on_after_a_crash_has_it(recovering: Session) -> None:
    assert (await recovering.execute(SET)).ok
    await rolled(recovering)
    assert (await recovering.execute("import os; decimal.getcontext().prec = 3; os.abort()")).recovery == "restored"
    assert await value(recovering, THIRD) == "'0.333333'"
