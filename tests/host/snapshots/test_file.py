"""What is known of a file, in a few bytes."""

from __future__ import annotations

import os
from pathlib import Path

from cellblock.host.snapshots.file import UNSEEN, doubted, facts, is_kept, is_seen, kept_as, pack, seen, size_of, was_seen


def test_what_is_packed_is_known(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("123")
    (tmp_path / "file").chmod(0o640)
    info = os.stat(tmp_path / "file")
    file = pack(info, b"digest", 3, seen(info))
    assert facts(file) == (3, 0o640, info.st_mtime_ns, (info.st_uid, info.st_gid), b"digest")
    assert (size_of(file), kept_as(file), is_kept(file), is_seen(file)) == (3, b"digest", True, True)
    assert was_seen(file, seen(info))
    assert not is_kept(pack(info, b"", 3, seen(info)))
    assert not is_seen(pack(info, b"digest", 3, UNSEEN))


def test_what_is_in_doubt_is_never_as_it_was_seen(tmp_path: Path) -> None:
    info = os.stat(tmp_path)
    file = pack(info, b"digest", 3, doubted(info))
    assert not was_seen(file, seen(info))
    assert was_seen(file, doubted(info))
