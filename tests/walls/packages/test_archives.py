"""Archives count by their hashes, and only when they are complete."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cellblock.walls.packages.archives import Archives

DIGEST = hashlib.sha256(b"data").hexdigest()


def test_an_archive_has_its_hash_as_its_name(tmp_path: Path) -> None:
    archives = Archives(str(tmp_path / "archives"))
    assert not archives.has(DIGEST)
    with archives.adding(DIGEST) as archive:
        archive.write(b"da")
        archive.write(b"ta")
        assert not archives.has(DIGEST)
    assert archives.has(DIGEST)
    assert Path(archives.path(DIGEST)).read_bytes() == b"data"


def test_another_hash_or_a_failure_leaves_nothing(tmp_path: Path) -> None:
    archives = Archives(str(tmp_path / "archives"))
    with pytest.raises(ValueError, match="instead of"), archives.adding("0" * 64) as archive:
        archive.write(b"data")
    with pytest.raises(TypeError), archives.adding() as archive:
        archive.write("data")  # type: ignore[arg-type]
    assert os.listdir(tmp_path / "archives") == []


def test_metadata_is_kept_apart(tmp_path: Path) -> None:
    archives = Archives(str(tmp_path / "archives"))
    assert (archives.metadata(DIGEST), archives.with_metadata()) == (None, frozenset())
    archives.add_metadata(DIGEST, b"Name: x\n")
    assert archives.metadata(DIGEST) == b"Name: x\n"
    assert archives.with_metadata() == {DIGEST}
