"""Snapshots that look only at what may have changed, beside those that look at everything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cellblock.host.snapshots import Snapshot, SnapshotLimits, Snapshots, Store
from cellblock.host.snapshots.content import DIGEST_BYTES
from cellblock.host.snapshots.entries import Folder, LeftOut, Totals
from cellblock.host.snapshots.file import File, Link, facts, is_kept
from cellblock.host.snapshots.tree import total

LIMITS = SnapshotLimits(max_file_bytes=2**16)


class Watched:
    """Snapshots of a workspace that is watched, the last of which is known."""

    def __init__(self, workspace: Path, store: Store, journals: Path) -> None:
        self.snapshots = Snapshots(workspace, store, journals)
        self.workspace, self.store = workspace, store
        self.last: Snapshot | None = None

    def take(self, limits: SnapshotLimits = LIMITS) -> Snapshot:
        """Take a snapshot, as a session does after each cell."""
        snapshot = self.snapshots.take(limits, lambda: False, lambda: False)
        assert snapshot is not None
        return snapshot

    def check(self) -> Snapshot:
        """Take a snapshot, and check that it says what is there, and that nothing else is watched; drop the one before."""
        snapshot = self.take()
        said, real = held(snapshot.root), there(self.workspace)
        assert {path: _known(known) for path, known in said.items()} == {
            path: _known(known) if _is_read(said.get(path)) else _known(known)[:3] for path, known in real.items()
        }
        assert snapshot.root.totals == weighed(snapshot.root)
        assert self.watches() <= said.keys()
        if self.last is not None:
            self.store.drop(self.last)
        self.last = snapshot
        return snapshot

    def watches(self) -> set[str]:
        """Return the paths that are watched, and check that the system watches no more."""
        watch = self.snapshots._watch
        if watch is None:
            return set()
        info = Path(f"/proc/self/fdinfo/{watch._inotify._fd}").read_text()
        assert info.count("inotify wd:") <= len(watch._numbers)
        assert len(watch._paths) <= len(watch._numbers)
        return {f"/{path}" if path else "" for path in watch._numbers}

    @property
    def is_watched(self) -> bool:
        """Whether the last look was watched."""
        return self.snapshots._watch is not None


@contextmanager
def watched(workspace: Path, place: Path) -> Iterator[Watched]:
    """Make snapshots of a workspace, and close everything."""
    with Store(place / f"store-{os.urandom(4).hex()}") as store:
        made = Watched(workspace, store, place / "journals")
        try:
            yield made
        finally:
            made.snapshots.close()


def held(folder: Folder, path: str = "") -> dict[str, object]:
    """Return what a snapshot says is in a folder: contents by their digests, or sizes if they were not kept."""
    found: dict[str, object] = {path: folder.mode}
    for name, entry in folder.entries.items():
        where = f"{path}/{name}"
        if isinstance(entry, Folder):
            found |= held(entry, where)
        elif isinstance(entry, File):
            known = facts(entry)
            found[where] = (known.mode, known.mtime_ns, known.size, *([known.digest] if is_kept(entry) else []))
        elif isinstance(entry, LeftOut):
            found[where] = "left out"
        elif isinstance(entry, Link):
            found[where] = entry.target
    return found


def there(folder: Path, path: str = "") -> dict[str, object]:
    """Return what is in a folder, read from the disk."""
    found: dict[str, object] = {path: folder.stat().st_mode & 0o777}
    for entry in os.scandir(folder):
        where, info = f"{path}/{entry.name}", entry.stat(follow_symlinks=False)
        if entry.name == ".git":
            found[where] = "left out"
        elif entry.is_symlink():
            found[where] = os.readlink(entry.path)
        elif entry.is_dir() and info.st_dev != folder.stat().st_dev:
            found[where] = "left out"
        elif entry.is_dir():
            found |= there(Path(entry.path), where)
        elif entry.is_file():
            digest = hashlib.blake2b(Path(entry.path).read_bytes(), digest_size=DIGEST_BYTES).digest()
            found[where] = (info.st_mode & 0o777, info.st_mtime_ns, info.st_size, digest)
        else:
            found[where] = "left out"
    return found


def weighed(folder: Folder) -> Totals:
    """Return how much is in a folder, counted anew."""
    entries = [
        entry._replace(totals=weighed(entry)) if isinstance(entry, Folder) else entry for entry in folder.entries.values()
    ]
    return total(entries, complete=folder.complete)


def _known(known: object) -> tuple[object, ...]:
    return known if isinstance(known, tuple) else (known,)


def _is_read(known: object) -> bool:
    """Whether a file was read, and need not be too large to be."""
    if not isinstance(known, tuple) or len(known) == 4:
        return True
    assert known[2] > LIMITS.max_file_bytes
    return False
