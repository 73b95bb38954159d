"""Durable sessions go on from what was saved last when their kernels are gone, and say what was lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import Host, InvalidInputError, StoreError
from cellblock.host.saved_file import SavedFile
from cellblock.model import CodeExecutionResult
from cellblock.service.named.durable import Durable, sort_out
from cellblock.service.named.json_options import read_options
from cellblock.service.named.named_checkpoints import adopt, fork
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.session import NamedSession
from cellblock.service.store.named import NamedStore
from daemons import kill, own_daemon, switch_off
from git_repositories import Repository
from named_sessions import OPTIONS, after_a_kill, saved, submit
from processes import eventually
from suite import first_quick

SOON = {**OPTIONS, "durable": 0.01, "idle_timeout": 0}


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sessions outlive a process: not in their workspace."""
    return tmp_path_factory.mktemp("state") / "state"


async def run(sessions: NamedSessions, named: NamedSession, code: str) -> CodeExecutionResult:
    return await submit(sessions, named, code).wait()


async def later(
    sessions: NamedSessions, host: Host, state: Path, spoil: Callable[[Path], object] = lambda _: None
) -> NamedSessions:
    """What there is after the machine was switched off now, and something was done to the state."""

    def copy_saves(copied: Path) -> None:
        if (state / "saves").exists():
            shutil.copytree(state / "saves", copied / "saves")
        spoil(copied)

    return await after_a_kill(sessions, host, state, copy_saves)


@pytest.mark.parametrize("recovery", first_quick(["exact", "rolling", "none"]))
async def test_it_goes_on_from_the_last_save_and_says_what_is_lost(
    sessions: NamedSessions, zygote_host: Host, state: Path, tmp_path: Path, recovery: str
) -> None:
    named = await sessions.create("one", {**SOON, "recovery": recovery, "startup_code": "start = 1"})
    await run(
        sessions, named, "def f(): return x + 1\nx = start = 2; open('a', 'w').write('saved'); open('b', 'w').write('b')"
    )
    await saved(named)
    assert named.durable is not None
    named.durable._next = time.monotonic() + 1000
    await run(sessions, named, "x = 3; open('a', 'w').write('changed')")
    for number in range(7):
        await run(sessions, named, f"y = {number}\nz = 0")
    (tmp_path / "b").unlink()
    after = await later(sessions, zygote_host, state)
    again = after.find("one")
    result = await run(after, again, "x, f(), start, 'y' in globals()")
    assert (result.return_value, result.recovery, result.execution_count) == ("(2, 3, 2, False)", "restored_earlier", 3)
    assert "continues from the save of" in result.stderr
    assert "8 later cells changed in memory is lost: `x = 3; open('a', 'w').write('changed')`; `y = 0…`" in result.stderr
    assert "; and 3 more.\n" in result.stderr
    assert "Files changed since then stay unchanged: a.\n" in result.stderr
    assert (tmp_path / "a").read_text() == "changed"  # a person may have changed it
    assert (tmp_path / "b").read_text() == "b"
    result = await run(after, again, "1")
    assert (result.recovery, result.stderr) == (None, "")
    assert [entry.code.partition("\n")[0] for entry in again.session.history()] == [
        "start = 1",
        "def f(): return x + 1",
        "x, f(), start, 'y' in globals()",
        "1",
    ]
    await after.destroy("one")
    assert after.store.directory is not None
    await eventually(lambda: os.listdir(f"{after.store.directory}/saves") == [])
    await after.close()


