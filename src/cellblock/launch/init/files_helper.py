"""Works with files as the session's user sees them: any path, with links followed and this user's permissions.

It runs confined like a program of the session, and answers one request after another until its standard input ends. A request
has the lengths of its head and body, the head in JSON, and the body. An answer has the same format.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from cellblock.wire.program_messages import LENGTHS

if TYPE_CHECKING:
    from cellblock.launch.init.watch_helper import Change

_PIECE = 1 << 20
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_LISTED = 1_000_000
_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))


def serve() -> NoReturn:
    """Answer requests until the host's end."""
    while head := _read(LENGTHS.size):
        size, body = LENGTHS.unpack(head)
        request = json.loads(_read(size))
        try:
            do = request.pop("do")
            if do == "watch":
                _watch(**request)
            found, data = _WORK[do](body, **request)
            answer: dict[str, Any] = {"found": found}
        except OSError as error:
            answer, data = {"errno": error.errno or errno.EIO, "why": error.strerror or str(error)}, b""
        except ValueError as error:  # a NUL in a path
            answer, data = {"errno": errno.EINVAL, "why": str(error)}, b""
        encoded = json.dumps(answer).encode()
        _write(LENGTHS.pack(len(encoded), len(data)) + encoded)
        _write(data)
    os._exit(0)


def _read(size: int) -> bytes:
    """Read exactly `size` bytes; empty at the end."""
    parts = []
    while size:
        part = os.read(0, min(size, _PIECE))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(data: bytes, descriptor: int = 1) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_bytes(_body: int, path: str, most: int, offset: int = -1) -> tuple[dict[str, Any], bytes]:
    """Read a file, or a part of it from an offset on."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not blocking: it may be a FIFO
    try:
        about = _check_regular(descriptor)
        parts, left = [], most + (offset < 0)
        if offset > 0:
            os.lseek(descriptor, offset, os.SEEK_SET)
        while left and (part := os.read(descriptor, min(left, max(about.st_size, 4096), 16 * _PIECE))):
            parts.append(part)
            left -= len(part)
        if not left and offset < 0:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
        return _describe(path, "", about), b"".join(parts)
    finally:
        os.close(descriptor)


def _write_bytes(body: int, path: str, parents: bool, mode: int, more: bool = False) -> tuple[None, bytes]:
    """Write a file, or another part of one."""
    try:
        if parents:
            _make_parents(path)
        descriptor = os.open(path, _APPEND if more else _CREATE, mode)
        try:
            _check_regular(descriptor)
            while body:
                part = os.read(0, min(body, _PIECE))
                if not part:
                    os._exit(0)
                body -= len(part)
                _write(part, descriptor)
        finally:
            os.close(descriptor)
    finally:
        while body:  # what follows is the next request
            body -= len(os.read(0, min(body, _PIECE))) or body
    return None, b""


def _make_parents(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except FileExistsError:  # a file, as open(2) would say
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def _check_regular(descriptor: int) -> os.stat_result:
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return about


def _describe(path: str, name: str, found: os.stat_result) -> dict[str, Any]:
    kind = next((kind for is_kind, kind in _KINDS if is_kind(found.st_mode)), "other")
    return {
        "path": os.path.join(path, name) if name else path,
        "kind": kind,
        "size": found.st_size,
        "modified": found.st_mtime,
        "mode": stat.S_IMODE(found.st_mode),
    }


def _stat(_body: int, path: str, follow: bool) -> tuple[dict[str, Any], bytes]:
    return _describe(path, "", os.stat(path, follow_symlinks=follow)), b""


def _list(_body: int, path: str, depth: int = 1) -> tuple[None, bytes]:
    """Describe the contents of a folder, `depth` levels deep: one entry per line, sorted by path."""
    found: list[dict[str, Any]] = []
    _collect(path, depth, found)
    found.sort(key=lambda one: one["path"])
    return None, b"\n".join(json.dumps(one).encode() for one in found)


def _collect(path: str, depth: int, found: list[dict[str, Any]]) -> None:
    below = []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                about = entry.stat()
            except OSError:  # a broken link, or it was removed meanwhile
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
            found.append(_describe(path, entry.name, about))
            if len(found) > _MOST_LISTED:
                raise OSError(errno.E2BIG, f"there are more than {_MOST_LISTED:,} files")
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
    for folder in below:
        try:
            _collect(folder, depth - 1, found)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # it was removed meanwhile, or this user cannot read it


def _mkdir(_body: int, path: str, parents: bool, exist_ok: bool) -> tuple[None, bytes]:
    try:
        (os.makedirs if parents else os.mkdir)(path)
    except FileExistsError:
        if not (exist_ok and os.path.isdir(path)):
            raise
    return None, b""


def _remove(_body: int, path: str, recursive: bool, missing_ok: bool) -> tuple[None, bytes]:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif recursive:
            shutil.rmtree(path)
        else:
            os.rmdir(path)
    except FileNotFoundError:
        if not missing_ok:
            raise
    return None, b""


def _rename(_body: int, path: str, to: str) -> tuple[None, bytes]:
    os.replace(path, to)
    return None, b""


def _realpath(_body: int, path: str, strict: bool) -> tuple[str, bytes]:
    return os.path.realpath(path, strict=strict), b""


def _watch(path: str, recursive: bool) -> NoReturn:
    """Report changes in a folder until the host's end: first that the watch is active, then batches of changes."""
    from cellblock.launch.init import watch_helper

    def send(changes: list[Change]) -> None:
        data = json.dumps(changes).encode()
        _write(LENGTHS.pack(2, len(data)) + b"{}" + data)

    watch = watch_helper.Watch(path, recursive=recursive)
    send([])
    try:
        watch_helper.serve(watch, send)
    except OSError as error:
        answer = json.dumps({"errno": error.errno or errno.EIO, "why": error.strerror or str(error)}).encode()
        _write(LENGTHS.pack(len(answer), 0) + answer)
        os._exit(0)


_WORK: dict[str, Callable[..., tuple[Any, bytes]]] = {
    "read": _read_bytes,
    "write": _write_bytes,
    "stat": _stat,
    "list": _list,
    "mkdir": _mkdir,
    "remove": _remove,
    "rename": _rename,
    "realpath": _realpath,
}
