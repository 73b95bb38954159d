"""Copies files and folders between trees. Uploads and downloads are the same operation in two directions."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from cellblock.common.open_flags import held
from cellblock.host.files.beneath import CHANGED, CREATE, Tree, check_regular
from cellblock.host.files.failures import over, telling
from cellblock.host.files.info import MIB, FileLimits, Parts, Skipped, Transfer, describe, kind_of, show
from cellblock.host.files.staging import Staging, check_replaceable, status
from cellblock.host.files.steps import Work
from cellblock.host.files.walls import Bounds
from cellblock.model.files import FileInfo

CHANGED_REASON = "changed while it was read"

Found = list[tuple[Parts, os.stat_result]]


@dataclass(frozen=True, slots=True)
class Ends:
    """Source and target of a copy.

    Attributes:
        source: The source tree.
        parts: The file or folder in it.
        readable: Limits on reading there.
        target: The target tree.
        place: The new path in it.
        writable: Limits on writing there.
    """

    source: Tree
    parts: Parts
    readable: Bounds
    target: Tree
    place: Parts
    writable: Bounds

    def why_not(self, below: Parts) -> str:
        """Return why an entry of the folder must not be copied; empty if it may."""
        return self.readable.why_unreadable(self.parts + below) or self.writable.why_unwritable(self.place + below)


def copy(ends: Ends, limits: FileLimits, *, overwrite: bool, verb: str) -> Work[Transfer]:
    """Copy a file or a folder, which appears once complete.

    Args:
        ends: Source and target.
        limits: Limits of size.
        overwrite: Whether files may replace files.
        verb: The operation, for messages.

    Yields:
        Bytes done, and the total.

    Returns:
        The copied and omitted entries.
    """
    source, parts, target, place = ends.source, ends.parts, ends.target, ends.place
    ends.readable.check_readable(verb, parts)
    ends.writable.check_writable("write", place)
    with telling(verb, source.name(parts)):
        info = source.lstat(parts)
        if not stat.S_ISDIR(info.st_mode):
            check_regular(info)
    with telling("write", target.name(place)):
        check_replaceable(status(target, place), stat.S_IFMT(info.st_mode), overwrite)
    if not stat.S_ISDIR(info.st_mode):
        return (yield from _copy_one(source, parts, target, place, limits, overwrite, verb))
    found = yield from survey(source, parts, limits, verb)
    with telling("write", target.name(place)), Staging(target, place, folder=True) as staging:
        staged = staging.folder()
        with staged:
            result = yield from _copy_all(ends, found, staged, limits, verb)
            yield result.bytes, result.bytes
            staging.commit_folder(staged, limits, overwrite)
    return result


def read_part(tree: Tree, parts: Parts, offset: int, count: int) -> Work[tuple[FileInfo, bytes]]:
    with telling("read", tree.name(parts)):
        fd, info = tree.open_file(parts)
        with held(fd):
            wanted = max(0, min(count, info.st_size - offset))
            data = bytearray()
            while len(data) < wanted and (piece := os.pread(fd, min(MIB, wanted - len(data)), offset + len(data))):
                data += piece
                yield None
            return describe(parts, info), bytes(data)


def survey(source: Tree, parts: Parts, limits: FileLimits, verb: str) -> Generator[None, None, Found]:
    """List a folder and check its sizes before the first byte is copied. The read checks them again."""
    found: Found = []
    total = 0
    for below, info in source.scan(parts, limits, verb):
        found.append((below, info))
        if stat.S_ISREG(info.st_mode):
            check_sizes(source, parts, below, info.st_size, total, limits, verb)
            total += info.st_size
        yield
    return found


def check_sizes(source: Tree, parts: Parts, below: Parts, size: int, before: int, limits: FileLimits, verb: str) -> None:
    """Check the size of one file in a folder, and the total so far."""
    check_size(source.name(parts + below), size, limits, verb)
    if before + size > limits.max_total_bytes:
        what = "its files are larger in total"
        raise over(verb, source.name(parts), what, "max_total_bytes", limits.max_total_bytes)


def check_size(path: str, size: int, limits: FileLimits, verb: str) -> None:
    """Check the size of one file."""
    if size > limits.max_file_bytes:
        raise over(verb, path, f"it has {size:,} bytes", "max_file_bytes", limits.max_file_bytes)


def why_skipped(info: os.stat_result) -> str:
    """Return why an entry other than a file or folder is omitted."""
    return "symbolic link" if kind_of(info.st_mode) == "symlink" else "FIFO, socket or device"


def _copy_one(
    source: Tree, parts: Parts, target: Tree, place: Parts, limits: FileLimits, overwrite: bool, verb: str
) -> Work[Transfer]:
    done = 0
    with telling("write", target.name(place)), Staging(target, place, folder=False) as staging:
        with telling(verb, source.name(parts)):
            fd, info = source.open_file(parts)
        with held(fd):
            check_size(source.name(parts), info.st_size, limits, verb)
            with held(staging.file(plain_mode(info.st_mode))) as out:
                for done in _copy_data(fd, info, out):
                    yield done, max(info.st_size, done)
        yield done, done
        staging.commit_file(overwrite)
    return Transfer(1, done)


def _copy_all(ends: Ends, found: Found, staged: Tree, limits: FileLimits, verb: str) -> Work[Transfer]:
    """Copy a folder's listed entries, if they may be copied and are unchanged."""
    source, parts = ends.source, ends.parts
    total = sum(info.st_size for _below, info in found if stat.S_ISREG(info.st_mode))
    files = done = 0
    skipped: list[Skipped] = []
    for below, seen in found:
        yield None
        if why := ends.why_not(below):
            skipped.append(Skipped(show(below), why))
            continue
        if stat.S_ISDIR(seen.st_mode):
            os.close(staged.make_directories(below))
            continue
        if not stat.S_ISREG(seen.st_mode):
            skipped.append(Skipped(show(below), why_skipped(seen)))
            continue
        opened = open_unchanged(source, parts + below, verb)
        if opened is None:
            skipped.append(Skipped(show(below), CHANGED_REASON))
            continue
        fd, info = opened
        with held(fd):
            check_sizes(source, parts, below, info.st_size, done, limits, verb)
            before = done
            with staged.parent(below) as folder, held(create(folder, below[-1], info.st_mode)) as out:
                for now in _copy_data(fd, info, out):
                    done = before + now
                    yield done, max(total, done)
        files += 1
    return Transfer(files, done, tuple(skipped))


