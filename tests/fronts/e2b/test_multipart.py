"""Bodies with files in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import InvalidInputError
from cellblock.fronts.e2b.multipart import MAX_FILES, Parts

TYPE = "multipart/form-data; boundary=xyz"
TWO = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a/b \xc3\xbc.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b'one\r\n--xy\r\n--xyz\r\nContent-Disposition: form-data; name="other"\r\n\r\n\r\n--xyz--\r\n'
)


def read(*pieces: bytes, content_type: str = TYPE) -> list[tuple[str, str, bytes]]:
    """Return the parts of a body: names, names of files, and contents."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collect() -> list[tuple[str, str, bytes]]:
        found, data = [], b""
        async for part in Parts(content_type).read(body()):
            data += part.data
            if part.last:
                found.append((part.name, part.filename, data))
                data = b""
        return found

    return asyncio.run(collect())


@given(st.integers(1, len(TWO)))
def test_a_body_is_the_same_in_pieces_of_any_size(size: int) -> None:
    pieces = [TWO[start : start + size] for start in range(0, len(TWO), size)]
    assert read(*pieces) == [("file", "a/b ü.txt", b"one\r\n--xy"), ("other", "", b"")]


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_body_or_an_error(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read(b"--xyz\r\n" + data + b"\r\n")  # without an end


def test_the_type_has_to_be_right() -> None:
    for content_type in ("", "text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 71):
        with pytest.raises(InvalidInputError, match="Content-Type"):
            read(TWO, content_type=content_type)


def test_what_is_no_such_body_or_ends_too_soon_is_refused() -> None:
    for data in (b"", b"x", TWO[:-4], TWO.replace(b"\r\n", b"\n")):
        with pytest.raises(InvalidInputError):
            read(data)


def test_headers_and_files_are_limited() -> None:
    with pytest.raises(InvalidInputError, match="header"):
        read(b"--xyz\r\nX: " + b"x" * 20_000 + b"\r\n\r\n\r\n--xyz--\r\n")
    part = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\r\n'
    with pytest.raises(InvalidInputError, match="1000 files"):
        read(part * (MAX_FILES + 1) + b"--xyz--\r\n")
