"""The code in the session works against the host: what it plants, and what it swaps while the host works (6, 41, 42)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock import FilesError
from cellblock.host.files import Files, Skipped

SECRET = b"the caller's own secret"
Operation = Callable[[Files, Path], Awaitable[object]]

SWAP_FILE = """
if not os.path.exists("own"):
    with open("own", "wb") as f: f.write(b"own")
for name in ("s", "n"):
    with contextlib.suppress(OSError): os.unlink(name)
os.symlink(args[0] + "/secret", "s"); os.replace("s", "x")
os.link("own", "n"); os.replace("n", "x")
"""
SWAP_FOLDER = """
os.makedirs("x/folder", exist_ok=True)
with open("x/secret", "wb") as f: f.write(b"own")
os.rename("x", "y"); os.symlink(args[0], "x"); os.unlink("x"); os.rename("y", "x")
"""


async def _tar(files: Files, path: str) -> bytes:
    return b"".join([piece async for piece in files.tar(path)])


@pytest.mark.parametrize(
    "operation",
    [
        lambda files, _: files.read("link"),
        lambda files, _: files.read("folder/secret"),
        lambda files, _: files.read("folder/folder/secret"),
        lambda files, _: files.stat("folder/secret"),
        lambda files, _: files.write("link", b"x"),
        lambda files, _: files.write("folder/new", b"x"),
        lambda files, _: files.write("folder/new/deep", b"x"),
        lambda files, _: files.mkdir("folder/new"),
        lambda files, _: files.mkdir("link/new"),
        lambda files, _: files.list("folder"),
        lambda files, _: files.list("folder/folder"),
        lambda files, _: files.remove("folder/secret"),
        lambda files, _: files.remove("folder/folder", recursive=True),
        lambda files, path: files.download("link", path / "out"),
        lambda files, path: files.download("folder", path / "out"),
        lambda files, path: files.download("folder/folder", path / "out"),
        lambda files, path: files.upload(path / "local", "link"),
        lambda files, path: files.upload(path / "local", "folder/new"),
        lambda files, _: _tar(files, "folder"),
        lambda files, _: _tar(files, "link"),
        lambda files, _: files.untar(bytes(1024), "folder"),
    ],
)
async def test_a_planted_link_is_refused_as_such_by_every_operation(
    files: Files, workspace: Path, outside: Path, tmp_path: Path, operation: Operation
) -> None:
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "folder").symlink_to(outside)
    (tmp_path / "local").write_bytes(b"mine")
    with pytest.raises(FilesError, match="symbolic link") as caught:
        await operation(files, tmp_path)
    assert caught.value.errno == errno.ELOOP
    assert not (tmp_path / "out").exists()


async def test_a_link_is_described_removed_and_left_out_but_what_it_points_to_is_not_touched(
    files: Files, workspace: Path, outside: Path, tmp_path: Path
) -> None:
    (workspace / "tree").mkdir()
    (workspace / "tree" / "link").symlink_to(outside)
    (workspace / "tree" / "dangling").symlink_to("nowhere")
    assert (await files.stat("tree/link")).kind == "symlink"
    result = await files.download("tree", tmp_path / "out")
    assert result.skipped == (Skipped("dangling", "symbolic link"), Skipped("link", "symbolic link"))
    assert list((tmp_path / "out").iterdir()) == []
    await files.remove("tree", recursive=True)
    assert not (workspace / "tree").exists()


@pytest.mark.parametrize("operation", ["read", "write", "download", "tar", "upload", "list"])
@pytest.mark.parametrize("kind", ["fifo", "socket"])
async def test_a_fifo_and_a_socket_are_refused_at_once(
    files: Files, workspace: Path, tmp_path: Path, kind: str, operation: str
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(workspace / "x")
        else:
            here = os.open(workspace, os.O_RDONLY)
            listener.bind(f"/proc/self/fd/{here}/x")  # the whole path may be too long for a socket
            os.close(here)
        (tmp_path / "local").write_bytes(b"mine")
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: files.read("x"),
            "write": lambda: files.write("x", b""),
            "download": lambda: files.download("x", tmp_path / "out"),
            "tar": lambda: _tar(files, "x"),
            "upload": lambda: files.upload(tmp_path / "local", "x"),
            "list": lambda: files.list("x"),
        }
        async with asyncio.timeout(5):
            with pytest.raises(FilesError) as caught:
                await operations[operation]()
        assert caught.value.errno == (errno.ENOTDIR if operation == "list" else errno.ENXIO)
        assert not (tmp_path / "out").exists()


async def test_special_files_in_a_folder_are_left_out_and_named(files: Files, workspace: Path, tmp_path: Path) -> None:
    os.mkfifo(workspace / "pipe")
    await files.write("kept", b"1")
    result = await files.download(".", tmp_path / "out")
    assert (result.files, result.bytes, result.skipped) == (1, 1, (Skipped("pipe", "FIFO, socket or device"),))
    noted: list[Skipped] = []
    archive = b"".join([piece async for piece in files.tar(".", on_skip=noted.append)])
    assert noted == list(result.skipped)
    assert b"pipe" not in archive


async def test_a_sparse_file_of_a_petabyte_is_refused_by_its_size(files: Files, workspace: Path, tmp_path: Path) -> None:
    exponent = 50
    with (workspace / "huge").open("wb") as huge:
        while True:  # file systems differ in what they take: 16 TB on ext4, a petabyte on others
            try:
                huge.truncate(2**exponent)
                break
            except OSError:
                exponent -= 1
    assert exponent > 40
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: files.read("huge"),
        lambda: files.download("huge", tmp_path / "out"),
        lambda: files.download(".", tmp_path / "out"),
        lambda: _tar(files, "huge"),
        lambda: _tar(files, "."),
    ]
    async with asyncio.timeout(5):
        for operation in operations:
            with pytest.raises(FilesError, match=f"it has {2**exponent:,} bytes, over the limit") as caught:
                await operation()
            assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "out").exists()
    assert (await files.stat("huge")).size == 2**exponent


def _dig(folder: Path, depth: int) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _level in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.slow
async def test_folders_a_thousand_deep_are_refused_and_can_be_removed(files: Files, workspace: Path, tmp_path: Path) -> None:
    _dig(workspace, 1100)
    for operation in (files.list(recursive=True), files.download(".", tmp_path / "out"), _tar(files, ".")):
        with pytest.raises(FilesError, match="max_depth"):
            await operation
    await files.remove("d", recursive=True)
    assert not list(workspace.iterdir())
    assert not (tmp_path / "out").exists()


async def test_names_of_any_bytes_come_and_go_unchanged(files: Files, workspace: Path, tmp_path: Path) -> None:
    names = [b"line\nbreak", b"\x1b[2Jescape", b"\xff\xfe", "ü".encode(), b"-rf", b"a\\b", b"*", b" ", b"\xed\xa0\x80"]
    for name in names:
        with open(os.fsencode(workspace) + b"/" + name, "wb") as file:
            file.write(name)
    listed = await files.list()
    assert sorted(os.fsencode(entry.path) for entry in listed) == sorted(names)
    for entry in listed:
        assert await files.read(entry.path) == os.fsencode(entry.path)
    await files.untar(await _tar(files, "."), "unpacked")
    await files.download("unpacked", tmp_path / "out")
    assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == sorted(names)


async def test_a_planted_name_cannot_write_to_a_terminal_through_a_message(files: Files, workspace: Path) -> None:
    (workspace / "\x1b]0;owned\x07\n\udcff").mkdir()
    with pytest.raises(FilesError) as caught:
        await files.read("\x1b]0;owned\x07\n\udcff")
    assert str(caught.value).isprintable()
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("swap", "operation"),
    [
        (SWAP_FILE, lambda files, path: files.read("x")),
        (SWAP_FILE, lambda files, path: _downloaded(files, "x", path / "out")),
        (SWAP_FILE, lambda files, path: _tar(files, "x")),
        (SWAP_FILE, lambda files, path: _tar(files, ".")),
        (SWAP_FILE, lambda files, path: files.write("x", b"own")),
        (SWAP_FOLDER, lambda files, path: files.read("x/secret")),
        (SWAP_FOLDER, lambda files, path: _downloaded(files, "x", path / "out")),
        (SWAP_FOLDER, lambda files, path: _tar(files, "x")),
        (SWAP_FOLDER, lambda files, path: files.write("x/new", b"own")),
        (SWAP_FOLDER, lambda files, path: files.mkdir("x/new/deep")),
        (SWAP_FOLDER, lambda files, path: files.remove("x/secret")),
        (SWAP_FOLDER, lambda files, path: files.remove("x/folder", recursive=True)),
        (SWAP_FOLDER, lambda files, path: files.remove("x", recursive=True)),
    ],
    ids=[
        *("file-read", "file-download", "file-tar", "file-tar-all", "file-write"),
        *("folder-read", "folder-download", "folder-tar", "folder-write", "folder-mkdir", "folder-remove"),
        *("folder-remove-tree", "folder-remove-all"),
    ],
)
@pytest.mark.slow
async def test_what_is_swapped_for_a_link_while_the_host_works_never_leads_out(
    files: Files, outside: Path, tmp_path: Path, attacker: Any, swap: str, operation: Operation
) -> None:
    # `outside` is compared when the test is over: nothing may have been made, changed or removed there.
    met: set[object] = set()
    with attacker(swap, outside):
        begun = time.monotonic()
        for _round in range(250):
            try:
                result = await operation(files, tmp_path)
            except FilesError as error:
                met.add(error.errno)
            else:
                assert not isinstance(result, bytes) or SECRET not in result
            if time.monotonic() - begun > 20:
                break
    assert _round > 30
    # None: a file that was replaced while an archive was made of it.
    # EISDIR: what was a link when it was looked at, and a directory again when it was opened.
    assert met <= {errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, None}


async def _downloaded(files: Files, path: str, local: Path) -> bytes:
    """Download something and return all that came."""
    await files.download(path, local, overwrite=True)
    if local.is_dir():
        return b"".join(file.read_bytes() for file in local.rglob("*") if file.is_file())
    return local.read_bytes()


@pytest.mark.slow
async def test_the_race_is_real_and_both_its_outcomes_are_met(
    files: Files, outside: Path, tmp_path: Path, attacker: Any
) -> None:
    met: set[object] = set()
    with attacker(SWAP_FILE, outside):
        async with asyncio.timeout(30):
            while not {b"own", errno.ELOOP} <= met:
                try:
                    met.add(await _downloaded(files, "x", tmp_path / "out"))
                except FilesError as error:
                    met.add(error.errno)
    assert met <= {b"own", errno.ELOOP, errno.ENOENT}


@pytest.mark.slow
async def test_a_walk_that_followed_links_would_give_the_secret_away(workspace: Path, outside: Path, attacker: Any) -> None:
    def naive(directory: int, parts: tuple[str, ...], flags: int) -> int:
        return os.open("/".join(parts) or ".", flags & ~os.O_NOFOLLOW, dir_fd=directory)

    files = Files(workspace, walk=naive)
    with attacker(SWAP_FOLDER, outside):
        async with asyncio.timeout(30):
            found = b""
            while SECRET not in found:
                try:
                    found = await files.read("x/secret")
                except FilesError:
                    continue


@pytest.mark.slow
async def test_a_file_swapped_for_a_fifo_never_keeps_the_host_waiting(files: Files, attacker: Any) -> None:
    swap = SWAP_FILE.replace('os.symlink(args[0] + "/secret", "s")', 'os.mkfifo("s")')
    assert "mkfifo" in swap
    met: set[object] = set()
    with attacker(swap):
        async with asyncio.timeout(30):
            while not {b"own", errno.ENXIO} <= met:
                try:
                    met.add(await files.read("x"))
                except FilesError as error:
                    met.add(error.errno)
    assert met <= {b"own", errno.ENXIO, errno.ENOENT}


@pytest.mark.slow
@pytest.mark.parametrize("into", ["new/place", "old"])
async def test_a_staging_folder_that_is_tampered_with_leads_nowhere(
    files: Files, workspace: Path, outside: Path, tmp_path: Path, attacker: Any, into: str
) -> None:
    for number in range(60):
        (tmp_path / "local" / str(number % 4)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / str(number % 4) / str(number)).write_bytes(b"own")
    tamper = """
