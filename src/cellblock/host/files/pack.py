"""Tar streams of folders: pack and unpack."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator

from cellblock.common.open_flags import held
from cellblock.common.tar_blocks import END, header, padding
from cellblock.errors import FilesError
from cellblock.host.files.archive import Gunzip, Member, TarReader, refuse
from cellblock.host.files.beneath import Tree
from cellblock.host.files.failures import telling
from cellblock.host.files.info import MIB, FileLimits, Parts, Skipped, Transfer, show
from cellblock.host.files.staging import Staging
from cellblock.host.files.steps import Sink
from cellblock.host.files.transfer import (
    CHANGED_REASON,
    Found,
    check_sizes,
    create,
    open_unchanged,
    stamp,
    survey,
    why_skipped,
    write_all,
)
from cellblock.host.files.walls import Bounds


def pack(tree: Tree, parts: Parts, limits: FileLimits, bounds: Bounds) -> Generator[bytes | Skipped, None, None]:
    """Create a tar stream of a folder's entries with relative paths, or of one file.

    Yields:
        Bytes of the archive, and omitted entries. Links are omitted, because a reader might follow them.
    """
    verb = "archive"
    bounds.check_readable(verb, parts)
    with telling(verb, tree.name(parts)):
        info = tree.lstat(parts)
    found: Found = [((), info)]
    if stat.S_ISDIR(info.st_mode):
        steps = survey(tree, parts, limits, verb)
        try:
            while True:
                next(steps)
                yield b""
        except StopIteration as end:
            found = end.value
    total = 0
    for below, seen in found:
        if why := bounds.why_unreadable(parts + below):
            yield Skipped(show(below), why)
        elif stat.S_ISDIR(seen.st_mode):
            yield _header(below, seen)
        elif not stat.S_ISREG(seen.st_mode) and below:
            yield Skipped(show(below), why_skipped(seen))
        else:
            total += yield from _pack_file(tree, parts, below, total, limits, verb)
    yield END


def _pack_file(
    tree: Tree, parts: Parts, below: Parts, before: int, limits: FileLimits, verb: str
) -> Generator[bytes | Skipped, None, int]:
    path = tree.name(parts + below)
    if below:
        opened = open_unchanged(tree, parts + below, verb)
        if opened is None:
            yield Skipped(show(below), CHANGED_REASON)
            return 0
        fd, info = opened
    else:
        with telling(verb, path):
            fd, info = tree.open_file(parts)
    with held(fd), telling(verb, path):
        check_sizes(tree, parts, below, info.st_size, before, limits, verb)
        yield _header(below or parts[-1:], info, info.st_size)
        left = info.st_size
        while left:
            data = os.read(fd, min(MIB, left))
            if not data:  # the header promised more, and padding would forge content
                raise FilesError(f"cannot archive {path!r}: it shrank while it was read; try again", path=path)
            left -= len(data)
            yield data
        yield padding(info.st_size)
    return info.st_size


def _header(parts: Parts, info: os.stat_result, size: int | None = None) -> bytes:
    return header(show(parts), info.st_mode & 0o777, modified=int(info.st_mtime), size=size)


def unpack(tree: Tree, parts: Parts, limits: FileLimits, bounds: Bounds) -> Sink[Transfer]:
    """Read a tar stream, and move its files and folders to a folder after validation of the whole stream.

    Args:
        tree: The workspace.
        parts: The folder.
        limits: The limits of the archive.
        bounds: Paths that the session cannot write.
    """
    path = tree.name(parts)
    bounds.check_writable("unpack an archive into", parts)
    gunzip, reader = Gunzip(), TarReader(limits)
    with telling("unpack an archive into", path), Staging(tree, parts, folder=True) as staging:
        staged = staging.folder()
        with staged, _Unpacker(staged, lambda below: bounds.why_unwritable(parts + below)) as unpacker:
            while (data := (yield)) is not None:
                for plain in gunzip.feed(data):
                    for event in reader.feed(plain):
                        unpacker.take(event)
            gunzip.finish()
            reader.finish()
            unpacker.close_file()
            staging.commit_folder(staged, limits, True)
    return Transfer(unpacker.files, unpacker.bytes, tuple(unpacker.skipped))


class _Unpacker:
    """Writes the members of an archive to a staging folder, except paths that the session cannot write."""

    def __init__(self, staged: Tree, why_not: Callable[[Parts], str]) -> None:
        self._staged = staged
        self._why_not = why_not
        self._skipping = False
        self.skipped: list[Skipped] = []
        self._file: int | None = None
        self._modified = 0.0
        self.files = 0
        self.bytes = 0

    def __enter__(self) -> _Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def take(self, event: Member | memoryview) -> None:
        """Start a member, or write some of its data."""
        if isinstance(event, memoryview):
            if self._skipping:
                return
            assert self._file is not None
            write_all(self._file, event)
            self.bytes += len(event)
            return
        self.close_file()
        why = self._why_not(event.parts)
        self._skipping = bool(why)
        if why:
            self.skipped.append(Skipped(show(event.parts), why))
            return
        try:
            if event.folder:
                os.close(self._staged.make_directories(event.parts))
                return
            with held(self._staged.make_directories(event.parts[:-1])) as folder:
                # The file system detects duplicates, even if it treats two names as the same one.
                self._file = create(folder, event.parts[-1], event.mode)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
                raise
            refuse(f"the path {show(event.parts)!r} occurs twice, or as a file and as a folder")
        self._modified = event.modified
        self.files += 1

    def close_file(self) -> None:
        if self._file is not None:
            stamp(self._file, self._modified)
            os.close(self._file)
            self._file = None
