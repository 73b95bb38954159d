"""Errors of cells say what only the session knows: its directory is gone, its limit is reached, a module has another name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cellblock import CodeExecutionError, CodeExecutionResult, CodeExecutor, Host, LaunchError, Policy, Resources
from suite import first_quick


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.mark.parametrize("sandbox", first_quick([True, False]))
async def test_a_cell_that_fails_without_its_directory_says_so(
    native_host: Host, zygote_host: Host, workspace: Path, sandbox: bool
) -> None:
    executor = CodeExecutor(
        host=native_host if sandbox else zygote_host, sandbox=sandbox, working_dir=workspace, recovery="none"
    )
    async with executor:
        await executor.execute("x = 1")
        shutil.rmtree(workspace)
        assert (await executor.execute("x")).return_value == "1"
        with pytest.raises(CodeExecutionError) as caught:
            await executor.execute("open('a', 'w')")
        said = f"the session's working directory {workspace} was deleted while the session ran: create it again"
        assert f"FileNotFoundError: [Errno 2] No such file or directory: 'a' ({said}" in str(caught.value)
        result = caught.value.result
        assert result is not None
        assert result.error is not None
        assert said in result.error.evalue
        assert said in (result.text or "")
        assert [item.text for item in result.outputs if item.kind == "error"] == [str(caught.value)]
        assert said in result.for_model()
        with pytest.raises(LaunchError, match=f"no kernel can start in {workspace}: No such file or directory. Restore"):
            await executor.reset()
        workspace.mkdir()
        await executor.reset()
        await executor.execute("open('a', 'w').write('1')")
        assert (workspace / "a").read_text() == "1"
        assert "directory" not in (await executor.execute("1 / 0", check=False)).for_model()


async def test_a_directory_that_was_made_again_is_not_the_one_that_the_code_has(native_host: Host, workspace: Path) -> None:
    async with CodeExecutor(host=native_host, working_dir=workspace, recovery="none") as executor:
        await executor.execute("x = 1")
        shutil.rmtree(workspace)
        workspace.mkdir()
        result = await executor.execute("open('a', 'w')", check=False)
        assert result.error is not None
        assert f"{workspace} was deleted and created again, and its code still uses the old one: reset" in result.error.evalue
        async for last in executor.stream("open('a', 'w')", check=False):
            assert isinstance(last, CodeExecutionResult)
            assert "was deleted and created again" in (last.text or "")
        await executor.reset()
        await executor.execute("open('a', 'w')")


@pytest.mark.parametrize(
    "code",
    first_quick(
        [
            "import subprocess\nprograms = [subprocess.Popen(['sleep', '9']) for _ in range(40)]",
            "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        ]
    ),
)
async def test_code_that_makes_too_many_processes_is_told_which_option_limits_them(
    native_host: Host, workspace: Path, code: str
) -> None:
    policy = Policy(resources=Resources(processes=20))
    async with CodeExecutor(host=native_host, working_dir=workspace, policy=policy, recovery="none") as executor:
        result = await executor.execute(code, check=False)
        assert result.error is not None
        assert result.error.evalue.endswith(
            "(the session has reached its limit of 20 processes and threads: end some, or allow more in its policy, "
            "Resources(processes=…))"
        )
        result = await executor.execute("raise BlockingIOError(11, 'nothing to read')", check=False)
        assert result.error is not None
        assert "processes" not in result.error.evalue


async def test_a_module_of_tools_with_a_typo_is_answered_by_the_nearest_name(native_host: Host, workspace: Path) -> None:
    package = workspace / "mcptools" / "github"
    package.mkdir(parents=True)
    for name in ("__init__", "list_issues", "get_file"):
        (package / f"{name}.py").touch()
    meant = {
        "from mcptools.githb import x": "(did you mean 'mcptools.github'?)",
        "import mcptools.github.list_isues": "(did you mean 'mcptools.github.list_issues'?)",
        "from mcptools.github import list_isues": "(did you mean 'mcptools.github.list_issues'?)",
        "from mcptools.nothing_like_it import x": "",
        "from missing.githb import x": "",
    }
    async with CodeExecutor(host=native_host, working_dir=workspace, recovery="none") as executor:
        for code, said in meant.items():
            result = await executor.execute(code, check=False)
            assert result.error is not None
            assert result.error.evalue.endswith(said)
            assert ("did you mean" in result.for_model()) is bool(said), code


async def test_a_missing_file_in_tmp_says_that_tmp_is_private(native_host: Host, workspace: Path) -> None:
    async with native_host.session(working_dir=workspace) as session:
        for path, said in (("/tmp/missing.csv", True), (f"{workspace}/missing.csv", False), ("missing.csv", False)):
            error = (await session.execute(f"open({path!r})")).error
            assert error is not None
            assert ("/tmp is private to the session" in error.evalue) == said