for folder in (".", "new", "old"):
    for name in os.listdir(folder):
        if name.startswith(".cellblock-"):
            with contextlib.suppress(OSError):
                os.rename(f"{folder}/{name}/1", f"{folder}/{name}/away"); os.symlink(args[0], f"{folder}/{name}/1")
            with contextlib.suppress(OSError):
                os.rename(f"{folder}/{name}", f"{folder}/gone"); os.symlink(args[0], f"{folder}/{name}")
"""
    (workspace / "old").mkdir()
    (workspace / "new").mkdir()
    archive = await _tar(Files(tmp_path / "local"), ".")
    with attacker(tamper, outside):
        for _round in range(40):
            for operation in (files.upload(tmp_path / "local", into), files.untar(archive, into)):
                try:
                    await operation
                except FilesError:
                    continue
            for name in ("new", "old"):
                for entry in os.listdir(workspace / name):
                    with contextlib.suppress(FilesError):  # it may be moved away under our hands
                        await files.remove(f"{name}/{entry}", recursive=True)


async def test_a_file_that_grows_is_copied_as_far_as_it_was(files: Files, tmp_path: Path, attacker: Any) -> None:
    await files.write("log", b"x")
    grow = 'with open("log", "ab", 0) as f: f.write(b"x" * 65536)\nif os.path.getsize("log") > 2**22: os.truncate("log", 1)'
    with attacker(grow):
        async with asyncio.timeout(30):
            for _round in range(10):
                assert not (await files.read("log", max_bytes=2**23)).strip(b"x")
