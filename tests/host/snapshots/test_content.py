"""The bytes of files, kept and written back: files of holes, files that grow, and files with other names."""

from __future__ import annotations

import os
from pathlib import Path

from cellblock.host.snapshots import Snapshots, Store

from .conftest import Make, before_call


def test_a_huge_sparse_file_is_left_out_and_a_smaller_one_stays_sparse(make: Make, workspace: Path, store: Store) -> None:
    for name, size in (("huge", 2**40), ("sparse", 64 * 2**20)):
        with (workspace / name).open("wb") as file:
            file.truncate(size)
    snapshots = make()
    snapshot = snapshots.take()
    assert dict(snapshot.left_out) == {"huge": "it is too large"}
    (workspace / "sparse").write_bytes(b"")
    snapshots.restore(snapshot)
    sizes = [path.stat() for path in (workspace / "sparse", *store.directory.iterdir())]
    assert {info.st_size for info in sizes} == {64 * 2**20}
    assert all(info.st_blocks * 512 < 2**20 for info in sizes)


def test_a_file_that_is_hard_linked_elsewhere_is_replaced_and_not_written_to(
    snapshots: Snapshots, workspace: Path, place: Path
) -> None:
    (workspace / "file").write_text("1")
    snapshot = snapshots.take()
    (place / "elsewhere").write_text("2")
    (workspace / "file").unlink()
    os.link(place / "elsewhere", workspace / "file")
    snapshots.restore(snapshot)
    assert (workspace / "file").read_text() == "1"
    assert (place / "elsewhere").read_text() == "2"


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(make: Make, workspace: Path, store: Store) -> None:
    (workspace / "file").write_bytes(b"1" * 10)
    snapshots = make(max_file_bytes=100)

    def grow() -> None:
        (workspace / "file").write_bytes(b"1" * 3_000_000)

    for number in range(1, 20):
        (workspace / "file").write_bytes(b"1" * 10)
        with before_call(number, grow):
            snapshot = snapshots.take()
        assert snapshot.bytes <= 100
        assert all(path.stat().st_size <= 100 for path in store.directory.iterdir())
