"""Large text is decoded piece by piece, and comes out as if it had been decoded in one."""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path

import pytest

from cellblock import FilesError, InvalidInputError
from cellblock.host.files import Files


@pytest.fixture
def files(workspace: Path) -> Files:
    """Files by the walk that this machine uses: how a file is reached does not matter here."""
    return Files(workspace)


async def test_text_that_takes_long_to_decode_leaves_the_loop_free(files: Files, workspace: Path) -> None:
    (workspace / "x").write_bytes(b"+AGEAYg-" * (1 << 20))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    data = await files.read("x")
    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    seen: list[int] = []
    decoder = codecs.lookup("utf-7").incrementaldecoder

    class Noted(decoder):  # type: ignore[misc, valid-type]  # made at run time
        def decode(self, data: bytes, final: bool = False) -> str:
            seen.append(len(data))
            return str(super().decode(data, final))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codecs.getincrementaldecoder", lambda _encoding: Noted)
        before = turns
        assert await files.read_text("x", encoding="utf-7") == data.decode("utf-7")
    counting.cancel()
    assert (sum(seen), max(seen) <= 256 * 1024) == (len(data), True)
    assert turns > before + 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", "shift_jis", "latin-1"])
async def test_large_text_is_decoded_as_in_one_piece(files: Files, encoding: str) -> None:
    text = "aé漢\r\n" if encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030") else "abc\r\n"
    data = (text * 70_000).encode(encoding)
    await files.write("x", data)
    assert await files.read_text("x", encoding=encoding) == data.decode(encoding)
    if encoding.startswith("utf-"):
        unmarked = text.encode(f"{encoding.removesuffix('-sig')}-le" if encoding[4:6] in ("16", "32") else "utf-8") * 70_000
        await files.write("x", unmarked)
        assert await files.read_text("x", encoding=encoding) == unmarked.decode(encoding)


async def test_the_place_of_bytes_that_are_no_text_is_told_in_a_large_file(files: Files) -> None:
    for before in (262_143, 262_144, 600_000):
        await files.write("x", b"a" * (before - 2) + "é".encode() + b"\xc3" + b"b" * 300_000)
        with pytest.raises(FilesError, match=f"at byte {before}\\b"):
            await files.read_text("x")
    with pytest.raises(InvalidInputError, match="encoding"):
        await files.read_text("x", encoding="zlib")
