"""`Session.fs`: files as the session's own user sees them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, ProcessError, Session


async def test_files_are_written_and_read_at_any_path(session: Session, tmp_path: Path) -> None:
    """In parts, too, by links, and in folders."""
    await session.fs.write_bytes("a/b/c.bin", bytes(range(256)))
    assert (tmp_path / "a/b/c.bin").read_bytes() == bytes(range(256))
    elsewhere = (await session.exec('printf "%s" "${TMPDIR:-/tmp}/elsewhere.txt"')).out
    await session.fs.write_text(elsewhere, "text\n")
    assert (await session.exec(["cat", elsewhere])).out == "text\n"
    assert await session.fs.read_text(elsewhere) == "text\n"
    await session.fs.write_text("a/b/c.bin", "")
    assert await session.fs.read_bytes("a/b/c.bin") == b""
    await session.fs.remove(elsewhere)
    # Links are followed inside.
    await session.exec("mkdir d; echo x > d/target; ln -s d/target link; ln -s d dir; ln -s nowhere broken")
    assert await session.fs.read_text("link") == "x\n"
    await session.fs.write_text("link", "y\n")
    assert (tmp_path / "d/target").read_text() == "y\n"
    assert (await session.fs.stat("link")).kind == "file"
    assert (await session.fs.stat("link", follow=False)).kind == "symlink"
    assert await session.fs.realpath("dir/target") == f"{tmp_path}/d/target"
    assert not await session.fs.exists("broken")
    assert {(one.path, one.kind) for one in await session.fs.list(".")} >= {
        ("./d", "directory"), ("./dir", "directory"), ("./link", "file"), ("./broken", "symlink"),
    }  # fmt: skip


async def test_directories(session: Session, tmp_path: Path) -> None:
    await session.fs.mkdir("one/two", parents=True)
    await session.fs.mkdir("one", exist_ok=True)
    with pytest.raises(FileExistsError):
        await session.fs.mkdir("one")
    await session.fs.write_bytes("file", b"")
    with pytest.raises(FileExistsError):
        await session.fs.mkdir("file", exist_ok=True)
    with pytest.raises(OSError, match="not empty") as caught:
        await session.fs.remove("one")
    assert caught.value.errno == errno.ENOTEMPTY
    await session.fs.rename("one/two", "three")
    await session.fs.remove("one", recursive=True)
    await session.fs.remove("one", missing_ok=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "three"]


async def test_errors_are_those_of_the_system(session: Session, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for call, error in (
        (session.fs.read_bytes("missing"), FileNotFoundError),
        (session.fs.read_bytes("."), IsADirectoryError),
        (session.fs.write_bytes(".", b"x" * 3_000_000), IsADirectoryError),
        (session.fs.list("missing"), FileNotFoundError),
        (session.fs.list("fifo"), NotADirectoryError),
        (session.fs.read_bytes("fifo"), OSError),
        (session.fs.write_bytes("fifo", b""), OSError),
        (session.fs.realpath("missing/x", strict=True), FileNotFoundError),
        (session.fs.write_bytes("file/x", b""), NotADirectoryError),
        (session.fs.mkdir("file/x", parents=True), NotADirectoryError),
    ):
        with pytest.raises(error) as caught:
            await call
        assert caught.value.filename in ("missing", ".", "fifo", "missing/x", "file/x")
    for path in ("", "a\0b"):
        with pytest.raises(InvalidInputError, match="a path must be"):
            await session.fs.stat(path)
    with pytest.raises(InvalidInputError, match="data must be bytes"):
        await session.fs.write_bytes("x", "text")  # type: ignore[arg-type]  # that is what is tested


async def test_it_has_the_rights_of_the_code(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        await session.fs.write_bytes("secret", b"")
        await session.exec(["chmod", "000", "secret"])
        with pytest.raises(PermissionError):
            await session.fs.read_bytes("secret")
        with pytest.raises(OSError, match=r"Permission|Read-only"):
            await session.fs.write_bytes("/usr/bin/new", b"")
        with pytest.raises(FileNotFoundError):
            await session.fs.read_bytes("/root/anything")


async def test_sizes_are_bounded_and_large_files_pass(host: Host, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, recovery="none") as session:
        blob = os.urandom(1 << 20) * 8
        await session.fs.write_bytes("large", blob)
        assert await session.fs.read_bytes("large") == blob
        with pytest.raises(OSError, match="more than 1,000 bytes") as caught:
            await session.fs.read_bytes("large", 1000)
        assert caught.value.errno == errno.EFBIG


async def test_a_cancelled_request_does_not_mix_answers(host: Host, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, recovery="none") as session:
        await session.fs.write_bytes("a", b"a" * 5_000_000)
        await session.fs.write_bytes("b", b"b")
        for turns in range(0, 12, 3):
            task = asyncio.create_task(session.fs.read_bytes("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await session.fs.read_bytes("b") == b"b"


async def test_a_killed_helper_is_told_and_replaced(host: Host, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, recovery="none") as session:
        await session.fs.write_bytes("a", b"a")
        assert session.fs._helper is not None
        helper = session.fs._helper.process
        helper.kill("a test")
        await helper.wait()
        assert await session.fs.read_bytes("a") == b"a"
        assert session.fs._helper is not None
        helper = session.fs._helper.process
        await helper.begun()  # its answers may be here first; and signal 19 to process 0 would stop this whole run
        os.kill(helper.pid, 19)
        asking = asyncio.create_task(session.fs.read_bytes("a"))
        await asyncio.sleep(0)
        helper.kill("a test")
        with pytest.raises(ProcessError, match="has ended"):
            await asking
        assert await session.fs.read_bytes("a") == b"a"


# -- parts, lists and changes --------------------------------------------------------------------------------------------


async def pieces(*parts: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


async def test_a_file_in_parts_appears_when_it_is_complete(session: Session, tmp_path: Path) -> None:
    written = await session.fs.write_parts("a/b.bin", pieces(b"one ", b"two"))
    assert (written.path, written.kind, written.size) == ("a/b.bin", "file", 7)
    with pytest.raises(RuntimeError, match="no more"):
        await session.fs.write_parts("a/b.bin", pieces(b"other", error=RuntimeError("no more")))
    assert (tmp_path / "a/b.bin").read_bytes() == b"one two"
    assert os.listdir(tmp_path / "a") == ["b.bin"]
    assert (await session.fs.write_parts("empty", pieces())).size == 0


async def test_parts_of_a_file_are_read(session: Session) -> None:
    await session.fs.write_bytes("a", b"0123456789")
    info, data = await session.fs.read_part("a", 4, 3)
    assert (info.size, data) == (10, b"456")
    assert (await session.fs.read_part("a", 8, 100))[1] == b"89"
    assert (await session.fs.read_part("a", 10, 100))[1] == b""
    with pytest.raises(InvalidInputError, match="offset must be a number of bytes, not -1"):
        await session.fs.read_part("a", -1, 1)


async def test_a_list_goes_as_deep_as_is_wanted(session: Session) -> None:
    await session.fs.write_bytes("top/a/b/c", b"")
    await session.exec(["ln", "-s", "..", "top/a/up"])
    assert [one.path for one in await session.fs.list("top")] == ["top/a"]
    assert [one.path for one in await session.fs.list("top", depth=2)] == ["top/a", "top/a/b", "top/a/up"]
    deep = ["top/a", "top/a/b", "top/a/b/c", "top/a/up"]
    assert [one.path for one in await session.fs.list("top", depth=9)] == deep
    with pytest.raises(InvalidInputError, match="depth must be a number from 1 to 1000"):
        await session.fs.list("top", depth=0)


async def test_a_directory_is_watched(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        await session.fs.write_bytes("d/old", b"")
        found = []
        async with session.fs.watch("d", recursive=True) as changes:
            await session.exec("cd d && mkdir new && echo 1 > new/a && mv new other && chmod 600 old && rm old && touch end")
            async for change in changes:
                found.append((change.kind, change.path))
                if change.path == "end":
                    break
        assert [one for one in found if one in _CHANGES] == _CHANGES
        assert ("created", "new/a") in found or ("created", "other/a") in found
        with pytest.raises(FileNotFoundError):
            async with session.fs.watch("missing"):
                pass


_CHANGES = [
    ("created", "new"),
    ("renamed", "new"),
    ("created", "other"),
    ("attributes", "old"),
    ("removed", "old"),
    ("created", "end"),
]


async def test_the_end_of_a_watched_directory_is_told(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        await session.fs.mkdir("d")
        async with session.fs.watch("d") as changes:
            await session.fs.remove("d")
            with pytest.raises(FileNotFoundError, match="the watched folder was removed or renamed"):
                await anext(changes)
        assert not session.processes()


async def test_landlock_refuses_to_watch(landlock_host: Host, tmp_path: Path) -> None:
    async with landlock_host.session(working_dir=tmp_path, recovery="none") as session:
        with pytest.raises(PermissionError):
            async with session.fs.watch():
                pass
