"""Uploads and downloads: progress, cancellation, nothing half-done, and the caller's disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock import FilesError
from cellblock.host.files import FileLimits, Files, Skipped, Transfer
from cellblock.host.files.beneath import Walk
from full_disk import file_size_limit
from suite import first_quick

MIB = 2**20


def plant(folder: Path, count: int = 20, size: int = 1000) -> dict[str, bytes]:
    """Fill a folder; return what it holds by path."""
    tree = {f"{number % 3}/{number % 2}/{number}": bytes([number]) * size for number in range(count)}
    for name, data in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return tree


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_file_goes_there_and_back(files: Files, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"1" * 3_000_000)
    (tmp_path / "local").chmod(0o755)
    assert await files.upload(tmp_path / "local") == Transfer(1, 3_000_000)
    assert (await files.stat("local")).mode & 0o700 == 0o700
    assert await files.download("local", tmp_path / "back") == Transfer(1, 3_000_000)
    assert (tmp_path / "back").read_bytes() == b"1" * 3_000_000
    assert (tmp_path / "back").stat().st_mtime == pytest.approx((tmp_path / "local").stat().st_mtime)


async def test_a_folder_goes_there_and_back(files: Files, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "local" / "empty").mkdir(parents=True)
    tree = plant(tmp_path / "local")
    assert await files.upload(str(tmp_path / "local"), "up/there") == Transfer(20, 20_000)
    assert content(workspace / "up/there") == tree
    assert (workspace / "up/there/empty").is_dir()
    assert await files.download("up", tmp_path / "back") == Transfer(20, 20_000)
    assert content(tmp_path / "back/there") == tree


async def test_an_upload_takes_links_in_a_folder_for_what_they_are_and_follows_the_one_that_was_named(
    files: Files, tmp_path: Path
) -> None:
    plant(tmp_path / "real", 1)
    (tmp_path / "real" / "in").symlink_to(tmp_path)
    (tmp_path / "named").symlink_to("real")
    result = await files.upload(tmp_path / "named")
    assert (result.files, result.skipped) == (1, (Skipped("in", "symbolic link"),))
    assert (await files.stat("named")).kind == "directory"


async def test_an_upload_merges_into_a_folder_and_replaces_files(files: Files, workspace: Path, tmp_path: Path) -> None:
    tree = plant(tmp_path / "local")
    await files.write("to/0/0/0", b"old")
    await files.write("to/0/0/kept", b"kept")
    await files.upload(tmp_path / "local", "to")
    assert content(workspace / "to") == {**tree, "0/0/kept": b"kept"}


async def test_a_download_overwrites_only_when_it_is_told_to(files: Files, tmp_path: Path) -> None:
    await files.write("x", b"new")
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_bytes(b"old")
    for source, target in (("x", "x"), (".", "folder")):
        with pytest.raises(FilesError, match="it already exists") as caught:
            await files.download(source, tmp_path / target)
        assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "x").read_bytes() == (tmp_path / "folder" / "x").read_bytes() == b"old"
    await files.download("x", tmp_path / "x", overwrite=True)
    await files.download(".", tmp_path / "folder", overwrite=True)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "folder" / "x").read_bytes() == b"new"


async def test_a_download_never_goes_through_a_link_in_its_target(files: Files, tmp_path: Path, outside: Path) -> None:
    await files.write("folder/new", b"1")
    await files.write("secret", b"1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "folder").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside / "secret")
    for source, target in ((".", "out"), ("secret", "link"), ("folder", "out/folder")):
        with pytest.raises(FilesError, match="symbolic link"):
            await files.download(source, tmp_path / target, overwrite=True)
    assert os.listdir(tmp_path / "out") == ["folder"]


@pytest.mark.parametrize(("source", "target"), [("file", "folder"), ("folder", "file")])
async def test_a_file_does_not_replace_a_folder_nor_the_other_way_round(
    files: Files, tmp_path: Path, source: str, target: str
) -> None:
    await files.write("file", b"1")
    await files.mkdir("folder")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FilesError, match="folder"):
        await files.download(source, tmp_path / target, overwrite=True)
    with pytest.raises(FilesError, match="folder"):
        await files.upload(tmp_path / source, target)


async def test_a_local_path_in_the_workspace_is_walked_like_the_workspace(
    files: Files, workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default the workspace is the current directory: what its code planted there must not become "the caller's disk".
    await files.write("x", b"1")
    (workspace / "out").symlink_to(outside)
    (workspace / "keys").symlink_to(outside / "secret")
    monkeypatch.chdir(workspace)
    for local in ("out/new", "out", str(workspace / "out/new")):
        with pytest.raises(FilesError, match="symbolic link"):
            await files.download("x", local, overwrite=True)
    with pytest.raises(FilesError, match="symbolic link"):
        await files.upload("keys", "stolen")
    await files.download("x", "copies/x")
    assert await files.read("copies/x") == b"1"


async def test_what_is_missing_is_named_with_its_side(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"cannot upload '.*/none': it does not exist"):
        await files.upload(tmp_path / "none")
    with pytest.raises(FilesError, match="cannot download 'none': it does not exist"):
        await files.download("none", tmp_path / "x")
    await files.write("x", b"")
    with pytest.raises(FilesError, match=r"cannot write '.*/no/folder/x': it does not exist"):
        await files.download("x", tmp_path / "no/folder/x")


@pytest.mark.parametrize("limit", ["max_file_bytes", "max_total_bytes", "max_entries", "max_depth"])
async def test_a_folder_over_a_limit_is_not_begun(workspace: Path, tmp_path: Path, walk: Walk, limit: str) -> None:
    files = Files(workspace, walk=walk, limits=FileLimits(**{limit: 2}))
    plant(tmp_path / "local")
    with pytest.raises(FilesError, match=rf"over the limit of 2 \({limit}\); give the session FileLimits") as caught:
        await files.upload(tmp_path / "local")
    assert caught.value.errno == errno.EFBIG
    assert not list(workspace.iterdir())


async def test_progress_grows_to_the_whole_and_is_told_in_the_callers_thread(files: Files, tmp_path: Path) -> None:
    plant(tmp_path / "local", 10, MIB)
    told: list[tuple[int, int | None]] = []
    loop = asyncio.get_running_loop()

    def progress(done: int, total: int | None) -> None:
        assert asyncio.get_running_loop() is loop
        told.append((done, total))

    await files.upload(tmp_path / "local", progress=progress)
    await files.download("local", tmp_path / "back", progress=progress)
    await files.download("local/0/0/0", tmp_path / "one", progress=progress)
    assert [entry for entry in told if entry[0] == entry[1]][-1] == (MIB, MIB)
    assert told.count((10 * MIB, 10 * MIB)) >= 2
    first = told[: told.index((10 * MIB, 10 * MIB)) + 1]
    assert first == sorted(first)
    assert {total for _done, total in first} == {10 * MIB}


def _operations(files: Files, path: Path) -> dict[str, Callable[[Any], Awaitable[object]]]:
    return {
        "upload-file": lambda progress: files.upload(path / "file", "new/up", progress=progress),
        "upload-folder": lambda progress: files.upload(path / "local", "new/up", progress=progress),
        "download-file": lambda progress: files.download("file", path / "out" / "x", progress=progress),
        "download-folder": lambda progress: files.download("folder", path / "out" / "x", progress=progress),
        "untar": lambda progress: files.untar(files.tar("folder"), "new/un", progress=progress),
    }


@pytest.mark.parametrize("name", first_quick(["upload-folder", "download-folder", "untar", "upload-file", "download-file"], 3))
@pytest.mark.parametrize("at", first_quick([MIB, 0]))
async def test_a_progress_callback_that_raises_stops_it_and_leaves_nothing(
    files: Files, workspace: Path, tmp_path: Path, name: str, at: int
) -> None:
    class EnoughError(Exception):
        pass

    def progress(done: int, total: int | None) -> None:
        if done >= at:
            raise EnoughError

    before = _prepare(workspace, tmp_path)
    with pytest.raises(EnoughError):
        await _operations(files, tmp_path)[name](progress)
    assert _names(workspace, tmp_path) == before


@pytest.mark.parametrize("name", first_quick(["upload-folder", "download-folder", "untar", "upload-file", "download-file"], 3))
async def test_a_cancellation_at_any_moment_leaves_all_or_nothing(
    files: Files, workspace: Path, tmp_path: Path, name: str
) -> None:
    before = {*_prepare(workspace, tmp_path)}
    await _operations(files, tmp_path)[name](None)
    whole = {*_names(workspace, tmp_path)} - before
    for steps in range(0, 40, 8):
        for path in sorted({*_names(workspace, tmp_path)} - before, reverse=True):
            Path(path).rmdir() if Path(path).is_dir() else Path(path).unlink()
        task = asyncio.ensure_future(_operations(files, tmp_path)[name](None))
        for _ in range(steps):
            await asyncio.sleep(0.0002)  # no synchronisation: whatever moment this is, the outcome must be clean
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert {*_names(workspace, tmp_path)} - before in (set(), whole)


async def test_a_cancelled_write_leaves_nothing(files: Files, workspace: Path) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MIB)
            begun.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(files.write("a/b", endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(workspace.iterdir())


def _prepare(workspace: Path, tmp_path: Path) -> list[str]:
    plant(tmp_path / "local", 20, MIB // 8)
    plant(workspace / "folder", 20, MIB // 8)
    (tmp_path / "out").mkdir()
    for path in (tmp_path / "file", workspace / "file"):
        path.write_bytes(bytes(5 * MIB))
    return _names(workspace, tmp_path)


def _names(workspace: Path, tmp_path: Path) -> list[str]:
    return sorted(str(path) for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["upload-file", "download-file", "untar-large", "write"])
async def test_a_write_that_fails_half_way_leaves_nothing(files: Files, workspace: Path, tmp_path: Path, name: str) -> None:
    before = _prepare(workspace, tmp_path)
    archive = b"".join([piece async for piece in files.tar("file")])
    operations = _operations(files, tmp_path)
    operations["untar-large"] = lambda _: files.untar(archive, "new/un")
    operations["write"] = lambda _: files.write("new/w", bytes(5 * MIB))
    with file_size_limit(MIB), pytest.raises(FilesError, match="larger than this process may write") as caught:
        await operations[name](None)
    assert caught.value.errno == errno.EFBIG
    assert _names(workspace, tmp_path) == before


FULL = """
import asyncio, os, sys
from pathlib import Path
from cellblock import FilesError
from cellblock.host.files import Files

