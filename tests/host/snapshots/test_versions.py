"""What a snapshot has at a path, as text."""

from __future__ import annotations

import pytest

from cellblock.host.checkpoints.versions import version_of
from cellblock.model.checkpoints import FileVersion


@pytest.mark.parametrize("data", [b"", b"a\r\nb", "é".encode(), b"\x1b[0m"])
def test_text(data: bytes) -> None:
    assert version_of(len(data), data) == FileVersion(len(data), data.decode())


@pytest.mark.parametrize("data", [b"\xff", b"\0", "é".encode()[:1], b"\xed\xa0\x80"])
def test_what_is_no_text(data: bytes) -> None:
    assert version_of(len(data), data).text is None
