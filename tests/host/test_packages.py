"""Packages for one session: where they come from, where they go, and what is refused."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, LaunchError, Session
from cellblock.host.packages import SessionPackages, name_places, remove_places_of_the_dead
from cellblock.launch.leftovers import make_place
from cellblock.walls.sandbox.tiers import NATIVE
from cells import ok, value
from package_index import wheel
from processes import eventually


def test_the_places_of_hosts_that_were_killed_are_removed() -> None:
    """A killed host holds nothing any more, and one that lives does, whether or not its process is to be seen."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    kept = Path(tempfile.gettempdir(), f"cellblock-packages-{gone.stdout.strip()}-abc-1")  # another container's, say
    held = make_place(str(kept))
    stale = Path(name_places() + "1")  # the number of its process was given again
    (stale / "lib").mkdir(parents=True)
    try:
        remove_places_of_the_dead()
        assert not stale.exists()
        assert kept.is_dir()
    finally:
        os.close(held)
    remove_places_of_the_dead()
    assert not kept.exists()


@pytest.mark.slow
async def test_closing_does_not_wait_for_packages_that_take_long_to_remove(tmp_path: Path) -> None:
    packages = SessionPackages(str(tmp_path / "place"), tier=NATIVE)
    packages.prepare()
    for number in range(300):
        (tmp_path / "place" / f"{number}" / "inner").mkdir(parents=True)
    await packages.remove(patience=0)
    assert (tmp_path / "place").exists()  # a thread is at it
    await eventually(lambda: not (tmp_path / "place").exists())
    await packages.remove()


@pytest.mark.slow
async def test_a_host_removes_what_killed_ones_left_when_its_first_session_starts(tmp_path: Path) -> None:
    stale = Path(name_places() + "1")
    (stale / "lib").mkdir(parents=True)
    async with Host(isolate="native") as host, host.session(working_dir=tmp_path, images_dir=tmp_path):
        await eventually(lambda: not stale.exists())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one wheel."""
    directory = tmp_path_factory.mktemp("wheels")
    (directory / "tiny_demo-1.0-py3-none-any.whl").write_bytes(wheel("tiny_demo"))
    return directory


@pytest.fixture(scope="module", params=[pytest.param("none", marks=pytest.mark.slow), "native"])
async def shop(request: pytest.FixtureRequest, wheels: Path) -> AsyncIterator[Host]:
    """A host that takes packages from one directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        host = Host(isolate=request.param)
    async with host:
        yield host


@pytest.fixture
async def session(shop: Host, tmp_path: Path) -> AsyncIterator[Session]:
    async with shop.session(working_dir=tmp_path) as session:
        yield session


async def test_arguments_without_end_go_nowhere(native_host: Host, tmp_path: Path) -> None:
    """In a line of a cell they would keep the kernel busy; in a message of hostile code, they would become a command."""
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        for code in ("%pip install " + "a" * 70_000, "get_ipython().packages(['a' * 140_000])"):
            result = await session.execute(code, timeout=20)
            assert "put the requirements in a file" in str(result.error and result.error.evalue)


@pytest.mark.slow
async def test_what_is_installed_can_be_imported_at_once_and_survives_a_reset(session: Session) -> None:
    result = await session.install("tiny-demo>=1")
    assert result.ok, result.text
    assert "Successfully installed tiny-demo-1.0" in result.output
    assert (await session.execute("import tiny_demo; tiny_demo.ANSWER")).return_value == "42"
    await session.reset()
    assert (await session.execute("import tiny_demo; tiny_demo.ANSWER")).return_value == "42"
    assert (await session.execute("!python -c 'import tiny_demo; print(tiny_demo.ANSWER)'")).output == "42\n"


LOOK = """
import importlib.util, os, subprocess, sys
found = importlib.util.find_spec("tiny_demo") is not None
found, [path for path in sys.path if "packages" in path], os.environ["PYTHONPATH"], os.environ["PATH"]
"""


@pytest.mark.slow
async def test_undo_and_redo_of_an_installation(session: Session) -> None:
    before = await value(session, LOOK)
    assert not before[0]
    await ok(session, "%pip install -q tiny-demo\nimport tiny_demo")
    after = await value(session, LOOK)
    assert after[0]
    assert [cell.code[:4] for cell in (await session.undo(2)).cells] == ["%pip", LOOK[:4]]
    assert not (await session.execute("import tiny_demo")).ok
    assert await value(session, LOOK) == before
    await session.undo(3)
    await session.redo()
    assert await value(session, LOOK) == before
    await session.undo()
    await session.reset()
    assert not (await value(session, LOOK))[0], "a fresh kernel has the packages of the state before it"
    await ok(session, "%pip install -q tiny-demo")
    await session.undo()
    await session.redo()
    assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
    await session.reset()
    assert (await value(session, LOOK))[0]


@pytest.mark.slow
async def test_a_checkpoint_and_a_branch_keep_their_packages(session: Session) -> None:
    await ok(session, "%pip install -q tiny-demo")
    checkpoint = await session.checkpoint()
    (branch,) = await session.fork(1)
    await session.undo()
    async with branch:
        assert await value(branch, "import tiny_demo; tiny_demo.ANSWER") == 42
        result = await branch.execute("%pip install --ignore-installed tiny-demo")
        assert "a branch cannot install packages" in str(result.error and result.error.evalue)
        assert not (await value(session, LOOK))[0]
        await branch.reset()
        await ok(branch, "%pip install -q tiny-demo\nimport tiny_demo")
    await session.restore(checkpoint)
    assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42