@pytest.mark.slow
async def test_a_loss_that_no_result_has_told_is_told_by_the_next_process(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    path = (await saved(named)).parent
    assert named.durable is not None
    await named.durable.note_loss("restored_earlier", ["What one later cell changed in memory is lost: `x = 2`."])
    found = Durable(path, 1.0, lambda _: "", lambda: "").unreported()
    assert found == ("restored_earlier", ["What one later cell changed in memory is lost: `x = 2`."])
    await run(sessions, named, "x")
    await eventually(lambda: Durable(path, 1.0, lambda _: "", lambda: "").unreported() is None)


async def back_to_the_first_cell(sessions: NamedSessions, named: NamedSession, way: str) -> None:
    session = named.session
    if way == "adopt":
        await adopt(sessions, "one", "branch")
        return
    async with named.going_back():
        await (session.undo() if way == "undo" else session.restore("first"))


@pytest.mark.slow
async def test_going_back_from_what_was_saved_is_told(
    sessions: NamedSessions, zygote_host: Host, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = ['keep']")
    await run(sessions, named, "x.append('regretted')")
    await saved(named)
    monkeypatch.setattr(Durable, "look", lambda *_: None)  # the machine is switched off before the next save
    async with named.going_back():
        await named.session.undo()
    after = await later(sessions, zygote_host, state)
    result = await run(after, after.find("one"), "x")
    assert (result.return_value, result.recovery) == ("['keep', 'regretted']", "restored_earlier")
    assert "It had restored another state since (undo, restore, adopt or load)" in result.stderr
    assert "changed in memory is lost" not in result.stderr
    await after.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", first_quick(["undo", "restore", "adopt"]))
async def test_a_session_that_went_back_is_saved_at_once(
    sessions: NamedSessions, zygote_host: Host, state: Path, way: str
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = ['keep']")
    await named.session.checkpoint("first")
    await fork(sessions, "one", ["branch"])
    await run(sessions, named, "x.append('regretted')")
    await saved(named)
    durable = named.durable
    assert durable is not None
    durable._next = time.monotonic() + 1000
    await back_to_the_first_cell(sessions, named, way)
    await eventually(lambda: not durable.left, 20)
    after = await later(sessions, zygote_host, state)
    result = await run(after, after.find("one"), "x")
    assert (result.return_value, result.recovery) == ("['keep']", "restored")
    await after.close()


@pytest.mark.slow
async def test_going_back_while_it_is_saved_is_not_forgotten(sessions: NamedSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    await saved(named)
    await run(sessions, named, "x = 2")
    durable, saving = named.durable, named.session.saving
    assert durable is not None
    begun, go_on = asyncio.Event(), asyncio.Event()
    save_aside = saving.save_aside

    async def slow(*args: Any, **keywords: Any) -> None:
        await save_aside(*args, **keywords)
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(saving, "save_aside", slow)
    durable._next = 0.0
    named.save_if_due()
    await begun.wait()
    async with named.going_back():
        await named.session.undo()
    go_on.set()

    def is_past() -> bool:
        named.save_if_due()
        return not durable.left and durable._saved == saving.last_state.number

    await eventually(is_past, 20)


@pytest.mark.slow
async def test_a_kernel_that_ends_with_all_its_checkpoints_costs_what_was_not_saved(sessions: NamedSessions) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "import os; x = 1")
    await saved(named)
    children = "open(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read().split()"  # of init: the copies, too
    died = await run(sessions, named, f"for one in {{*{children}}} - {{str(os.getpid())}}: os.kill(int(one), 9)\nos._exit(1)")
    assert (died.status, died.recovery) == ("died", "restarted")
    result = await run(sessions, named, "x")
    assert (result.return_value, result.recovery) == ("1", "restored_earlier")
    assert "continues from the save of" in result.stderr


@pytest.mark.slow
async def test_only_the_cells_before_count_as_lost(sessions: NamedSessions) -> None:
    named = await sessions.create("one", {**SOON, "recovery": "none"})
    await run(sessions, named, "x = 1; import asyncio, os")
    await saved(named)
    await run(sessions, named, "asyncio.get_running_loop().call_later(0.05, os._exit, 3)")
    result = await submit(sessions, named, "await asyncio.sleep(5)").wait()
    assert result.status == "died"
    result = await run(sessions, named, "x")
    assert (result.return_value, "`x`" in result.stderr) == ("1", False)


@pytest.mark.slow
@pytest.mark.parametrize("iterations", first_quick([1, 30, 100]))
async def test_an_undo_whose_caller_has_left_is_noted(sessions: NamedSessions, iterations: int) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    await run(sessions, named, "x = 2")
    await saved(named)
    durable, session = named.durable, named.session
    assert durable is not None
    before = session.saving.last_state.number

    async def undo() -> None:
        async with named.going_back():
            await session.undo()

    undoing = asyncio.create_task(undo())
    for _ in range(iterations):
        await asyncio.sleep(0)
    undoing.cancel()
    await asyncio.wait([undoing])
    if session.saving.last_state.number != before:
        assert durable.left or durable._saved == session.saving.last_state.number
    there = [cell.code for cell in session.history() if not cell.abandoned]
    assert (await run(sessions, named, "x")).return_value == str(len(there))


@pytest.mark.slow
async def test_a_loaded_session_is_not_loaded_over(sessions: NamedSessions, tmp_path: Path) -> None:
    """By its own save, or by the startup code."""
    named = await sessions.create("one", {**SOON, "startup_code": "x = 0"})
    await run(sessions, named, "x = 1")
    await named.session.save(tmp_path / "a.cellblock")
    await run(sessions, named, "x = 2")
    await saved(named)
    async with named.going_back():
        await named.session.load(tmp_path / "a.cellblock")
        named.note_loaded()
    result = await run(sessions, named, "x")
    assert (result.return_value, result.recovery, result.stderr) == ("1", None, "")


@pytest.mark.slow
@pytest.mark.parametrize("first", first_quick(["saved", "not saved yet"]))
async def test_an_undo_of_all_cells_leaves_nothing_to_go_on_from(
    sessions: NamedSessions, zygote_host: Host, state: Path, first: str
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    if first == "saved":
        await saved(named)
    async with named.going_back():
        await named.session.undo()
    assert (await run(sessions, named, "'x' in globals()")).return_value == "False"
    await saved(named)
    after = await later(sessions, zygote_host, state)
    assert (await run(after, after.find("one"), "'x' in globals()")).return_value == "False"
    await after.close()


@pytest.mark.slow
async def test_a_long_cell_does_not_keep_the_state_before_it_from_being_saved(
    sessions: NamedSessions, zygote_host: Host, state: Path
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1; open('a', 'w').write('1'); import asyncio")
    assert named.durable is not None
    execution = submit(sessions, named, "x = 2; open('a', 'w').write('2'); await asyncio.sleep(600)")
    await eventually(lambda: Path("a").read_text() == "2")
    durable = named.durable

    def is_saved() -> bool:
        named.save_if_due()
        return durable.last is not None

    await eventually(is_saved, 20)
    assert named.turn.locked()
    after = await later(sessions, zygote_host, state)
    Path("a").unlink()
    result = await run(after, after.find("one"), "x, open('a').read()")
    assert result.return_value == "(1, '1')"
    assert "one later cell changed in memory is lost: `x = 2;" in result.stderr
    await after.close()
    assert await execution.cancel(named.current)


@pytest.mark.slow
async def test_a_reset_session_has_nothing_to_go_on_from(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    path = await saved(named)
    await sessions.restart("one")
    assert not path.exists()
    await sessions._look_after_all()
    after = await later(sessions, zygote_host, state)
    result = await run(after, after.find("one"), "'x' in globals()")
    assert (result.return_value, result.recovery) == ("False", "restarted")
    await after.close()


@pytest.mark.slow
async def test_it_is_saved_no_more_often_than_it_is_to_be(sessions: NamedSessions) -> None:
    named = await sessions.create("one", {**SOON, "durable": True})
    await run(sessions, named, "x = 1")
    path = await saved(named)
    before = path.stat().st_mtime_ns
    assert named.durable is not None
    task = named.durable._task
    for _ in range(3):
        await run(sessions, named, "x += 1")
        await sessions._look_after_all()
    assert named.durable._task is task
    assert named.durable.last == path
    assert path.stat().st_mtime_ns == before
    named.durable._next = 0.0
    await sessions._look_after_all()
    assert await saved(named) != path
    assert [*path.parent.glob("*.cellblock")] == [named.durable.last]


async def test_a_full_disk_is_told_and_the_old_save_stays(
    sessions: NamedSessions, zygote_host: Host, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    path = await saved(named)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise StoreError("it cannot be written: No space left on device")

        patch.setattr(SavedFile, "finish", full)
        await run(sessions, named, "x = 2")
        assert named.durable is not None
        named.durable._next = 0.0
        named.save_if_due()
        await eventually(lambda: bool(sessions.about()["problems"]), 20)
        assert sessions.about()["problems"] == ["session 'one' cannot be saved: it cannot be written: No space left on device"]
        assert {*os.listdir(path.parent)} == {path.name, "session.json", "cells.jsonl"}
        after = await later(sessions, zygote_host, state)
        result = await run(after, after.find("one"), "x")
        assert (result.return_value, result.recovery) == ("1", "restored_earlier")
        await after.end_kernels()
    await saved(named)
    assert sessions.about()["problems"] == []
    after.store.close()


@pytest.mark.slow
async def test_a_save_that_cannot_be_loaded_is_kept_apart(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    path = await saved(named)
    path.write_bytes(path.read_bytes()[:-100])
    after = await later(sessions, zygote_host, state)
    again = after.find("one")
    result = await run(after, again, "x = 5; 'y' in globals()")
    assert result.recovery == "restarted"
    assert "cannot be loaded: " in result.stderr
    apart = Path(result.stderr.partition("The save is kept in ")[2].splitlines()[0])
    assert apart.read_bytes() == path.read_bytes()
    await saved(again)
    assert apart.exists()
    await after.destroy("one")
    await eventually(lambda: not apart.parent.exists())
    await after.close()


async def test_it_is_saved_when_the_process_ends(sessions: NamedSessions, zygote_host: Host, state: Path) -> None:
    named = await sessions.create("one", {**SOON, "durable": 1000})
    await run(sessions, named, "x = 1")
    await saved(named)
    await run(sessions, named, "x = 2")
    await sessions.save_last()
    await sessions.end_kernels()
    after = await later(sessions, zygote_host, state)
    result = await run(after, after.find("one"), "x")
    assert (result.return_value, result.recovery) == ("2", "restored")
    await after.close()


@pytest.mark.slow
async def test_a_crash_that_leaves_a_fresh_kernel_does_not_cost_the_save(sessions: NamedSessions) -> None:
    named = await sessions.create("one", {**SOON, "recovery": "none"})
    await run(sessions, named, "x = 1")
    path = await saved(named)
    assert named.durable is not None
    named.durable._next = time.monotonic() + 1000
    died = await run(sessions, named, "x = 2; import asyncio, os; asyncio.get_running_loop().call_later(0.1, os._exit, 3)")
    assert died.ok
    saving = named.durable._save_in_turn(named.session, path)
    await asyncio.wait_for(saving, 20)
    kernel = named.session._kernels.current
    await eventually(lambda: kernel is None or kernel.death is not None)
    named.durable._next = 0.0
    for _ in range(3):
        await sessions._look_after_all()
        await asyncio.sleep(0.05)
    assert path.exists()
    result = await run(sessions, named, "x")
    assert result.return_value in ("1", "2")  # it may have been saved before it ended
    assert result.recovery == "restored_earlier"


@pytest.mark.slow
async def test_a_session_is_not_saved_while_it_is_loaded(
    sessions: NamedSessions, zygote_host: Host, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = await sessions.create("one", SOON)
    await run(sessions, named, "x = 1")
    await saved(named)
    after = await later(sessions, zygote_host, state)
    load = Durable.load

    async def slowly(self: Durable, *given: Any, **more: Any) -> list[str]:
        for _ in range(3):
            await after._look_after_all()
            await asyncio.sleep(0.05)
        return await load(self, *given, **more)

    monkeypatch.setattr(Durable, "load", slowly)
    assert (await run(after, after.find("one"), "x")).return_value == "1"
    history = after.history("one", after.find("one").session, 10)
    assert [entry.code for entry in history] == ["x = 1", "x"]
    await after.close()


@pytest.mark.slow
async def test_a_save_that_is_stopped_leaves_nothing(sessions: NamedSessions, zygote_host: Host) -> None:
    named = await sessions.create("one", {**OPTIONS, "durable": 1000, "idle_timeout": 0})
    await run(sessions, named, "import os; x = os.urandom(3_000_000)")
    await saved(named)
    await run(sessions, named, "y = os.urandom(3_000_000)")
    before = len(zygote_host.kernels.alive)
    assert named.durable is not None
    assert named.durable.last is not None
    files = os.listdir(named.durable.last.parent)
    for turns in (1, 3, 10, 30, 100, 200):
        named.durable._next, named.durable._task = 0.0, None
        named.durable.look(named.session)
        for _ in range(turns):
            await asyncio.sleep(0)
        await named.durable.close()
        if named.durable._saved == named.session.saving.last_state.number:
            break
        await eventually(lambda: len(zygote_host.kernels.alive) == before)
        await eventually(lambda: os.listdir(named.durable.last.parent) == files)
    assert (await run(sessions, named, "len(x)")).return_value == "3000000"


def test_saves_that_the_journal_does_not_know_are_adopted_or_moved_aside(tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    for name in ("known", "labelled", "unlabelled", "empty", "ended-two"):
        (saves / name).mkdir(parents=True)
        if name != "empty":
            (saves / name / "0.cellblock").touch()
    (saves / "labelled" / "session.json").write_text("label")
    assert sort_out(saves, {"known"}) == ["label"]
    assert {*os.listdir(saves)} - {"ended-two"} == {"known", "labelled"}  # a thread removes the ended one
    (aside,) = os.listdir(tmp_path / "saves-aside")
    assert aside.startswith("unlabelled-")
    assert os.listdir(tmp_path / "saves-aside" / aside) == ["0.cellblock"]
    assert sort_out(tmp_path / "nothing", {"one"}) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", first_quick(["damaged", "gone"]))
async def test_sessions_go_on_from_their_saves_without_the_journal(
    sessions: NamedSessions, zygote_host: Host, state: Path, what: str
) -> None:
    named = await sessions.create("one", SOON, {"tag": "a"})
    await run(sessions, named, "x = 1")
    await saved(named)
    assert named.durable is not None
    named.durable._next = time.monotonic() + 1000
    await run(sessions, named, "x = 2")

    def spoil(copy: Path) -> None:
        for path in copy.glob("named.db*"):
            path.unlink() if what == "gone" else path.write_bytes(b"damaged" * 1000)

    after = await later(sessions, zygote_host, state, spoil)
    again = after.find("one")
    assert again.record.tags == {"tag": "a"}
    assert any("'one' was missing in the stored sessions" in problem for problem in after.about()["problems"])
    result = await run(after, again, "x")
    assert (result.return_value, result.recovery) == ("1", "restored_earlier")
    assert "one later cell changed in memory is lost: `x = 2`" in result.stderr
    await after.destroy("one")
    await eventually(lambda: os.listdir(f"{after.store.directory}/saves") == [])
    await after.close()


def test_the_option_is_a_number_of_seconds_or_whether() -> None:
    cases: list[tuple[Any, float | None]] = [(True, 30.0), (False, None), (5, 5.0), (0, None), (0.5, 0.5)]
    for given, every in cases:
        assert read_options({"durable": given}).named.saved_every == every


def test_anything_else_is_refused() -> None:
    cases: list[Any] = [-1, 1e12, "often", [1], None, float("nan")]
    for given in cases:
        with pytest.raises(InvalidInputError, match="durable"):
            read_options({"durable": given})


def test_other_kernels_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs a Python session"):
        read_options({"durable": True, "kernel_type": "bash", "sandbox": False})


async def test_sessions_that_end_with_their_program_are_refused(zygote_host: Host) -> None:
    sessions = NamedSessions(zygote_host)
    with pytest.raises(InvalidInputError, match="need the daemon"):
        await sessions.create("one", SOON)
    assert not len(sessions)
    await sessions.close()


# -- real daemons --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with own_daemon(tmp_path) as home:
        yield home
        cellblock.wipe()
        deadline = time.monotonic() + 10
        while (left := [*(home / "saves").glob("*")]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == []


def wait_for_save(home: Path, other_than: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    deadline = time.monotonic() + 20
    while not (found := {path.name for path in (home / "saves").glob("*/*.cellblock")} - other_than):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_is_switched_off_at_any_moment_has_a_whole_save(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    cellblock.get_or_create("s", durable=0.01)
    cellblock.execute("s", "import os; n = 0; data = os.urandom(2_000_000); None")
    before = wait_for_save(home)
    deadline = time.monotonic() + chance.uniform(0.1, 2.1)
    count = 0
    while time.monotonic() < deadline:
        count += 1
        cellblock.execute("s", f"n = {count}; open('n', 'w').write('{count}'); None")
    assert before
    switch_off()
    Path("n").unlink()
    result = cellblock.execute("s", "n, open('n').read() if n else '0', len(data)")
    n = int((result.return_value or "").strip("(").partition(",")[0])
    assert result.return_value == f"({n}, '{n}', 2000000)"
    lost = count - n
    assert result.recovery == ("restored_earlier" if lost else "restored")
    assert ("is lost" in result.stderr) == bool(lost)
    if lost > 1:
        assert f"{lost} later cells" in result.stderr


@pytest.mark.slow
def test_the_daemon_that_takes_over_goes_on_saving(home: Path) -> None:
    cellblock.get_or_create("s", durable=0.1)
    cellblock.execute("s", "x = 1")
    first = wait_for_save(home)
    kill()
    cellblock.execute("s", "x = 2")
    wait_for_save(home, first)
    switch_off()
    assert cellblock.execute("s", "x").return_value == "2"


@pytest.mark.slow
def test_a_durable_branch_does_not_write_to_the_workspace_that_it_came_from(home: Path) -> None:
    cellblock.get_or_create("s", durable=0.1)
    cellblock.execute("s", "x = 1")
    cellblock.fork("s", ["b"], files="copy")
    cellblock.execute("b", "x = 2; open('own', 'w').write('1'); None")
    deadline = time.monotonic() + 20
    while len([*(home / "saves").glob("*/*.cellblock")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    switch_off()
    result = cellblock.execute("b", "import os; x, os.path.exists('own')")
    assert result.return_value == "(2, False)"


@pytest.mark.slow
async def test_a_clone_and_its_branch_continue_from_their_saves_without_a_repository(
    native_host: Host, state: Path, tmp_path: Path
) -> None:
    sessions = NamedSessions(native_host, NamedStore(state))
    project = Repository(tmp_path / "project")
    project.commit(a="one")
    options = {"durable": 0.01, "working_dir": str(project.path), "workspace": "clone"}
    named = await sessions.create("one", options)
    await run(sessions, named, "x = 1\n!echo two > a && git commit -qam two && echo u > u && ln -s a l")
    await fork(sessions, "one", ["branch"])
    branch = sessions.find("branch")
    await run(sessions, branch, "x = 2\n!git commit -q --allow-empty -m three")
    for one in (named, branch):
        await saved(one)
        assert one.durable is not None
        one.durable._next = time.monotonic() + 1000
    await run(sessions, named, "!git reset -q --hard HEAD~1")
    project.path.rename(tmp_path / "gone")
    project.path.mkdir()
    after = await later(sessions, native_host, state)
    look = "!git log --format=%s; git status --porcelain; cat a; readlink l; git fsck --no-dangling\nx"
    result = await run(after, after.find("one"), look)
    assert str(result.text).endswith("\ntwo\na commit\n?? l\n?? u\ntwo\na\n1")
    assert "one later cell changed in memory and in the clone is lost: `!git reset" in result.stderr
    result = await run(after, after.find("branch"), look)
    assert str(result.text).endswith("\nthree\ntwo\na commit\n?? l\n?? u\ntwo\na\n2")
    new = Repository(project.path)
    fetched = await (await after.live("branch")).clone_fetch()
    assert fetched.ref == "refs/remotes/cellblock/branch"
    assert new.git("log", "--format=%s", fetched.ref) == "three\ntwo\na commit"
    await after.close()
    await sessions.close()
