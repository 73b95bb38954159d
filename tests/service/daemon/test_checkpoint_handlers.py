"""Checkpoints and branches of named sessions, as clients ask the daemon for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from daemons import kill, own_daemon, switch_off

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The workspace of a session whose name is "s"."""
    cellblock.get_or_create("s", working_dir=str(tmp_path))
    cellblock.execute("s", "import os, random; open('a', 'w').write('0'); None")
    yield tmp_path
    cellblock.wipe()
    assert os.listdir(home / "branches") == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".cellblock")]


def test_branches_have_files_of_their_own_and_are_adopted_with_them(workspace: Path) -> None:
    with pytest.raises(cellblock.InvalidInputError, match="integer of 64 bits"):
        cellblock.fork("s", ["left"], seeds=[2**64])
    records = cellblock.fork("s", ["left", "right"], seeds=[1, 1])
    assert [Path(record.workspace).parent for record in records] == [workspace, workspace]
    drawn = [cellblock.execute(name, "open('a', 'w').write('1'); random.random()").text for name in ("left", "right")]
    assert drawn[0] == drawn[1]
    assert (workspace / "a").read_text() == "0"
    with pytest.raises(cellblock.InvalidInputError, match="itself"):
        cellblock.adopt("s", "s")
    assert cellblock.adopt("s", "left").written == ("a",)
    assert (workspace / "a").read_text() == "1"
    assert sorted(kernel.name for kernel in cellblock.list_kernels()) == ["right", "s"]
    (shared,) = cellblock.fork("s", ["shared"], files="shared")
    assert shared.workspace == str(workspace)
    with pytest.raises(cellblock.InvalidInputError, match="files"):
        cellblock.fork("s", ["wrong"], files="all")  # type: ignore[arg-type]


def test_branches_keep_their_files_when_the_daemon_is_killed(workspace: Path) -> None:
    cellblock.checkpoint("s", "before")
    cellblock.fork("s", ["left"])
    cellblock.execute("left", "open('a', 'w').write('1'); None")
    kill()
    assert cellblock.execute("s", "open('a').read()").return_value == "'0'"  # the next daemon has looked what is left
    assert cellblock.execute("left", "open('a').read()").return_value == "'1'"
    cellblock.execute("s", "x = 5")
    cellblock.restore("s", "before")
    assert cellblock.execute("s", "'x' in globals()").return_value == "False"
    (inner,) = cellblock.fork("left", ["inner"])
    assert Path(inner.workspace).parent == workspace
    cellblock.adopt("s", "inner")
    assert (workspace / "a").read_text() == "1"


def test_a_branch_that_has_lost_its_kernel_with_the_daemon_says_that_its_files_are_gone(workspace: Path) -> None:
    cellblock.fork("s", ["left"])
    cellblock.execute("left", "open('a', 'w').write('1'); None")
    switch_off()
    result = cellblock.execute("left", "open('a').read()")
    assert result.return_value == "'0'"
    assert f"a branch's copy, which was removed. It works in {workspace}" in result.stderr