@pytest.mark.slow
async def test_an_installation_of_a_cell_that_dies_is_gone(session: Session) -> None:
    await ok(session, "x = 1")
    await session.execute("%pip install -q tiny-demo\nimport os; os._exit(1)")
    assert (await value(session, LOOK))[0] is False
    assert await value(session, "x") == 1


@pytest.mark.slow
async def test_packages_that_a_session_is_made_with_are_there_for_its_first_cell(shop: Host, tmp_path: Path) -> None:
    async def refuse(_: object) -> str:
        return "nobody allows commands here"

    async with shop.session(working_dir=tmp_path, packages=["tiny-demo"], on_command=refuse) as session:
        result = await session.execute("import tiny_demo; tiny_demo.ANSWER")
        assert (result.return_value, result.text, result.execution_count) == ("42", "42", 1)
        assert session.history()[0].code == "import tiny_demo; tiny_demo.ANSWER"
        (branch,) = await session.fork(1)
        async with branch:
            assert (await branch.execute("tiny_demo.ANSWER")).return_value == "42"


@pytest.mark.slow
async def test_packages_that_cannot_be_had_keep_the_session_from_starting(shop: Host, tmp_path: Path) -> None:
    session = shop.session(working_dir=tmp_path, packages=["no-such-package-anywhere"])
    with pytest.raises(LaunchError, match="no-such-package-anywhere cannot be installed: No matching"):
        await session.start()
    for wrong in ("pandas", ["a\nb"], [3], None):
        with pytest.raises(InvalidInputError, match="packages must be a list of requirements"):
            shop.session(packages=wrong)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["!{sys.executable} -m pip install tiny-demo", "said = !uv pip install -q --system tiny-demo"]
)
async def test_a_shell_line_that_installs_is_the_same(session: Session, line: str) -> None:
    result = await session.execute(f"import sys\n{line}\nimport tiny_demo\ntiny_demo.ANSWER")
    assert result.return_value == "42", result.text


async def test_pip_as_one_part_of_a_command_is_refused_at_once(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, images_dir=tmp_path) as session:
        result = await session.execute("!echo begun && pip install tiny-demo > /dev/null")
        assert result.error is not None
        assert "write '%pip install ...' on a line of its own" in result.error.evalue
        assert result.output == ""
        assert (await session.execute("!echo pip install tiny-demo")).output == "pip install tiny-demo\n"
        code = "n = 0\ndef f():\n    global n\n    n += 1\n    return '{x}$HOME'\nsaid = !echo 'install {f()}'\nsaid[0], n"
        assert (await session.execute(code)).return_value == "('install {x}$HOME', 1)"


@pytest.mark.slow
async def test_another_session_does_not_have_it(session: Session, host: Host) -> None:
    assert (await session.install("tiny-demo")).ok
    async with host.session() as other:
        result = await other.execute("import tiny_demo")
    assert result.error is not None
    assert result.error.ename == "ModuleNotFoundError"


@pytest.mark.slow
async def test_what_cannot_be_installed_is_an_error_with_what_pip_said(session: Session) -> None:
    result = await session.install("no-such-package-anywhere")
    assert result.status == "error"
    assert result.error is not None
    assert "cannot be installed: No matching distribution found for no-such-package-anywhere" in result.error.evalue
    assert (await session.execute("1 + 1")).return_value == "2"


@pytest.mark.slow
async def test_an_installation_can_be_stopped(session: Session, wheels: Path) -> None:
    stream = session.stream("%pip install tiny-demo; import time; time.sleep(60)", timeout=0.2)
    *_, result = [event async for event in stream]
    assert getattr(result, "status", None) == "timeout"
    assert (await session.execute("1 + 1")).return_value == "2"


_KILLED = """
import asyncio, os
from cellblock import Host

async def main():
    async with Host(isolate={isolate!r}, launch={launch!r}) as host, host.session() as session:
        assert (await session.install("tiny-demo")).ok
        await session.reset()
        await session.execute("import os, tiny_demo; os.chmod(os.path.dirname(tiny_demo.__file__), 0o500)")
        await session.execute("print('there', flush=True)")
        print("there", flush=True)
        {ending}

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["await asyncio.sleep(60)", "os._exit(0)"], ids=["killed", "gone"])
@pytest.mark.parametrize(("isolate", "launch"), [("none", "spawn"), ("native", "zygote")])
async def test_nothing_is_left_of_a_host_that_is_killed(
    isolate: str, launch: str, ending: str, wheels: Path, tmp_path: Path
) -> None:
    program = _KILLED.format(isolate=isolate, launch=launch, ending=ending)
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    before = {*os.listdir(tempfile.gettempdir())}

    def new() -> set[str]:
        return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("cellblock-packages-")} - before

    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"there\n"
        if "sleep" in ending:
            assert len(new()) == 1
        process.kill()
    await eventually(lambda: not new())
