"""A snapshot as a tar stream, and the part of such a stream that a workspace lacks."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress

from cellblock.common.open_flags import held
from cellblock.common.tar_blocks import END, header, padding
from cellblock.host.snapshots.beneath import open_parent
from cellblock.host.snapshots.entries import Folder, LeftOut
from cellblock.host.snapshots.file import File, Link, facts, is_kept
from cellblock.host.snapshots.store import Store
from cellblock.host.snapshots.tree import Snapshot

_PIECE = 1024 * 1024


def pack(store: Store, snapshot: Snapshot, left_out: list[tuple[str, str]], *, links: bool = False) -> Iterator[bytes]:
    """Yield a snapshot as pieces of an uncompressed tar stream. Do not drop the snapshot meanwhile.

    `left_out` collects excluded paths with reasons: files without content, and links unless the stream contains them.

    Raises:
        OSError: A file cannot be read.
    """
    pieces, size = [], 0
    for data in _pack(store, "", snapshot.root, left_out, links=links):
        pieces.append(data)
        size += len(data)
        if size >= _PIECE:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join([*pieces, END])


def _pack(store: Store, above: str, folder: Folder, left_out: list[tuple[str, str]], *, links: bool) -> Iterator[bytes]:
    for name, entry in folder.entries.items():
        path = f"{above}{name}"
        if isinstance(entry, Folder):
            yield header(path, entry.mode)
            yield from _pack(store, f"{path}/", entry, left_out, links=links)
        elif isinstance(entry, File) and is_kept(entry):
            known = facts(entry)
            yield header(path, known.mode, modified=known.mtime_ns // 10**9, size=known.size)
            yield from _content(store, entry)
        elif isinstance(entry, Link) and links:
            yield header(path, 0o777, target=entry.target)
        elif isinstance(entry, LeftOut):
            left_out.append((path, entry.reason))
        else:
            left_out.append((path, "it is a link" if isinstance(entry, Link) else "its content was not saved"))


def _content(store: Store, file: File) -> Iterator[bytes]:
    with held(store.open(facts(file).digest)) as source:
        while data := os.read(source, _PIECE):
            yield data
    yield padding(facts(file).size)


class Missing:
    """The part of a tar stream that a directory lacks. Existing files are unchanged.

    Attributes:
        changed: Existing files with another size or time, in the part of the stream read so far.
    """

    def __init__(self, archive: Iterator[bytes], directory: str) -> None:
        """Compare a stream, from `pack` or `Files.tar`, with a directory."""
        self._archive = archive
        self._directory = directory
        self.changed: list[str] = []

    def pieces(self) -> Iterator[bytes]:
        """Yield the missing part as a tar stream.

        Raises:
            OSError, tarfile.TarError: The directory or the stream cannot be read.
        """
        stream = io.BufferedReader(_Stream(self._archive))
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with held(directory) as top, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                found = _found(top, member.name)
                if found is not None:
                    if member.isfile() and (found.st_size, int(found.st_mtime)) != (member.size, int(member.mtime)):
                        self.changed.append(member.name)
                    continue
                yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                source = archive.extractfile(member)
                while source is not None and (data := source.read(_PIECE)):
                    yield data
                yield padding(member.size)
        yield END


def _found(top: int, path: str) -> os.stat_result | None:
    with suppress(OSError), open_parent(top, path) as (parent, name):
        return os.lstat(name, dir_fd=parent)
    return None


class _Stream(io.RawIOBase):
    """An iterator of pieces as a readable file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read from the next piece."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
