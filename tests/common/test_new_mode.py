"""The permissions of new files, also where a default access list (ACL) of the directory overrides the umask."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.common.new_mode import create
from cellblock.common.whole_file import WholeFile
from cellblock.host.files.beneath import create_file

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_USER, _GROUP, _OTHER = 1, 4, 32
EVERYBODY = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 7, 0xFFFFFFFF) for tag in (_USER, _GROUP, _OTHER))


@pytest.fixture(params=["list", "no list"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory, with a default access list that allows everything to everybody or without one."""
    if request.param == "list":
        try:
            os.setxattr(tmp_path, "system.posix_acl_default", EVERYBODY)
        except OSError as error:
            pytest.skip(f"no access lists here: {error.strerror}")
    before = os.umask(0o077)
    yield tmp_path
    os.umask(before)


def _created(path: Path) -> None:
    os.close(create(path, NEW, 0o666))


def _whole(path: Path) -> None:
    whole = WholeFile(path, 0o666)
    whole.open()
    whole.finish()
    whole.close()


def _beneath(path: Path) -> None:
    os.close(create_file(str(path.parent), path.name))


@pytest.mark.parametrize("make", [_created, _whole, _beneath])
def test_a_new_file_has_what_was_asked_for_less_the_umask(directory: Path, make: Callable[[Path], None]) -> None:
    make(directory / "file")
    assert stat.S_IMODE((directory / "file").stat().st_mode) == 0o600


def test_a_file_that_exists_is_left_alone(directory: Path) -> None:
    (directory / "file").write_text("theirs")
    with pytest.raises(FileExistsError):
        create(directory / "file", NEW, 0o666)
    assert (directory / "file").read_text() == "theirs"


def test_no_more_is_given_than_was_asked_for(directory: Path) -> None:
    os.close(create(directory / "file", NEW, 0o400))
    assert stat.S_IMODE((directory / "file").stat().st_mode) == 0o400
