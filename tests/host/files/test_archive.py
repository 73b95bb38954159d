"""Archives from anybody: what is sound is unpacked, what is not leaves nothing (attack 40)."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellblock import FilesError
from cellblock.host.files import FileLimits, Files, Transfer
from cellblock.host.files.archive import BLOCK, Gunzip, Member, TarReader

END = bytes(2 * BLOCK)
LIMITS = FileLimits(max_file_bytes=10_000, max_total_bytes=30_000, max_entries=50, max_depth=10)


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object) -> bytes:
    """One member as bytes."""
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, len(data)
    for key, value in more.items():
        setattr(header, key, value)
    return header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % BLOCK)


def claim(name: str, size: int) -> bytes:
    """A header of a file of some size, without the file."""
    return member(name, size=size)


def meta(kind: bytes, data: bytes, size: int | None = None) -> bytes:
    return member("meta", data, kind, size=len(data) if size is None else size)


def pax(*records: tuple[str, str]) -> bytes:
    data = b""
    for key, value in records:
        body = f" {key}={value}\n".encode("utf-8", "surrogateescape")
        length = len(body)
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        data += str(length).encode() + body
    return meta(tarfile.XHDTYPE, data)


def long_name(name: bytes) -> bytes:
    return meta(tarfile.GNUTYPE_LONGNAME, name + b"\0")


def bomb(size: int) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(squeeze.compress(bytes(2**20)) for _ in range(size // 2**20)) + squeeze.flush()


GOOD = member("good/first", b"1")
LINK = member("d/link", kind=tarfile.SYMTYPE, linkname="/etc")

HOSTILE: dict[str, tuple[bytes, str]] = {
    "parent": (member("../x", b"1"), "has a '..'"),
    "parent-inside": (member("a/../../x", b"1"), "has a '..'"),
    "parent-that-returns": (member("a/../x", b"1"), "has a '..'"),
    "parent-folder": (member("..", kind=tarfile.DIRTYPE), "has a '..'"),
    "parent-by-pax": (pax(("path", "../x")) + member("x", b"1"), "has a '..'"),
    "parent-by-long-name": (long_name(b"../x") + member("x", b"1"), "has a '..'"),
    "absolute": (member("/etc/cron.d/x", b"1"), "is absolute"),
    "absolute-by-pax": (pax(("path", "//x")) + member("x", b"1"), "is absolute"),
    "symlink": (LINK, "a symbolic link"),
    "symlink-then-file": (LINK + member("d/link/passwd", b"1"), "a symbolic link"),
    "symlink-inside": (member("l", kind=tarfile.SYMTYPE, linkname="good"), "a symbolic link"),
    "hard-link": (member("h", kind=tarfile.LNKTYPE, linkname="good/first"), "a hard link"),
    "hard-link-out": (member("h", kind=tarfile.LNKTYPE, linkname="/etc/passwd"), "a hard link"),
    "character-device": (member("c", kind=tarfile.CHRTYPE, devmajor=1, devminor=5), "a device"),
    "block-device": (member("b", kind=tarfile.BLKTYPE, devmajor=8, devminor=0), "a device"),
    "fifo": (member("f", kind=tarfile.FIFOTYPE), "a FIFO"),
    "contiguous": (member("c", b"1", tarfile.CONTTYPE), "unknown type"),
    "dump-folder": (member("c", b"1", b"D"), "unknown type"),
    "volume-label": (member("c", kind=b"V"), "unknown type"),
    "long-link": (meta(tarfile.GNUTYPE_LONGLINK, b"x\0"), "unknown type"),
    "solaris-header": (meta(tarfile.SOLARIS_XHDTYPE, b"12 path=../x\n"), "unknown type"),
    "link-in-a-file": (member("x", linkname="/etc/passwd"), "with a link's target"),
    "link-by-pax": (pax(("linkpath", "/etc")) + member("x", b"1"), "with a link's target"),
    "file-twice": (member("x", b"1") + member("x", b"2"), "occurs twice"),
    "file-twice-differently": (member("x", b"1") + member("./x", b"2"), "occurs twice"),
    "file-then-folder": (member("x", b"1") + member("x", kind=tarfile.DIRTYPE), "as a file and as a folder"),
    "file-then-file-in-it": (member("x", b"1") + member("x/y", b"2"), "as a file and as a folder"),
    "folder-then-file": (member("x", kind=tarfile.DIRTYPE) + member("x", b"1"), "as a file and as a folder"),
    "no-name": (member("./", b"1"), "has no name"),
    "folder-name-for-a-file": (pax(("path", "x/")) + member("x", b"1"), "has no name"),
    "nul-by-pax": (pax(("path", "x\0y")) + member("x", b"1"), "NUL"),
    "nul-by-long-name": (long_name(b"x\0y") + member("x", b"1"), "NUL"),
    "name-too-long": (member("n" * 256, b"1"), "more than 255 bytes"),
    "too-deep": (member("d/" * 11 + "x", b"1"), "max_depth"),
    "too-many": (b"".join(member(str(number)) for number in range(51)), "max_entries"),
    "too-large": (claim("x", 10_001), "max_file_bytes"),
    "too-large-by-pax": (pax(("size", "9" * 20)) + member("x"), "max_file_bytes"),
    "petabytes": (claim("x", 2**60), "max_file_bytes"),
    "negative": (claim("x", -1), "impossible size"),
    "impossible-size": (pax(("size", "-5")) + member("x"), "impossible size"),
    "too-large-together": (b"".join(member(str(number), bytes(9000)) for number in range(4)), "max_total_bytes"),
    "folder-with-data": (member("d", b"1", tarfile.DIRTYPE), "impossible size"),
    "sparse-gnu": (member("s", kind=tarfile.GNUTYPE_SPARSE), "a sparse file"),
    "sparse-pax": (pax(("GNU.sparse.major", "1"), ("GNU.sparse.name", "../x")) + member("x", b"1"), "a sparse file"),
    "time-that-is-none": (pax(("mtime", "nan")) + member("x", b"1"), "impossible time"),
    "huge-extended-header": (meta(tarfile.XHDTYPE, b"", 2**33), "too large"),
    "negative-extended-header": (meta(tarfile.XHDTYPE, b"", -BLOCK), "too large"),
    "many-extended-headers": (pax(("comment", "x")) * 5, "too many"),
    "damaged-extended-header": (meta(tarfile.XHDTYPE, b"99 path=x\n"), "damaged extended header"),
    "zero-length-record": (meta(tarfile.XHDTYPE, b"0 path=x\n"), "damaged extended header"),
    "record-without-a-key": (meta(tarfile.XHDTYPE, b"6 abc\n"), "damaged extended header"),
    "path-twice-in-one": (pax(("path", "a"), ("path", "../b")) + member("x"), "twice"),
    "path-twice": (pax(("path", "a")) + long_name(b"b") + member("x"), "given twice"),
    "global-path": (meta(tarfile.XGLTYPE, b"13 path=../x\n") + member("x"), "global header"),
    "header-at-the-end": (pax(("path", "a")) + END, "followed by no member"),
    "damaged-header": (b"x" * BLOCK, "damaged header"),
    "checksum": (member("x").replace(b"x", b"y", 1), "damaged header"),
    "second-archive": (END + member("x", b"1") + END, "data follows its end"),
    "one-zero-block": (bytes(BLOCK) + member("x", b"1"), "data follows its end"),
    "endless-zeros": (bytes(2 * 2**20), "data follows its end"),
}


async def refused(files: Files, workspace: Path, archive: bytes, words: str) -> None:
    before = sorted(path for path in workspace.rglob("*"))
    with pytest.raises(FilesError, match="the archive was refused, and nothing was unpacked") as caught:
        await files.untar(archive, "into/here")
    assert words in str(caught.value)
    assert sorted(path for path in workspace.rglob("*")) == before


async def test_a_hostile_member_has_the_whole_archive_refused(workspace: Path) -> None:
    (workspace / "kept").write_bytes(b"")
    files = Files(workspace, limits=LIMITS)
    for number, (data, words) in enumerate(HOSTILE.values()):
        await refused(files, workspace, gzip.compress(GOOD + data + END) if number % 4 == 0 else GOOD + data + END, words)


async def test_a_link_that_is_in_the_workspace_already_leads_no_member_out(
    files: Files, workspace: Path, outside: Path
) -> None:
    (workspace / "d").mkdir()
    (workspace / "d/link").symlink_to(outside)
    with pytest.raises(FilesError, match="cannot write 'd/link': it is a symbolic link"):
        await files.untar(member("new", b"1") + member("d/link/new", b"1") + END)
    with pytest.raises(FilesError, match="symbolic link"):
        await files.untar(member("new", b"1") + member("d/link", b"1") + END)
    assert sorted(os.listdir(workspace)) == ["d"]


async def test_one_member_that_cannot_take_its_place_keeps_all_from_theirs(files: Files, workspace: Path) -> None:
    await files.write("z", b"old")
    with pytest.raises(FilesError, match="cannot write 'z'"):
        await files.untar(member("a", b"1") + member("z/x", b"1") + END)
    assert sorted(os.listdir(workspace)) == ["z"]


@pytest.mark.parametrize("length", [0, 1, 2, 5, 511, 512, 600, 1024, 1536])
@pytest.mark.parametrize("squeeze", [bytes, gzip.compress])
async def test_an_archive_that_breaks_off_is_refused(
    files: Files, workspace: Path, length: int, squeeze: Callable[[bytes], bytes]
) -> None:
    whole = squeeze(member("x", b"1") + END)
    await refused(files, workspace, whole[: min(length, len(whole) - 1)], "")


async def test_a_damaged_gzip_stream_is_refused(files: Files, workspace: Path) -> None:
    whole = bytearray(gzip.compress(member("x", os.urandom(3000)) + END))
    whole[len(whole) // 2] ^= 0xFF
    await refused(files, workspace, bytes(whole), "gzip stream is damaged")


@pytest.mark.parametrize("data", [b"BZh91AY", b"\xfd7zXZ\0", b"PK\3\4", b"hello"])
async def test_what_is_no_archive_is_told_so(files: Files, workspace: Path, data: bytes) -> None:
    await refused(files, workspace, data + bytes(2000), "it is not a tar archive, plain or gzipped")


async def test_a_bomb_is_stopped_before_it_has_grown(workspace: Path) -> None:
    files = Files(workspace, limits=LIMITS)
    await refused(files, workspace, bomb(2**24), "")
    inside = gzip.compress(claim("x", 10_000) + bytes(2**22))
    await refused(files, workspace, inside, "")


async def test_zeros_in_the_place_of_data_are_data_and_need_their_end(workspace: Path) -> None:
    await refused(Files(workspace, limits=LIMITS), workspace, claim("x", 10_000) + bytes(9000), "too early")


async def test_set_id_bits_ownership_and_writing_by_others_are_dropped(files: Files, workspace: Path) -> None:
    archive = member("x", b"1", mode=0o7777, uid=12345, gid=54321) + member("y", mode=0) + END
    archive = member("d", kind=tarfile.DIRTYPE, mode=0o7000) + archive
    assert await files.untar(archive) == Transfer(2, 1)
    umask = os.umask(0o22)
    os.umask(umask)
    assert (await files.stat("x")).mode == 0o755 & ~umask
    assert (await files.stat("y")).mode == 0o600
    assert (await files.stat("d")).mode == 0o777 & ~umask
    assert (workspace / "x").stat().st_uid == os.geteuid()


@pytest.mark.parametrize("mtime", [-(2**70), -1, 2**33, 2**62, 2**80])
async def test_no_claimed_time_stops_an_archive(files: Files, mtime: int) -> None:
    await files.untar(member("x", b"1", mtime=mtime) + END)
    assert await files.read("x") == b"1"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
async def test_what_tarfile_writes_in_any_format_is_unpacked(files: Files, tmp_path: Path, form: int, mode: str) -> None:
    source = tmp_path / "source"
    names = ["a", "deep/" * 12 + "x", "l" * 90 + "/" + "m" * 60]
    names += ["ü/é"] if form == tarfile.USTAR_FORMAT else ["ü/" + "é" * 120, "n" * 200]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode() * 50)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        archive.add(source, ".")
    result = await files.untar(whole.getvalue(), "into")
    assert result.files == len(names)
    for name in names:
        assert await files.read(f"into/{name}") == name.encode() * 50


async def test_several_gzip_streams_are_one_and_a_commit_in_a_global_header_is_fine(files: Files) -> None:
    archive = meta(tarfile.XGLTYPE, b"20 comment=01234567\n") + member("x", b"1") + END
    await files.untar(gzip.compress(archive[:700]) + gzip.compress(archive[700:]))
    assert await files.read("x") == b"1"


async def test_what_we_pack_tarfile_and_we_unpack_to_the_same_tree(files: Files, workspace: Path, tmp_path: Path) -> None:
    tree = {"a": b"1", "b/c": b"", "b/d/e": os.urandom(3_000_000), "ü\n/" + "n" * 200: b"x" * 512, "\udcff": b"bytes"}
    for name, data in tree.items():
        await files.write(f"from/{name}", data)
    await files.write("from/script", b"#!", mode=0o755)
    await files.mkdir("from/empty")
    await files.untar(files.tar("from"), "to")
    listed = [(entry.path.removeprefix("to/"), entry.kind, entry.mode) for entry in await files.list("to", recursive=True)]
    assert listed == [
        (entry.path.removeprefix("from/"), entry.kind, entry.mode) for entry in await files.list("from", recursive=True)
    ]
    assert {name: await files.read(f"to/{name}") for name in tree} == tree
    packed = b"".join([piece async for piece in files.tar("from")])
    with tarfile.open(fileobj=io.BytesIO(packed), errors="surrogateescape") as archive:
        assert {item.name for item in archive if item.isreg()} == {*tree, "script"}
        assert {(item.uid, item.gid, item.uname) for item in archive} == {(0, 0, "")}
    one = b"".join([piece async for piece in files.tar("from/b/d/e")])
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert archive.getnames() == ["e"]


async def test_times_come_along(files: Files, workspace: Path) -> None:
    await files.write("from/x", b"1")
    os.utime(workspace / "from/x", (1_000_000_000, 1_000_000_000))
    await files.untar(files.tar("from"), "to")
    assert (await files.stat("to/x")).modified == 1_000_000_000


async def test_unpacking_merges_with_what_is_there(files: Files) -> None:
    await files.write("to/a", b"old")
    await files.write("to/d/kept", b"kept")
    await files.untar(member("a", b"new") + member("d/x", b"1") + member("e/f/g", b"2") + END, "to")
    names = [entry.path for entry in await files.list("to", recursive=True)]
    assert names == ["to/a", "to/d", "to/d/kept", "to/d/x", "to/e", "to/e/f", "to/e/f/g"]
    assert await files.read("to/a") == b"new"


async def test_a_reader_that_leaves_closes_everything(files: Files) -> None:
    await files.write("x", bytes(5_000_000))
    stream = files.tar(".")
    async for _piece in stream:
        break
    await stream.aclose()


async def test_a_stream_that_fails_leaves_nothing(files: Files, workspace: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield member("a", bytes(300_000))
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        await files.untar(failing(), "into/here")
    assert not list(workspace.iterdir())


def _events(archive: bytes, size: int) -> list[Member | bytes]:
    """Read an archive in pieces of some size; data is joined again."""
    reader, gunzip = TarReader(LIMITS), Gunzip()
    found: list[Member | bytes] = []
    for start in range(0, len(archive), size):
        for plain in gunzip.feed(archive[start : start + size]):
            for event in reader.feed(plain):
                if isinstance(event, Member):
                    found += [event, b""]
                else:
                    last = found[-1]
                    assert isinstance(last, bytes)
                    found[-1] = last + event
    gunzip.finish()
    reader.finish()
    return found


@given(st.integers(1, 3000))
@settings(deadline=None)
def test_how_a_stream_is_cut_makes_no_difference(size: int) -> None:
    archive = GOOD + pax(("path", "n" * 200)) + member("x", b"2" * 700) + long_name(b"l" * 150) + member("y", b"3") + END
    expected = _events(archive, len(archive))
    assert [event.parts for event in expected if isinstance(event, Member)] == [("good", "first"), ("n" * 200,), ("l" * 150,)]
    assert _events(archive, size) == expected == _events(gzip.compress(archive), size)


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_archive_gives_documented_errors_only_and_safe_paths(data: st.DataObject) -> None:
    pieces = [GOOD, *(piece for piece, _words in HOSTILE.values() if len(piece) < 10_000), END]
    archive = bytearray(b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=4))) + END)
    for _ in range(data.draw(st.integers(0, 8))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    try:
        events = _events(bytes(archive), 1000)
    except FilesError:
        return
    for event in events:
        if isinstance(event, Member):
            assert not {"", ".", ".."} & {*event.parts}
            assert not any("/" in part or "\0" in part for part in event.parts)
            assert 0 <= event.size <= LIMITS.max_file_bytes


@given(st.binary(max_size=3000))
@settings(deadline=None)
def test_any_bytes_give_documented_errors_only(data: bytes) -> None:
    with pytest.raises(FilesError):
        _events(data, 700)
