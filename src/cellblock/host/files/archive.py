"""A tar reader without I/O for untrusted archives: bytes in, members and their data out, `FilesError` for everything else.

`tarfile` is not used. Its reader loads extended headers of any size into memory, has looped forever on negative sizes, and
follows sparse maps and hard links. It differs between Python releases. Its filters judge a member by paths that may have
another meaning when they are used. Only its decoder of a single header block is used, which is pure. Only files and folders
are accepted, which is all that `pack` creates.
"""

from __future__ import annotations

import math
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from cellblock.errors import FilesError
from cellblock.host.files.info import MIB, FileLimits, Parts

BLOCK = 512
_MAX_META = 64 * 1024
_MAX_ALL_META = 64 * MIB
_MAX_TRAILING = MIB
_MAX_NAME = 255

_FILES = {tarfile.REGTYPE, tarfile.AREGTYPE}
_META = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME}
_REFUSED = {
    tarfile.LNKTYPE: "a hard link (tar's option --hard-dereference stores the file again)",
    tarfile.SYMTYPE: "a symbolic link (tar's option --dereference stores what it points to)",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file (leave out tar's option --sparse)",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A file or folder in an archive.

    Attributes:
        parts: Its validated path; ``()`` is the archive's root.
        folder: Whether it is a folder.
        size: Size of the data that follows, in bytes.
        mode: Its untrusted mode.
        modified: Its untrusted modification time.
    """

    parts: Parts
    folder: bool
    size: int
    mode: int
    modified: float


def refuse(why: str) -> NoReturn:
    """Reject a whole archive."""
    raise FilesError(f"the archive was refused, and nothing was unpacked: {why}")


class Gunzip:
    """Decompresses a gzip stream, and passes any other through."""

    def __init__(self) -> None:
        self._head = b""
        self._plain: bool | None = None
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Feed some bytes and yield their content, in pieces of at most a megabyte."""
        if self._plain is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            self._plain = data[:2] != b"\x1f\x8b"
        if self._plain:
            yield data
            return
        while data:
            if self._inflate.eof:  # concatenated gzip streams are one stream, as parallel compressors write it
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                out = self._inflate.decompress(data, MIB)
            except zlib.error as error:
                refuse(f"its gzip stream is damaged ({error})")
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            if out:
                yield out

    def finish(self) -> None:
        """Check that the stream is complete."""
        if self._plain is False and not self._inflate.eof:
            refuse("its gzip stream ends too early; send all of it")


class TarReader:
    """A streaming reader of an archive, which rejects everything except ordinary files and folders."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._wanted = BLOCK
        self._meta: tuple[bytes, int] | None = None
        """Type and size of the extended header that is being read."""
        self._left = 0
        self._padding = 0
        self._zeros = 0
        self._trailing = 0
        self._extended: dict[str, str] = {}
        self._metas = self._all_meta = 0
        self._members = self._total = 0

    def feed(self, data: bytes) -> Iterator[Member | memoryview]:
        """Feed some bytes. Yield members, each followed by its data in any number of pieces."""
        view = memoryview(data)
        while view:
            if self._zeros == 2:
                self._check_trailing(view)
                return
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                yield piece
            elif self._padding:
                skipped = min(self._padding, len(view))
                self._padding -= skipped
                view = view[skipped:]
            else:
                missing = self._wanted - len(self._buffer)
                self._buffer += view[:missing]
                view = view[missing:]
                if len(self._buffer) == self._wanted:
                    block = bytes(self._buffer)
                    self._buffer.clear()
                    member = self._block(block)
                    if member is not None:
                        yield member

    def finish(self) -> None:
        """Check that the stream is complete."""
        if self._zeros < 2:
            # Some readers tolerate this, but a stream truncated between two members would look complete.
            refuse("it ends too early; send all of it" if self._members else "it is not a tar archive, plain or gzipped")

    def _check_trailing(self, view: memoryview) -> None:
        self._trailing += len(view)
        if self._trailing > _MAX_TRAILING or any(view):
            refuse("data follows its end, which some programs would read and others not")

    def _block(self, block: bytes) -> Member | None:
        if self._meta is not None:
            (kind, size), self._meta, self._wanted = self._meta, None, BLOCK
            self._extend(kind, block[:size])
            return None
        if not any(block):
            if self._extended:
                refuse("an extended header is followed by no member")
            self._zeros += 1
            return None
        if self._zeros:
            refuse("data follows its end, which some programs would read and others not")
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError) as error:
            refuse(f"it has a damaged header ({error})" if self._members else "it is not a tar archive, plain or gzipped")
        if header.type in _META:
            self._begin_meta(header)
            return None
        return self._member(header)

    def _begin_meta(self, header: tarfile.TarInfo) -> None:
        self._metas += 1
        self._all_meta += BLOCK + max(header.size, 0)
        if not 0 < header.size <= _MAX_META or self._metas > 4 or self._all_meta > _MAX_ALL_META:
            refuse("its extended headers are empty, too large or too many")
        self._meta = header.type, header.size
        self._wanted = _padded(header.size)

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind == tarfile.GNUTYPE_LONGNAME:
            name = data.removesuffix(b"\0").decode("utf-8", "surrogateescape")
            self._add("path", name)
            return
        records = _pax_records(data)
        if kind == tarfile.XGLTYPE:
            if records.keys() & {"path", "size", "linkpath", "mtime"}:
                refuse("a global header gives one path, size or time to all members")
            return  # for example, git's comment with the commit
        for key, value in records.items():
            self._add(key, value)

    def _add(self, key: str, value: str) -> None:
        if key.startswith("GNU.sparse."):
            refuse("it contains a sparse file (omit tar's option --sparse)")
        if key in ("path", "size", "mtime", "linkpath"):
            if key in self._extended:
                refuse(f"the {key} of a member is given twice")
            self._extended[key] = value

    def _member(self, header: tarfile.TarInfo) -> Member:
        extended, self._extended, self._metas = self._extended, {}, 0
        name = extended.get("path", header.name)
        self._members += 1
        if self._members > self._limits.max_entries:
            refuse(f"it has more than {self._limits.max_entries:,} members (max_entries)")
        if header.type not in _FILES and header.type != tarfile.DIRTYPE:
            refuse(f"{name!r} is {_REFUSED.get(header.type, f'of the unknown type {header.type!r}')}")
        if "linkpath" in extended or header.linkname:
            refuse(f"{name!r} is a {'folder' if header.isdir() else 'file'} with a link's target")
        folder = header.type == tarfile.DIRTYPE or (header.type == tarfile.AREGTYPE and name.endswith("/"))
        member = Member(self._parts(name, folder), folder, header.size, header.mode, float(header.mtime))
        if "mtime" in extended:
            member = replace(member, modified=_number(extended["mtime"], name))
        if "size" in extended:
            member = replace(member, size=_size(extended["size"], name))
        return self._begin_data(member, name)

    def _begin_data(self, member: Member, name: str) -> Member:
        limits = self._limits
        if member.size < 0 or (member.folder and member.size):
            refuse(f"{name!r} claims an impossible size")
        if member.size > limits.max_file_bytes:
            refuse(f"{name!r} has {member.size:,} bytes, over the limit of {limits.max_file_bytes:,} (max_file_bytes)")
        self._total += member.size
        if self._total > limits.max_total_bytes:
            refuse(f"its files have more than {limits.max_total_bytes:,} bytes together (max_total_bytes)")
        self._left = member.size
        self._padding = _padded(member.size) - member.size
        return member

    def _parts(self, name: str, folder: bool) -> Parts:
        """Return a member's path, if it contains no ``..`` or absolute part."""
        if "\0" in name:
            refuse(f"the name {name!r} has a NUL character")
        if name.startswith("/"):
            refuse(f"the path {name!r} is absolute")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if ".." in parts:
            refuse(f"the path {name!r} has a '..'")
        if not folder and (not parts or name.endswith(("/", "/."))):
            refuse(f"the file {name!r} has no name")
        if len(parts) > self._limits.max_depth:
            refuse(f"the path {name[:200]!r} is deeper than {self._limits.max_depth} folders (max_depth)")
        if any(len(part.encode("utf-8", "surrogateescape")) > _MAX_NAME for part in parts):
            refuse(f"the path {name[:200]!r} has a name of more than {_MAX_NAME} bytes")
        return parts


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _pax_records(data: bytes) -> dict[str, str]:
    """Parse records of ``length key=value`` and a newline. The length includes itself."""
    records: dict[str, str] = {}
    while data:
        digits, space, _rest = data[:20].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 3 <= int(digits) <= len(data):
            refuse("it has a damaged extended header")
        record, data = data[len(digits) + 1 : int(digits)], data[int(digits) :]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or record[-1:] != b"\n":
            refuse("it has a damaged extended header")
        name = key.decode("utf-8", "surrogateescape")
        if name in records:
            refuse(f"an extended header gives {name[:50]!r} twice")
        # With "hdrcharset=BINARY" a value is raw bytes, which surrogateescape maps to the same characters.
        records[name] = value.decode("utf-8", "surrogateescape")
    return records


def _size(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        refuse(f"{name!r} claims an impossible size")
    return int(text)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        refuse(f"{name!r} claims an impossible time")
    return value
