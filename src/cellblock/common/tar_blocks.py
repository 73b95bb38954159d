"""Headers, padding and the end of tar streams."""

from __future__ import annotations

import stat
import tarfile

END = bytes(2 * tarfile.BLOCKSIZE)
_LATEST = 0o77777777777  # the largest time in a plain header


def header(name: str, mode: int, *, modified: int = 0, size: int | None = None, target: str | None = None) -> bytes:
    """Return the header of a file, folder or link.

    Args:
        name: Its path.
        mode: Its permissions.
        modified: Its modification time in seconds.
        size: Its size in bytes; None for a folder.
        target: The target of a link.
    """
    made = tarfile.TarInfo(name)
    made.type, made.size = (tarfile.DIRTYPE, 0) if size is None else (tarfile.REGTYPE, size)
    if target is not None:
        made.type, made.linkname = tarfile.SYMTYPE, target
    made.mode = stat.S_IMODE(mode)
    made.mtime = max(0, min(modified, _LATEST))
    return made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """Return the bytes that follow a file's content, up to the next block."""
    return bytes(-size % tarfile.BLOCKSIZE)
