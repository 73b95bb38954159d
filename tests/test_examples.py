"""The examples run, say what they should, and leave nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import alive, below, eventually

EXAMPLES = Path(__file__).parent.parent / "examples"


async def run(name: str, cwd: Path, stdin: int = subprocess.DEVNULL) -> str:
    """Run an example as a user does who writes its output to a file; return what it printed."""
    process = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(EXAMPLES / name)],
        cwd=cwd,
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "\x1b" not in process.stdout
    return process.stdout


@pytest.mark.slow
async def test_quickstart_shows_every_step_and_saves_the_plot(tmp_path: Path) -> None:
    shown = await run("quickstart.py", tmp_path)
    assert "10,000 strikes from January 1990 to July 2002" in shown
    assert re.search(r"Canada goose +190 +80999 +15389869", shown)
    assert re.search(r"Mallard +6,957 \$ +[\d,]+ to +[\d,]+ \$", shown)
    assert "ZeroDivisionError: division by zero" in shown
    assert "----> 3     return int(found.sum()) / len(found)" in shown
    assert "the code exceeded its timeout of 1.00s. The cell was stopped at its deadline" in shown
    assert "10,000 strikes are still here" in shown
    table = shown.rpartition("How long it took")[2].splitlines()
    assert len(table) == 11
    [plot] = (tmp_path / "images").iterdir()
    assert plot.name == "bird-strikes.png"
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_quickstart_ends_at_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "quickstart.py")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while "resamples" not in (lines[-1] if lines else "") or "│" in lines[-1]:
            lines.append(await asyncio.to_thread(process.stdout.readline))
            assert lines[-1], "".join(lines)
        everything = below(process.pid)
        process.send_signal(signal.SIGINT)
        said, complaints = await asyncio.to_thread(process.communicate, None, 30)
    assert (process.returncode, complaints) == (130, "")
    assert said.endswith("Stopped; nothing is left running.\n")
    assert everything
    await eventually(lambda: not any(alive(pid) for pid in everything))


@pytest.mark.slow
async def test_quickstart_ends_quietly_when_its_reader_has_seen_enough(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(EXAMPLES / "quickstart.py")],
            cwd=tmp_path,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
async def test_streaming_prints_chunks_as_they_come(tmp_path: Path) -> None:
    shown = (await run("streaming.py", tmp_path)).splitlines()
    assert shown[:5] == [f"{number} of 5" for number in range(1, 6)]
    assert re.fullmatch(r"success after \d+ ms, 5 lines", shown[5])


@pytest.mark.slow
async def test_parallel_sessions_add_up(tmp_path: Path) -> None:
    assert "50 sessions, 100 cells" in (shown := await run("parallel_sessions.py", tmp_path))
    assert shown.endswith(f"the sum is {sum(number**2 for number in range(50)):,}\n")


@pytest.mark.slow
async def test_a_tree_search_adopts_the_best_branches_and_draws_the_tree(tmp_path: Path) -> None:
    shown = await run("tree_search.py", tmp_path)
    assert shown.splitlines()[1:4] == [
        "level 1: strikes as numbers -> 0.473 (1 of 8 branches failed)",
        "level 2: heights in metres -> 0.723 (2 of 8 branches failed)",
        "level 3: one spelling of names -> 0.889 (4 of 8 branches failed)",
    ]
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_input_is_answered(tmp_path: Path) -> None:
    shown = (await run("answer_input.py", tmp_path)).splitlines()
    assert shown[:2] == ["What is your name? Ada", "Hello, Ada!"]
    assert shown[2].startswith("Without an answer: input() is not available")


@pytest.mark.npm
async def test_an_agent_without_a_terminal_reads_and_does_not_write(tmp_path: Path) -> None:
    shown = await run("agent_tools.py", tmp_path)
    assert shown.startswith("There is no terminal to ask: rules accept calls that only read")
    assert "filesystem: 14 tools\ngit: 12 tools\n" in shown
    assert "Message: Begin the tide tables" in shown
    assert "'README.md': 11" in shown
    assert "ToolRunnerError: Approval request for filesystem.write_file was not accepted: denied by the rule: default" in shown
    assert "SUMMARY.md" not in shown.rpartition("On branch main")[2]


@pytest.mark.npm
async def test_an_agent_asks_at_the_terminal(tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    try:
        os.write(terminal, b"a\n" * 4 + b"y\n")  # status, log, list, read; write. The last status needs no answer.
        shown = await run("agent_tools.py", tmp_path, inside)
    finally:
        os.close(terminal)
        os.close(inside)
    assert shown.count("Approve? [y]es, [n]o, [a]lways this tool: ") == 5  # two files are read with one answer
    assert "filesystem.write_file(content='- " in shown
    assert "Successfully wrote" in shown
    assert "SUMMARY.md" in shown.rpartition("On branch main")[2]


@pytest.mark.npm
async def test_an_agent_over_the_mcp_server_does_a_whole_task(tmp_path: Path) -> None:
    shown = await run("mcp_agent.py", tmp_path)
    for expected in (
        "filesystem is registered. Its tools:\nread_file\n",
        "mcptools.filesystem.read_text_file(path: str",
        "git.git_log(repo_path: str",
        "[a picture, image/png, ",
        "The kernel died: SIGSEGV",
        "Message: Data about bird strikes",
    ):
        assert expected in shown
    assert shown.count("(10000, 14)") == 2


def test_every_example_is_run_here() -> None:
    tested = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tested] == []


def test_the_data_is_what_its_readme_says() -> None:
    described = (EXAMPLES / "data" / "README.md").read_text()
    paths = [*EXAMPLES.glob("data/*.csv")]
    assert paths
    for path in paths:
        data = path.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        assert path.name in described
        assert digest in described


@pytest.mark.slow
async def test_a_session_is_saved_and_continued(tmp_path: Path) -> None:
    assert await run("save_and_continue.py", tmp_path) == (
        "saved strikes, total in 2 cells\n"
        "not saved: lines (TypeError: cannot pickle 'generator' object)\n"
        "In [3] says 265\n"
        "analysis.ipynb has 3 cells\n"
    )
    assert sorted(os.listdir(tmp_path)) == ["analysis.cellblock", "analysis.ipynb"]
