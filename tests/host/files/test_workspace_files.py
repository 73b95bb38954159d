"""Writing, reading, listing, removing: what a caller sees."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cellblock import FilesError, InvalidInputError
from cellblock.host.files import FileLimits, Files
from cellblock.host.files.beneath import Walk


async def test_what_is_written_is_read(files: Files, workspace: Path) -> None:
    written = await files.write("a/b/data.bin", b"\0\xff")
    assert await files.read("a/b/data.bin") == b"\0\xff" == (workspace / "a/b/data.bin").read_bytes()
    assert written == await files.stat("a/b/data.bin")
    assert (written.path, written.kind, written.size) == ("a/b/data.bin", "file", 2)
    assert written.modified == pytest.approx((workspace / "a/b/data.bin").stat().st_mtime)


async def test_placeholders_and_directories_of_branches_are_not_listed(files: Files, workspace: Path) -> None:
    (workspace / "data").mkdir()
    (workspace / ".vscode").mkdir(0o1500)
    (workspace / ".idea").mkdir()
    (workspace / ".cellblock-branch-1" / "copy").mkdir(parents=True)
    assert [info.path for info in await files.list(".cellblock-branch-1")] == [".cellblock-branch-1/copy"]
    assert [info.path for info in await files.list(recursive=True)] == [".idea", "data"]


async def test_text_is_utf8_and_keeps_its_line_ends(files: Files) -> None:
    await files.write("t", "é\r\nü\n")
    assert await files.read("t") == "é\r\nü\n".encode()
    assert await files.read_text("t") == "é\r\nü\n"
    assert await files.read_text("t", encoding="latin-1") == "Ã©\r\nÃ¼\n"


async def test_a_stream_is_written_piece_by_piece(files: Files) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield bytes([number % 256]) * (number % 7) * 300

    assert (await files.write("s", pieces())).size == sum(number % 7 * 300 for number in range(1000))
    assert await files.read("s") == b"".join([bytes([number % 256]) * (number % 7) * 300 for number in range(1000)])


async def test_a_replaced_file_keeps_its_mode_unless_one_is_given(files: Files, workspace: Path) -> None:
    await files.write("script", "one", mode=0o755)
    assert (await files.write("script", "two")).mode == 0o755
    assert (await files.write("script", "three", mode=0o600)).mode == 0o600
    (workspace / "script").chmod(0o4755)
    assert (await files.write("script", "four")).mode == 0o755


async def test_a_reader_of_a_replaced_file_sees_one_whole_version(files: Files, workspace: Path) -> None:
    await files.write("f", b"old")
    with (workspace / "f").open("rb") as reader:
        await files.write("f", b"new")
        assert reader.read() == b"old"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda files: files.write("x", 3), "data must be bytes, text or"),
        (lambda files: files.write("x", "\ud800"), "lone surrogate at index 0"),
        (lambda files: files.write("x", b"", mode=0o4755), "without set-id"),
        (lambda files: files.write("x", b"", mode="755"), "mode must be"),
        (lambda files: files.read("x", max_bytes=-1), "max_bytes"),
        (lambda files: files.untar("x"), "stream must be bytes"),
        (lambda files: files.upload(3), "local must be a path"),
        (lambda files: files.download("x", b"x"), "local must be a path"),
    ],
)
async def test_an_argument_that_is_wrong_is_named(files: Files, call: Callable[[Files], object], word: str) -> None:
    with pytest.raises(InvalidInputError, match=word):
        await call(files)  # type: ignore[misc]


async def test_a_stream_of_something_else_than_bytes_leaves_nothing(files: Files, workspace: Path) -> None:
    async def wrong() -> AsyncIterator[bytes]:
        yield b"good"
        yield "bad"  # type: ignore[misc]

    with pytest.raises(InvalidInputError, match="must give bytes, not str"):
        await files.write("a/x", wrong())
    assert not list(workspace.iterdir())


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda files: files.read("missing"), errno.ENOENT, "cannot read 'missing': it does not exist"),
        (lambda files: files.read("folder"), errno.EISDIR, "cannot read 'folder': it is a folder"),
        (lambda files: files.write("folder", b""), errno.EISDIR, "cannot write 'folder': it is a folder"),
        (lambda files: files.write("file/x", b""), errno.ENOTDIR, "not a folder"),
        (lambda files: files.list("file"), errno.ENOTDIR, "cannot list 'file': it is not a folder"),
        (lambda files: files.mkdir("file"), errno.ENOTDIR, "not a folder"),
        (lambda files: files.remove("folder"), errno.ENOTEMPTY, "recursive=True"),
        (lambda files: files.remove("missing", recursive=True), errno.ENOENT, "does not exist"),
        (lambda files: files.stat("x" * 256), errno.ENAMETOOLONG, "too long"),
    ],
)
async def test_what_cannot_be_done_is_told_with_the_path_and_what_to_do(
    files: Files, call: Callable[[Files], object], code: int, words: str
) -> None:
    await files.write("folder/in", b"")
    await files.write("file", b"")
    with pytest.raises(FilesError) as caught:
        await call(files)  # type: ignore[misc]
    assert words in str(caught.value)
    assert caught.value.errno == code
    assert caught.value.path is not None


async def test_no_text_is_told_with_the_place(files: Files) -> None:
    await files.write("binary", b"ab\xff")
    with pytest.raises(FilesError, match=r"not utf-8 text .* at byte 2"):
        await files.read_text("binary")
    with pytest.raises(InvalidInputError, match="encoding 'nope' is not known"):
        await files.read_text("binary", encoding="nope")


async def test_a_listing_is_sorted_and_tells_what_everything_is(files: Files, workspace: Path) -> None:
    await files.write("b/in", b"12")
    await files.write("a", b"1")
    (workspace / "link").symlink_to("a")
    os.mkfifo(workspace / "pipe")
    here = [(entry.path, entry.kind) for entry in await files.list()]
    assert here == [("a", "file"), ("b", "directory"), ("link", "symlink"), ("pipe", "other")]
    everything = [entry.path for entry in await files.list(recursive=True)]
    assert everything == ["a", "b", "b/in", "link", "pipe"]
    assert [entry.path for entry in await files.list("b")] == ["b/in"]


async def test_the_workspace_itself_can_be_described_and_never_removed(files: Files) -> None:
    assert (await files.stat(".")).kind == "directory"
    await files.mkdir(".")
    with pytest.raises(InvalidInputError, match="the workspace itself"):
        await files.remove(".", recursive=True)


async def test_the_limits_of_an_operation_are_named_when_they_are_met(workspace: Path, walk: Walk) -> None:
    files = Files(workspace, walk=walk, limits=FileLimits(max_file_bytes=10, max_entries=5, max_depth=3))
    with pytest.raises(FilesError, match=r"over the limit of 10 \(max_file_bytes\)"):
        await files.write("a/b", b"12345678901")
    assert not list(workspace.iterdir())
    await files.write("ten", b"1234567890")
    with pytest.raises(FilesError, match=r"it has 10 bytes, over the limit of 9 \(max_bytes\)"):
        await files.read("ten", max_bytes=9)
    for number in range(5):
        await files.write(f"f{number}", b"")
    with pytest.raises(FilesError, match=r"over the limit of 5 \(max_entries\)"):
        await files.list()
    (workspace / "1/2/3/4").mkdir(parents=True)
    with pytest.raises(FilesError, match=r"over the limit of 3 \(max_depth\)"):
        await Files(workspace, walk=walk, limits=FileLimits(max_depth=3)).list(recursive=True)


def test_limits_are_positive_numbers() -> None:
    with pytest.raises(InvalidInputError, match="max_depth must be a positive integer, not 0"):
        FileLimits(max_depth=0)


async def test_a_workspace_is_opened_when_it_is_first_needed(tmp_path: Path) -> None:
    files = Files(tmp_path / "later")
    with pytest.raises(FilesError, match=r"cannot open the workspace .*later'"):
        await files.list()
    (tmp_path / "later").mkdir()
    assert await files.list() == []