async def main():
    local, workspace = Path(sys.argv[1]), Path(sys.argv[2])
    files = Files(workspace)
    await files.write("kept", b"old")
    async def stream():
        with open(local / "archive.tar", "rb") as archive:
            while data := archive.read(65536):
                yield data
    for operation in (
        lambda: files.write("kept", bytes(3 * 2**20)),
        lambda: files.write("new/file", bytes(3 * 2**20)),
        lambda: files.upload(local, "new/folder"),
        lambda: files.untar(stream(), "new/archive"),
    ):
        try:
            await operation()
        except FilesError as error:
            print(error.errno, "no space is left" in str(error), os.listdir(workspace), (workspace / "kept").read_text())
        else:
            print("it went through")

asyncio.run(main())
"""


async def test_a_full_disk_leaves_what_was_and_nothing_else(tmp_path: Path) -> None:
    # A file system of one megabyte, in a mount namespace of our own: so nobody need be root, and nothing to unmount is left.
    (tmp_path / "local").mkdir()
    (tmp_path / "mounted").mkdir()
    archive = b"".join([piece async for piece in _big_archive(tmp_path)])
    (tmp_path / "local" / "archive.tar").write_bytes(archive)
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@"'
    command: list[str | Path] = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        tmp_path / "mounted",
    ]
    command += [sys.executable, "-c", FULL, tmp_path / "local", tmp_path / "mounted"]
    done = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True))
    assert done.stdout.splitlines() == [f"{errno.ENOSPC} True ['kept'] old"] * 4, done.stderr


async def _big_archive(tmp_path: Path) -> AsyncIterator[bytes]:
    plant(tmp_path / "big", 10, MIB // 4)
    async for piece in Files(tmp_path / "big").tar("."):
        yield piece


@pytest.mark.slow
async def test_the_event_loop_goes_on_during_a_copy_of_200_megabytes(files: Files, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(200 * MIB)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.002)
            turns += 1

    ticking = asyncio.create_task(tick())
    try:
        await files.upload(tmp_path / "large")
        await files.untar(files.tar("large"), "copy")
        await files.download("copy", tmp_path / "back")
    finally:
        ticking.cancel()
    assert (tmp_path / "back" / "large").stat().st_size == 200 * MIB
    assert turns > 50
