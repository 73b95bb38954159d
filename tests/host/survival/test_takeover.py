"""Checkpoints outlive the process of their host: the next host goes back to them, exactly or not at all."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import processes
from cellblock.common import config
from cellblock.errors import CheckpointError, SnapshotError
from cellblock.host.checkpoints.workspace_snapshots import CheckpointFiles
from cellblock.host.kernels.pairs import files_time
from cellblock.host.session import Session
from cellblock.host.snapshots import Snapshot
from cellblock.host.snapshots.entries import Folder
from cellblock.model import CodeExecutionResult
from host.survival.killed_host import Killed

CHAIN = Path(__file__).parents[2] / "exact_kills.py"


def cells(count: int) -> str:
    """Return code that runs cells, each of which leaves a variable and a file."""
    return f"""
    for n in range({count}):
        await session.execute(f"v{{n}} = n = {{n}}; from pathlib import Path; Path('f{{n}}').write_text('{{n}}')")
    """


async def names(session: Session) -> str:
    code = "print(sorted(name for name in globals() if name[0] == 'v' and name[1:].isdigit()))"
    return (await session.execute(code)).output.strip()  # printed: as a value, a long list is shown in several lines


def files(count: int) -> dict[str, str]:
    return {f"f{n}": str(n) for n in range(count)}


@pytest.mark.slow
async def test_undo_brings_variables_and_files_back_after_the_host_was_killed(killed: Killed) -> None:
    killed.run(cells(7) + "    await settled(session)")
    async with killed.session() as session:
        assert session.succession.adopted
        assert len(session.checkpoints()) == 6
        undone = await session.undo()
        assert (len(undone.cells), [one.path for one in undone.files], undone.files_left) == (1, ["f6"], "")
        assert killed.read() == files(6)
        undone = await session.undo(3)
        assert [one.path for one in undone.files] == ["f3", "f4", "f5"]
        assert killed.read() == files(3)
        assert await names(session) == "['v0', 'v1', 'v2']"
        assert [cell.abandoned for cell in session.history()] == [False] * 3 + [True] * 4 + [False]
        await session.undo(4)
        assert (await names(session), killed.read()) == ("[]", {})


@pytest.mark.slow
async def test_a_session_that_has_lost_its_network_keeps_its_kernel(killed: Killed) -> None:
    """As after the removal of its last secret, whose host was all that it could reach."""
    killed.run("""
    from cellblock import Network, Policy
    workspace = session.workspace
    await session.close()
    policy = Policy(network=Network(allow=("127.0.0.1:9",)))
    session = host.session(working_dir=workspace, label="label", policy=policy)
    await session.start()
    await session.execute("import socket; a = socket.socket().connect_ex(('127.0.0.1', 3128))")
    """)
    async with killed.session() as session:
        assert session.succession.adopted
        result = await session.execute("a, socket.socket().connect_ex(('127.0.0.1', 3128))")
        assert result.return_value == "(0, 111)"


@pytest.mark.slow
async def test_a_named_checkpoint_outlives_its_host_with_its_files(killed: Killed) -> None:
    killed.run("""
        await session.execute("v1 = 1; open('f', 'w').write('old')")
        await session.checkpoint("good", files="copy")
        for n in range(10):
            await session.execute("v1 += 1; open('f', 'w').write('new')")
        await session.reset()
        await session.execute("v2 = 2")
    """)
    for _ in range(2):
        killed.run("await session.execute('v3 = 3')")
    async with killed.session() as session:
        (good,) = [one for one in session.checkpoints() if one.name == "good"]
        assert good.execution_count == 1
        changes = await session.restore("good")
        assert changes.written == ("f",)
        assert killed.read() == {"f": "old"}
        assert (await session.execute("v1")).return_value == "1"
        await good.drop()


@pytest.mark.slow
async def test_what_others_have_saved_stays_after_an_undo_by_the_next_host(killed: Killed) -> None:
    killed.run("await session.execute(\"v1 = 1; open('a', 'w').write('cell')\")\nawait settled(session)")
    killed.write("b", "person")
    async with killed.session() as session:
        await session.undo()
        assert killed.read() == {"b": "person"}


async def test_a_cell_that_runs_when_the_host_is_killed_can_be_undone(killed: Killed) -> None:
    killed.run("""
        await session.execute("from asyncio import sleep as wait; v1 = 1; open('f', 'w').write('old')")
        running = asyncio.create_task(session.execute("v2 = 2; open('f', 'w').write('new'); await wait(0.3)"))
        while Path(session.workspace, "f").read_text() != "new":
            await asyncio.sleep(0.001)
    """)
    async with killed.session() as session:
        *_, result = [event async for event in session.cells.resume()]
        assert result.ok  # type: ignore[union-attr]
        undone = await session.undo()
        assert [one.path for one in undone.files] == ["f"]
        assert killed.read() == {"f": "old"}
        assert await names(session) == "['v1']"
        assert len(session.history()) == 3


@pytest.mark.slow
async def test_an_undo_that_was_cancelled_is_not_finished_by_the_next_host(killed: Killed) -> None:
    killed.run(
        cells(2)
        + """
    stuck, freeze = asyncio.Event(), Kernel.freeze
    async def wait(_):
        stuck.set()
        await asyncio.sleep(60)
    Kernel.freeze = wait
    undoing = asyncio.create_task(session.undo(2))
    await stuck.wait()
    undoing.cancel()
    await asyncio.wait([undoing])
    Kernel.freeze = freeze
    """
    )
    killed.run(cells(3).replace("range(3)", "range(2, 3)"))
    async with killed.session() as session:
        assert (await names(session), killed.read()) == ("['v0', 'v1', 'v2']", files(3))
        await session.undo(2)
        assert (await names(session), killed.read()) == ("['v0', 'v1']", files(2))


@pytest.mark.slow
async def test_a_copy_that_was_being_made_is_not_used(killed: Killed) -> None:
    killed.run("""
        await session.execute("v1 = 1")
        await settled(session)
        copy = Family.copy
        async def copy_and_die(*given, **named):
            await copy(*given, **named)
            die()
        Family.copy = copy_and_die
        await session.execute("v2 = 2")
        await asyncio.sleep(60)
    """)
    async with killed.session() as session:
        *_, result = [event async for event in session.cells.resume()]
        await processes.eventually(lambda: len(session.checkpoints()) == 2)
        result = await session.execute("v3 = 3; import os; os._exit(3)")
        assert result.recovery == "restored"
        assert await names(session) == "['v1', 'v2']"
        await session.undo(2)
        assert await names(session) == "['v1']"


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["a checkpoint", "nothing"])
async def test_a_host_that_is_killed_while_a_kernel_answers(killed: Killed, asked: str) -> None:
    killed.run(f"""
        await session.execute("v1 = 1")
        await settled(session)
        ask = Kernel.ask
        def ask_and_die(*given):
            ask(*given)
            die()
        Kernel.ask = ask_and_die
        await (session.execute("v2 = 2") if {asked == "a checkpoint"} else session.complete("v", 1))
        await asyncio.sleep(60)
    """)
    async with killed.session() as session:
        assert not (await session.execute("v3 = 3")).not_undoable
        await session.undo()
        assert await names(session) == ("['v1', 'v2']" if asked == "a checkpoint" else "['v1']")


@pytest.mark.slow
async def test_a_kernel_that_ended_with_its_host_goes_on_from_its_last_checkpoint(killed: Killed) -> None:
    killed.run(f"""
        await session.execute("v1 = 1")
        await settled(session)
        await session.execute('''
            import os, time
            v2 = os.getpid()
            if not os.fork():
                while not os.path.exists("end"):
                    time.sleep(0.001)
                os.kill(v2, 9)
                os._exit(0)
        ''')
        await settled(session)
        await session.execute("v3 = 3")
        with open({str(killed.workspace / "end")!r}, "w"):
            pass
    """)
    async with killed.session() as session:
        result = await session.execute("sorted(name for name in globals() if name[0] == 'v' and name[1:].isdigit())")
        assert result.return_value in ("['v1', 'v2']", "['v1', 'v2', 'v3']")
        assert (result.recovery is None) == (result.return_value == "['v1', 'v2', 'v3']")


@pytest.mark.slow
async def test_nothing_is_left_of_a_session_that_nobody_goes_on_with(killed: Killed) -> None:
    killed.run(cells(3) + "    await session.checkpoint('named', files='copy')")
    async with killed.host() as (host, remains):
        (left,) = remains
        assert Path(left.place).exists()
        await host.discard(left)
        assert not Path(left.place).exists()
        assert not host.kernels.families
        assert host.store().bytes == 0


@pytest.mark.slow
async def test_files_that_are_gone_are_not_brought_back_in_part(killed: Killed) -> None:
    killed.run(cells(3) + "    await settled(session)")
    (store,) = (config.state_directory() / "snapshots").iterdir()
    for path in store.glob("part-*"):
        path.unlink()
    async with killed.session() as session:
        with pytest.raises(CheckpointError, match=r"files cannot be restored: .*could not be read"):
            await session.undo(2)
        assert killed.read() == files(3)
        undone = await session.undo(2, partial=True)
        assert undone.files_left
        assert await names(session) == "['v0']"


@pytest.mark.slow
async def test_a_branch_outlives_its_host_with_its_checkpoints(killed: Killed) -> None:
    killed.run("""
        await session.execute("v1 = 1; open('f', 'w').write('1')")
        (branch,) = await session.fork()
        branch.succession.relabel("branch")
        await branch.execute("v2 = 2; open('f', 'w').write('2')")
        await branch.execute("v3 = 3; open('f', 'w').write('3')")
        await settled(branch)
    """)
    async with killed.host() as (host, remains):
        left = {one.label: one for one in remains}
        session, branch = killed.remake(host, left["label"]), killed.remake(host, left["branch"])
        await session.start()
        await branch.start()
        await branch.undo()
        assert await names(branch) == "['v1', 'v2']"
        assert Path(branch.workspace, "f").read_text() == "2"
        await branch.undo(2)
        assert await names(branch) == "['v1']"
        await session.adopt(branch)
        assert killed.read() == {"f": "1"}
        await session.undo()


CELLS = (
    "v0 = 1; import os, random; os.mkdir('d'); open('d/kept', 'w').write('0')",
    "v1 = 1; os.environ['REDO'] = '1'; random.seed(7); open('d/kept', 'w').write('1'); open('d/new', 'w').write('1'); "
    "os.symlink('new', 'd/link'); os.chmod('d/new', 0o600)",
    "v2 = 2; os.remove('d/kept'); open('d/new', 'w').write('2'); drawn = random.random()",
)
"""Cells that change everything that a redo restores."""

LOOK = """
import os, random
print(sorted(name for name in globals() if name in ('v0', 'v1', 'v2')), os.environ.get('REDO'), random.random())
"""


def tree(top: Path) -> dict[str, tuple[object, ...]]:
    """Return everything in a workspace that an undo restores: the type, permissions, times and content of each path."""
    return {
        str(path.relative_to(top)): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.is_file() and (path.read_text(), path.stat().st_mtime_ns),
        )
        for path in top.rglob("*")
    }


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["native", "landlock", "none"], indirect=True)
async def test_a_redo_after_a_takeover_restores_everything(killed: Killed) -> None:
    """Two undos, of which each host that follows reverts one, and the undo of all cells."""
    killed.run(f"for cell in {CELLS!r}:\n    assert (await session.execute(cell)).ok\nawait settled(session)")
    before = tree(killed.workspace)
    killed.run("await session.undo()\nassert (await session.undo(2)).redoable == 2")
    assert tree(killed.workspace) == {}
    killed.run("assert len((await session.redo()).cells) == 2")
    assert (killed.workspace / "d/kept").read_text() == "1"
    async with killed.session() as session:
        redone = await session.redo()
        assert [cell.code[:2] for cell in redone.cells] == ["v2"]
        assert {file.path for file in redone.files} == {"d/kept", "d/new"}
        assert redone.redoable == 0
        assert tree(killed.workspace) == before
        with pytest.raises(CheckpointError, match="no undo to reverse"):
            await session.redo()
        drawn = random.Random(7)
        drawn.random()
        assert (await session.execute(LOOK)).output == f"['v0', 'v1', 'v2'] 1 {drawn.random()}\n"
        assert len((await session.undo(2)).cells) == 2  # what is redone can be undone
        assert (killed.workspace / "d/kept").read_text() == "1"
        await session.undo(2)
        assert tree(killed.workspace) == {}


@pytest.mark.slow
async def test_the_next_cell_ends_a_redo_also_after_a_takeover(killed: Killed) -> None:
    killed.run(cells(2) + "await session.undo()\n    await session.execute('v5 = 5')")
    killed.run(
        cells(3).replace("range(3)", "range(2, 3)")
        + """
    try:
        await session.redo()
    except Exception as error:
        assert "no undo to reverse" in str(error), error
    else:
        sys.exit("it was redone")
    await session.undo()
    await session.variables()
    """
    )
    async with killed.session() as session:
        await session.variables()  # only reads
        await session.redo()
        assert (await names(session), killed.read()) == ("['v0', 'v2', 'v5']", {"f0": "0", "f2": "2"})
        await session.undo()
        await session.execute("v6 = 6")
        with pytest.raises(CheckpointError, match=r"redo works until the next cell begins.*in the trash"):
            await session.redo()


@pytest.mark.slow
async def test_what_a_person_changed_after_an_undo_stays_after_a_redo_by_the_next_host(killed: Killed) -> None:
    killed.run(cells(3) + "    await settled(session)\n    await session.undo(2)")
    killed.write("f1", "person")
    killed.write("own", "person")
    async with killed.session() as session:
        redone = await session.redo()
        assert [file.path for file in redone.files] == ["f2"]
        assert "'f1' stays unchanged" in redone.files_left
        assert killed.read() == {"f0": "0", "f1": "person", "f2": "2", "own": "person"}
        assert await names(session) == "['v0', 'v1', 'v2']"


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["the trash", "the store", "the copy"])
async def test_a_redo_that_cannot_be_exact_after_a_takeover_is_refused(killed: Killed, gone: str) -> None:
    killed.run(
        cells(3)
        + f"""
    await settled(session)
    await session.undo()
    if {gone == "the copy"}:
        copy = session._checkpoints.redos[-1].checkpoints[-1].moment.copy
        copy.family.drop(copy)
        await copy.family.settle()
    """
    )
    match gone:
        case "the trash":
            shutil.rmtree(config.state_directory() / "trash")
        case "the store":
            (store,) = (config.state_directory() / "snapshots").iterdir()
            for path in store.glob("part-*"):
                path.unlink()
    async with killed.session() as session:
        with pytest.raises(
            CheckpointError if gone != "the trash" else SnapshotError, match=r"no undo to reverse|in the trash"
        ):
            await session.redo()
        assert (await names(session), killed.read()) == ("['v0', 'v1']", files(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dies",
    [
        "CheckpointFiles.undo = dying(CheckpointFiles.undo, True)",
        "Checkpoints.keep_redo = dying(Checkpoints.keep_redo, False)",
    ],
)
async def test_an_undo_during_which_its_host_was_killed_cannot_be_reversed(killed: Killed, dies: str) -> None:
    """Nor the undo before it, which began in another state."""
    killed.run(f"{cells(3)}\n    await session.undo()\n    {dies}\n    await session.undo()")
    async with killed.session() as session:
        with pytest.raises(CheckpointError, match=r"killed during the undo.*in the trash"):
            await session.redo()
        assert (await names(session), killed.read()) == ("['v0']", files(1))


@pytest.mark.slow
async def test_copies_for_a_redo_end_when_it_does(killed: Killed) -> None:
    killed.run(cells(3) + "await session.undo(2)\n    await settled(session)")
    async with killed.session() as session:
        kept = session._checkpoints.of_redos()
        assert [one.execution_count for one in kept] == [2, 3]
        await session.execute("v5 = 5")
        await session.undo()
        assert not any(one.alive for one in kept)
        await session.redo()
        assert await names(session) == "['v0', 'v5']"


_CHAINS = ("undo", "redo", "undo all", "crash", "restore", "adopt", "values")
"""Chains that "any" has, too: each by itself is slow."""


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize(("killed", "step"), [("none", 24), ("native", 15)], indirect=["killed"])
@pytest.mark.parametrize(
    "does",
    ["cells", "task", "any", *_CHAINS],
)
@pytest.mark.sampled(3)
def test_whatever_a_host_was_doing_the_next_one_finds_one_state(killed: Killed, does: str, step: int) -> None:
    """Killed between any two calls by which something moves; see `exact_kills.py`."""
    first = random.randint(1, step)
    points = [str(first), str(step), *(["90"] if does == "any" else [])]
    command = [sys.executable, str(CHAIN), str(killed.state), str(killed.workspace), killed.isolate, does, *points]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"from {first} on: {ran.stderr}"
    assert int(ran.stdout) * step > 45  # were killed
    places = [killed.workspace / ".", *(config.state_directory() / kind for kind in ("snapshots", "restores", "branches"))]
    assert not [path for place in places for path in place.glob(".*" if place == killed.workspace else "*")]


@pytest.mark.timeout(320)
@pytest.mark.slow
@pytest.mark.parametrize(("killed", "step"), [("none", 60), ("native", 37)], indirect=["killed"])
@pytest.mark.sampled(2)
def test_a_host_that_is_killed_while_it_saves_or_loads_leaves_one_state_and_a_whole_file(killed: Killed, step: int) -> None:
    """See `saved_kills.py`."""
    first = random.randint(1, step)
    places = [str(killed.state), str(killed.workspace)]
    command = [sys.executable, str(CHAIN.with_name("saved_kills.py")), *places, killed.isolate, str(first), str(step)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"from {first} on: {ran.stderr}"
    assert int(ran.stdout) * step > 200  # were killed
    assert not [*killed.workspace.glob(".*")]


_TICK = """
import asyncio, os
ticks = 0
async def tick():
    global ticks
    while True:
        if os.path.exists("go"):
            ticks += 1
            with open("log", "a") as log:
                print(ticks, file=log)
        await asyncio.sleep(0.001)
