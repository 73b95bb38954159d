"""Copies files of any size into and out of sessions, part by part and atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from cellblock.common.whole_file import WholeFile
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.cli.daemon_access import connected
from cellblock.operations.files import WritePart
from cellblock.operations.reading import FileReading
from cellblock.service.daemon.daemon_connection import SessionConnection

_PART = 4 * 1024 * 1024


def received(connection: SessionConnection, session: str, path: str) -> Iterator[bytes]:
    """Yield a file of a session, part by part.

    Raises:
        FilesError: The file cannot be read, or changed meanwhile.
    """
    reading = FileReading(session, path)
    while (request := reading.next) is not None:
        yield reading.take(connection.call(request))


def send(connection: SessionConnection, session: str, source: str, target: str) -> Any:
    """Copy a local file into a session; return its description there.

    Raises:
        InvalidInputError: The local file cannot be read.
        CellblockError: The session's file cannot be written.
    """
    upload = secrets.token_hex(16)
    try:
        with _readable(source) as file:
            part = file.read(_PART)
            while following := file.read(_PART):
                connection.call(WritePart(session, target, upload), part)
                part = following
        return connection.call(WritePart(session, target, upload, more=False), part)
    except BaseException:  # also Ctrl-C, which may have interrupted a request on this connection
        with suppress(CellblockError, OSError), connected() as another:
            another.call(WritePart(session, target, upload, abort=True))
        raise


@contextmanager
def _readable(path: str) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error


def save(parts: Iterator[bytes], target: str, *, force: bool) -> int:
    """Write a local file atomically; return its size in bytes.

    Args:
        parts: The content.
        target: The file.
        force: Whether to replace an existing file.

    Raises:
        InvalidInputError: The file already exists, or cannot be written.
    """
    target = os.path.realpath(target)
    try:
        _check_free(target, force)
        if os.path.exists(target) and not os.path.isfile(target):
            with open(target, "wb") as device:  # a device or a pipe is opened, not replaced
                return _written(device, parts)
        return _save_whole(parts, target, force)
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be written: {error.strerror}") from error


def _save_whole(parts: Iterator[bytes], target: str, force: bool) -> int:
    with WholeFile(target, 0o666) as file:
        count = _written(file, parts)
        if os.path.exists(target):
            os.fchmod(file.fileno(), os.stat(target).st_mode & 0o777)
        _check_free(target, force)
    return count


def _check_free(target: str, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise InvalidInputError(f"{target} exists already; --force replaces it, --to names another place")


def _written(file: IO[bytes], parts: Iterator[bytes]) -> int:
    return sum(file.write(part) for part in parts)
