"""``cellblock files``: the files of a session's workspace."""

from __future__ import annotations

import codecs
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.common.whole_file import WholeFile
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.cli.arguments import Json, Session, new_app
from cellblock.fronts.cli.daemon_access import ask, connected
from cellblock.fronts.cli.output import finish, finish_list, moment, wants_json
from cellblock.fronts.cli.problems import OK
from cellblock.fronts.cli.progress import Progress
from cellblock.operations.file_parts import FileReading
from cellblock.operations.files import ListFiles, MakeFolder, RemoveFile, RenameFile, WritePart
from cellblock.service.daemon.daemon_connection import SessionConnection

app = new_app("List, copy, rename and remove files of a session. Absolute paths are as its code sees them.")

_PART = 4 * 1024 * 1024

Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Include folders and everything in them.")]


@app.command()
def ls(
    session: Session,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder of the session.")] = ".",
    recursive: Recursive = False,
    as_json: Json = False,
) -> int:
    """List a folder."""
    columns = {
        "path": lambda one: one["path"] + ("/" if one["kind"] == "directory" else ""),
        "bytes": lambda one: f"{one['size']:,}" if one["kind"] == "file" else "",
        "modified": lambda one: moment(one["modified"]),
    }
    found = ask(ListFiles(session, path, recursive))
    return finish_list("files", found, columns, as_json, empty="The folder is empty.")


@app.command()
def get(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files of the session.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR|FILE|-", help="Where to put them; - is standard output.")] = ".",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist already.")] = False,
    as_json: Json = False,
) -> int:
    """Copy files out of a session."""
    if len(paths) > 1 and to != "-" and not os.path.isdir(to):
        raise InvalidInputError(f"to copy several files, --to must name an existing folder, not {to!r}")
    copied: list[dict[str, Any]] = []
    with connected() as connection:
        for number, path in enumerate(paths, 1):
            with Progress(f"reading {path} ({number} of {len(paths)})") as progress:
                parts = received(connection, session, path, progress)
                if to == "-":
                    _print(parts, progress)
                    continue
                target = os.path.join(to, os.path.basename(path)) if os.path.isdir(to) else to
                size = save(parts, target, force=force)
            copied.append({"path": path, "file": os.path.abspath(target), "size": size})
            _tell(target, size, as_json)
    return OK if to == "-" else finish({"files": copied}, "", as_json)


def _tell(name: str, size: int, as_json: bool) -> None:
    """Print that a file was copied, if more files follow."""
    if not wants_json(as_json):
        print(f"{printable(name, lines=False)} ({size:,} bytes)")


def _print(parts: Iterator[bytes], progress: Progress) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for part in parts:
        progress.hide()
        if sys.stdout.isatty():
            print(printable(decoder.decode(part)), end="")
        else:
            sys.stdout.buffer.write(part)
    if sys.stdout.isatty():
        print(printable(decoder.decode(b"", final=True)))


@app.command()
def put(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files on this machine.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="A folder of the session.")] = ".",
    recursive: Recursive = False,
    as_json: Json = False,
) -> int:
    """Copy files into a session."""
    files = [pair for path in paths for pair in _files(path, recursive)]
    copied: list[dict[str, Any]] = []
    with connected() as connection:
        for number, (source, name) in enumerate(files, 1):
            target = os.path.normpath(os.path.join(to, name))
            with Progress(f"writing {target} ({number} of {len(files)})") as progress:
                written = send(connection, session, source, target, progress)
            copied.append({"file": os.path.abspath(source), "path": written["path"], "size": written["size"]})
            _tell(written["path"], written["size"], as_json)
    return finish({"files": copied}, "", as_json)


def _files(path: str, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield files with their new names."""
    if not os.path.isdir(path):
        yield path, os.path.basename(path)
        return
    if not recursive:
        raise InvalidInputError(f"{path} is a folder; --recursive copies it with everything in it")
    above = os.path.dirname(os.path.abspath(path))
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            file = os.path.join(folder, name)
            yield file, os.path.relpath(os.path.abspath(file), above)


@app.command()
def mkdir(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Folders of the session.")],
    as_json: Json = False,
) -> int:
    """Make folders, and those above them."""
    with connected() as connection:
        for path in paths:
            connection.call(MakeFolder(session, path))
    return finish({"made": paths}, "", as_json)


@app.command()
def mv(
    session: Session,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or folder of the session.")],
    to: Annotated[str, typer.Argument(metavar="NEW", help="Its new path. A file there is replaced.")],
    as_json: Json = False,
) -> int:
    """Rename a file or a folder."""
    ask(RenameFile(session, path, to))
    return finish({"path": path, "to": to}, "", as_json)


@app.command()
def rm(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files of the session.")],
    recursive: Recursive = False,
    as_json: Json = False,
) -> int:
    """Remove files of a session."""
    with connected() as connection:
        for path in paths:
            with Progress(f"removing {path}"):
                connection.call(RemoveFile(session, path, recursive))
    return finish({"removed": paths}, "", as_json)


def received(connection: SessionConnection, session: str, path: str, progress: Progress) -> Iterator[bytes]:
    """Yield a file of a session, part by part.

    Raises:
        FilesError: The file cannot be read, or changed meanwhile.
    """
    reading = FileReading(session, path)
    while (request := reading.next) is not None:
        data = reading.take(connection.call(request))
        progress.advance(reading.offset, reading.size or 0)
        yield data


def send(connection: SessionConnection, session: str, source: str, target: str, progress: Progress) -> Any:
    """Copy a local file into a session; return its description there.

    Raises:
        InvalidInputError: The local file cannot be read.
        CellblockError: The session's file cannot be written.
    """
    upload = secrets.token_hex(16)
    try:
        with _readable(source) as file:
            size, sent = os.fstat(file.fileno()).st_size, 0
            part = file.read(_PART)
            while following := file.read(_PART):
                connection.call(WritePart(session, target, upload), part)
                sent += len(part)
                progress.advance(sent, size)
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