open("log", "w").close()
ticking = asyncio.get_running_loop().create_task(tick())
"""


@pytest.mark.slow
async def test_what_a_task_writes_while_the_next_host_finishes_an_undo_is_undone_with_it(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed.run(f"""
        await session.execute({_TICK!r})
        await session.execute("v1 = open('f1', 'w').close()")
        restore._finish = die  # the files are back
        await session.undo()
    """)
    look = CheckpointFiles.now

    async def now(files: CheckpointFiles, wanted: Snapshot) -> Folder:
        found = await look(files, wanted)
        killed.write("go", "")
        with suppress(AssertionError):
            await processes.eventually(lambda: killed.read()["log"] != "", timeout=0.3)
        return found

    monkeypatch.setattr(CheckpointFiles, "now", now)
    async with killed.session() as session:
        assert "f1" not in killed.read()
        assert await names(session) == "[]"
        looked = await session.execute("[*map(int, open('log'))] == [*range(1, ticks + 1)]")
        assert looked.return_value == "True"


def redo(killed: Killed, dies: str, *, hosts: int = 1) -> None:
    """Have a host undo a cell, and die while it reverses that; or have another one do the second."""
    undo = f"{cells(3)}\n    await settled(session)\n    await session.undo()"
    if hosts == 2:
        killed.run(undo)
        undo = "    pass"
    killed.run(f"{undo}\n    {dies}\n    await session.redo()")


@pytest.mark.slow
@pytest.mark.parametrize(
    "dies",
    [
        "StateLog.rewrite = dying(StateLog.rewrite, True)",
        "CheckpointFiles.redo = dying(CheckpointFiles.redo, False)",
        "restore._finish = die",
        "CheckpointFiles.redo = dying(CheckpointFiles.redo, True)",
        "Checkpoints.come_back = dying(Checkpoints.come_back, False)",
        "Checkpoints.come_back = dying(Checkpoints.come_back, True)",
    ],
)
@pytest.mark.parametrize("hosts", [1, 2])
async def test_a_redo_is_finished_by_the_next_host(killed: Killed, dies: str, hosts: int) -> None:
    redo(killed, dies, hosts=hosts)
    async with killed.session() as session:
        assert (await names(session), killed.read()) == ("['v0', 'v1', 'v2']", files(3))
        await session.undo(2)
        assert (await names(session), killed.read()) == ("['v0', 'v1']", files(2))


@pytest.mark.slow
async def test_a_redo_that_the_next_host_cannot_finish_leaves_the_undo(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise SnapshotError("no space left")

    redo(killed, "CheckpointFiles.redo = dying(CheckpointFiles.redo, False)")
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFiles, "undo", full)
        async with killed.session() as session:
            assert (await names(session), killed.read()) == ("['v0', 'v1']", files(2))
            assert [cell.abandoned for cell in session.history()] == [False, False, True, False]


@pytest.mark.slow
async def test_what_a_cell_writes_after_its_host_was_killed_is_undone_with_it(killed: Killed) -> None:
    killed.run("""
        await session.execute("v0 = 1")
        await settled(session)
        code = "import os, time; print('go')\\nwhile not os.path.exists('on'): pass\\nv1 = open('f1', 'w').close()"
        async for _ in session.stream(code, tag="tag"):
            die()
    """)
    async with killed.session() as session:
        begun = time.time_ns()
        await processes.eventually(lambda: files_time() > begun)
        killed.write("on", "")
        async for _ in session.cells.resume():
            pass
        assert killed.read() == {"on": "", "f1": ""}
        await session.undo()
        assert (await names(session), killed.read()) == ("['v0']", {})  # what others write meanwhile counts as the cell's


@pytest.mark.slow
async def test_cells_from_before_a_loaded_session_are_not_undone_by_a_later_host(killed: Killed, tmp_path: Path) -> None:
    """That would lead to an empty kernel. And the questions by which it was loaded are known to be answered."""
    killed.run(f"""
        await session.execute("v0 = 1")
        await session.save({str(tmp_path / "saved")!r})
        await session.load({str(tmp_path / "saved")!r})
        die()
    """)
    async with killed.session() as session:
        with pytest.raises(CheckpointError, match="the session began after it"):
            await session.undo()
        assert await names(session) == "['v0']"


@pytest.mark.slow
@pytest.mark.parametrize(("recovery", "chain"), [("restored_earlier", 1), ("restored", 2)])
async def test_a_host_that_is_killed_while_a_dead_kernel_is_replaced_leaves_its_result(
    killed: Killed, chain: int, recovery: str
) -> None:
    """Only the dead kernel's tape says how the cell has ended, and the next kernel is there already."""
    dies = "KernelSlot._put = dying(KernelSlot._put, True)\n"
    killed.run(f"""
        await session.execute("v0 = 1; open('f0', 'w').close()")
        await settled(session)
        if {recovery == "restored_earlier"}:
            await session.execute("v1 = 1")
            await settled(session)
            await session.checkpoints()[-1].drop()
        {dies}
        await session.execute("print('last words'); import os; os._exit(3)", tag="tag")
    """)
    for _ in range(chain - 1):
        killed.run(f"{dies}\nasync for _ in session.cells.resume(): pass")
    async with killed.session() as session:
        assert session.cells.resumed == "tag"
        *_, result = [event async for event in session.cells.resume()]
        assert isinstance(result, CodeExecutionResult)
        assert (result.status, result.output, result.recovery) == ("died", "last words\n", recovery)
        assert await names(session) == "['v0']"
        assert killed.read() == {"f0": ""}
        await session.undo(2)  # what died has changed nothing
        assert (await names(session), killed.read()) == ("[]", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "resumed", "left"),
    [
        ("execute('v2 = 1; import os; os.kill(os.getppid(), 0)', tag='second')", "second", "['v0', 'v1', 'v2']"),
        ("undo()", None, "['v0']"),
    ],
)
async def test_a_dead_kernel_is_forgotten_when_its_session_goes_on(
    killed: Killed, then: str, resumed: str | None, left: str
) -> None:
    killed.run(f"""
        await session.execute("v0 = 1")
        await session.execute("v1 = 1")
        await settled(session)
        await session.execute("import os; os._exit(3)", tag="first")
        await session.{then}
    """)
    async with killed.session() as session:
        assert session.cells.resumed == resumed
        if resumed:
            async for _ in session.cells.resume():
                pass
        assert await names(session) == left


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 2, 5, 20, 100])
async def test_a_start_that_is_cancelled_leaves_nothing(killed: Killed, turns: int) -> None:
    killed.run(cells(3) + "    await settled(session)\n    CheckpointFiles.undo = die\n    await session.undo(2)")
    async with killed.host() as (host, remains):
        starting = asyncio.create_task(killed.remake(host, remains[0]).start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await processes.eventually(lambda: not host.kernels.families)
        assert killed.read() in (files(1), files(3))
