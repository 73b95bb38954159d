"""Errors of the system, told as what they mean and what to do."""

from __future__ import annotations

import errno
import os

import pytest

from cellblock import FilesError
from cellblock.host.files.failures import telling


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (errno.ENOENT, "it does not exist"),
        (errno.ELOOP, "links are never followed"),
        (errno.ENXIO, "a FIFO, a socket or a device"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_an_error_says_what_it_means(code: int, meaning: str) -> None:
    with pytest.raises(FilesError, match=meaning) as raised, telling("read", "a\n\x1b[31m"):
        raise OSError(code, os.strerror(code))
    assert (raised.value.path, raised.value.errno) == ("a\n\x1b[31m", code)
    assert str(raised.value).startswith(r"cannot read 'a\n\x1b[31m': ")


def test_an_error_without_a_number_says_its_words() -> None:
    with pytest.raises(FilesError, match="cannot read 'a': odd") as raised, telling("read", "a"):
        raise OSError("odd")
    assert raised.value.errno is None


def test_what_was_told_further_in_goes_through_as_it_is() -> None:
    with pytest.raises(FilesError, match=r"^cannot read 'inner'"), telling("copy", "outer"), telling("read", "inner"):
        raise FileNotFoundError(errno.ENOENT, "x")
    with pytest.raises(ValueError, match="not ours"), telling("copy", "outer"):
        raise ValueError("not ours")