def create(folder: int, name: str, mode: int) -> int:
    """Create a file that must not exist in an open folder."""
    return os.open(name, CREATE, plain_mode(mode), dir_fd=folder)


def plain_mode(mode: int) -> int:
    """Return the bits of a mode to copy: permissions, without write access for others and set-id bits."""
    return mode & 0o755 | 0o600


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def stamp(fd: int, modified: float) -> None:
    """Copy the modification time of a new file's source, if the file system accepts it."""
    try:
        os.utime(fd, (modified, modified))
    except (OSError, OverflowError, ValueError):
        pass  # the session's code, or the author of an archive, may claim any time


def _copy_data(fd: int, info: os.stat_result, out: int) -> Iterator[int]:
    """Copy only the size at opening: a growing file would have no end."""
    done = 0
    while done < info.st_size and (data := os.read(fd, min(MIB, info.st_size - done))):
        write_all(out, data)
        done += len(data)
        yield done
    stamp(out, info.st_mtime)


def open_unchanged(source: Tree, parts: Parts, verb: str) -> tuple[int, os.stat_result] | None:
    """Open a file that a listing found; None if it was replaced or removed since."""
    with telling(verb, source.name(parts)):
        try:
            return source.open_file(parts)
        except OSError as error:
            if error.errno not in CHANGED:
                raise
    return None
