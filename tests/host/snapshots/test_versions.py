"""What a snapshot has at a path, as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.errors import SnapshotError
from cellblock.host.checkpoints.versions import version_in, version_of
from cellblock.host.snapshots import SnapshotLimits, Snapshots, Store
from cellblock.model.checkpoints import MAX_FILE_TEXT, FileVersion


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as made:
        yield made


@pytest.fixture
def snapshots(tmp_path: Path, store: Store) -> Iterator[Snapshots]:
    (tmp_path / "workspace").mkdir()
    made = Snapshots(tmp_path / "workspace", store, tmp_path / "journals", SnapshotLimits(max_file_bytes=MAX_FILE_TEXT + 1))
    yield made
    made.close()


def test_a_file_is_what_it_was(tmp_path: Path, store: Store, snapshots: Snapshots) -> None:
    path = tmp_path / "workspace" / "d" / "a"
    path.parent.mkdir()
    path.write_text("é")
    before = snapshots.take()
    path.write_text("later")
    after = snapshots.take()
    assert version_in(store, before, ("d", "a")) == FileVersion(2, "é")
    assert version_in(store, after, ("d", "a")) == FileVersion(5, "later")
    snapshots.drop(before)
    with pytest.raises(SnapshotError, match="no longer exist"):
        version_in(store, before, ("d", "a"))


def test_what_has_no_text_says_why(tmp_path: Path, store: Store, snapshots: Snapshots) -> None:
    top = tmp_path / "workspace"
    (top / "folder").mkdir()
    (top / "link").symlink_to("/etc/passwd")
    (top / ".git").mkdir()
    (top / ".git" / "config").write_text("1")
    (top / "large").write_bytes(b"x" * (MAX_FILE_TEXT + 1))
    (top / "larger").write_bytes(b"x" * (MAX_FILE_TEXT + 2))
    kept = snapshots.take()
    for parts, why in (
        (("folder",), "a folder"),
        (("link",), "a link to '/etc/passwd'"),
        ((".git", "config"), "was not saved"),
        (("large",), "more than 256 KiB"),
        (("larger",), "not saved"),
    ):
        version = version_in(store, kept, parts)
        assert version is not None
        assert version.text is None
        assert why in version.why
    for parts in (("nothing",), ("large", "nothing"), ("link", "nothing")):
        assert version_in(store, kept, parts) is None


@pytest.mark.parametrize("data", [b"", b"a\r\nb", "é".encode(), b"\x1b[0m"])
def test_text(data: bytes) -> None:
    assert version_of(len(data), data) == FileVersion(len(data), data.decode())


@pytest.mark.parametrize("data", [b"\xff", b"\0", "é".encode()[:1], b"\xed\xa0\x80"])
def test_what_is_no_text(data: bytes) -> None:
    assert version_of(len(data), data).text is None
