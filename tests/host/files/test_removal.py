"""Removing what code in the session has built, or changes meanwhile."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from cellblock import FilesError
from cellblock.host.files import Files
from cellblock.host.files.beneath import Tree, Walk
from cellblock.host.files.removal import remove_tree


async def test_a_folder_whose_modes_were_taken_away_can_be_removed(files: Files, workspace: Path) -> None:
    (workspace / "a" / "b" / "c").mkdir(parents=True)
    (workspace / "a" / "b" / "f").write_bytes(b"")
    for name in ("a/b/c", "a/b", "a"):
        (workspace / name).chmod(0)
    await files.remove("a", recursive=True)
    assert not list(workspace.iterdir())


@pytest.mark.slow
async def test_a_folder_that_is_filled_while_it_is_removed_ends_in_an_error_or_an_end(
    files: Files, workspace: Path, attacker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.host.files.removal._MOST", 2000)
    met: set[object] = set()
    fill = "for n in range(300):\n    os.makedirs(f'x/{n}/y', exist_ok=True)"
    with attacker(fill):
        async with asyncio.timeout(60):
            for _round in range(3):
                (workspace / "x").mkdir(exist_ok=True)
                try:
                    await files.remove("x", recursive=True)
                except FilesError as error:
                    met.add(error.errno)
    assert met <= {errno.ENOTEMPTY, errno.ENOENT}


def test_a_folder_swapped_for_a_full_one_while_it_is_removed_is_an_error_soon(workspace: Path, walk: Walk) -> None:
    (workspace / "x").mkdir()
    (workspace / "full" / "entry").mkdir(parents=True)
    (workspace / "x" / "a").touch()
    with Tree.at(str(workspace), walk) as tree:
        steps = remove_tree(tree.fd, "x", walk)
        next(steps)
        (workspace / "x").rename(workspace / "away")
        (workspace / "full").rename(workspace / "x")
        with pytest.raises(OSError, match="not empty") as caught:
            for _count, _step in zip(range(10_000), steps, strict=False):
                pass
    assert caught.value.errno == errno.ENOTEMPTY
    assert (workspace / "x" / "entry").is_dir()
