"""Walking down from a directory: no name leads out of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cellblock import FilesError
from cellblock.common.open_flags import READ
from cellblock.host.files import Files
from cellblock.host.files.beneath import Tree, Walk


async def test_a_magic_link_leads_nowhere(outside: Path, walk: Walk) -> None:
    fd = os.open(outside, os.O_RDONLY)
    try:
        with pytest.raises(FilesError) as caught:
            await Files("/proc/self", walk=walk).read(f"fd/{fd}/secret")
        assert caught.value.errno == errno.ELOOP
    finally:
        os.close(fd)


@pytest.mark.parametrize("device", ["zero", "null", "full", "tty"])
async def test_a_device_is_not_read(device: str, walk: Walk) -> None:
    with pytest.raises(FilesError, match="a device; only regular files") as caught:
        await Files("/dev", walk=walk).read(device)
    assert caught.value.errno == errno.ENXIO


async def test_what_is_no_regular_file_is_not_even_opened(workspace: Path, walk: Walk) -> None:
    opened: list[tuple[str, ...]] = []

    def watched(directory: int, parts: tuple[str, ...], flags: int) -> int:
        if flags == READ:
            opened.append(parts)
        return walk(directory, parts, flags)

    os.mkfifo(workspace / "pipe")
    with pytest.raises(FilesError, match="a FIFO"):
        await Files(workspace, walk=watched).read("pipe")
    assert opened == []


def test_a_walk_goes_deeper_than_a_path_may_be_long(workspace: Path, walk: Walk) -> None:
    names = tuple(f"{level:03}" + "n" * 250 for level in range(60))
    with Tree.at(str(workspace), walk) as tree:
        os.close(tree.make_directories(names))
        assert tree.lstat((*names,)).st_nlink == 2
        with pytest.raises(FileNotFoundError):
            tree.lstat((*names, "missing"))
        os.close(tree.open((), os.O_RDONLY | os.O_DIRECTORY))


def test_a_name_with_a_nul_opens_nothing(workspace: Path, walk: Walk) -> None:
    (workspace / "a").write_bytes(b"")
    with Tree.at(str(workspace), walk) as tree, pytest.raises(ValueError, match="null"):
        tree.open(("a\0b",), os.O_RDONLY)
