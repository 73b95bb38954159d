"""`Files`: the type of ``session.files``."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import PurePath
from typing import TypeVar

from cellblock.common.open_flags import held
from cellblock.errors import FilesError, InvalidInputError
from cellblock.host.files import pack, transfer
from cellblock.host.files.beneath import Tree, Walk
from cellblock.host.files.decode import decode
from cellblock.host.files.failures import over, telling
from cellblock.host.files.info import BRANCHES, MIB, FileLimits, Parts, Skipped, Transfer, describe
from cellblock.host.files.paths import Workspace, name_of
from cellblock.host.files.removal import remove_tree
from cellblock.host.files.staging import Staging, check_replaceable, status
from cellblock.host.files.steps import Progress, Sink, Work, complete, drain, in_thread, pour
from cellblock.host.files.walls import NO_BOUNDS, Bounds, Walls
from cellblock.model.files import FileInfo

Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")

READ_BYTES = 64 * MIB
"""Default limit of bytes that `Files.read` takes into memory."""


class Files:
    """The files of a session's workspace, for the trusted side.

    Paths are relative to the workspace, or absolute and inside it. No operation follows a symbolic link, opens anything except
    regular files and folders, or blocks the event loop. A failed or cancelled operation leaves no partial result and no
    temporary file.

    Files that the session cannot read or write, such as ``.env`` and ``.git``, are refused, or omitted from folders and
    archives: content may come from the session, a file or a client. ``trusted=True`` lifts that for one call.

    Args:
        root: The workspace, opened on first use.
        limits: Limits of one operation.
        walk: How paths are resolved; by default the best way on this system.
        walls: Paths that the session cannot read or write; None without a sandbox.
        on_change: Called after each operation that can change files, whether or not it changed any.
        alias: Another absolute path of the workspace, by which the session knows it; may be empty.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        limits: FileLimits | None = None,
        walk: Walk | None = None,
        walls: Walls | None = None,
        on_change: Callable[[], object] = lambda: None,
        alias: str = "",
    ) -> None:
        self._limits = limits or FileLimits()
        self._walls = walls
        self._on_change = on_change
        self._workspace = Workspace(root, self._limits.max_depth, walk, alias)

    def has(self, path: str) -> bool:
        """Return whether an absolute path is in the workspace."""
        return self._workspace.has(path)

    # -- single files --------------------------------------------------------------------------------------------------

    async def write(
        self, path: str | PurePath, data: bytes | str | AsyncIterable[bytes], *, mode: int | None = None, trusted: bool = False
    ) -> FileInfo:
        """Write a file atomically. Missing parent folders are created.

        Args:
            path: The file. An existing file is replaced; its other hard links keep the old content.
            data: The content. Text is encoded as UTF-8.
            mode: Permission bits; by default the bits of the replaced file, or 0o666 less the umask.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Returns:
            The written file.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The file cannot be written, or exceeds a limit.
        """
        parts = self._workspace.inner(path, "file")
        if mode is not None and (isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777):
            raise InvalidInputError(f"mode must be from 0 to 0o777, without set-id and sticky bits, not {mode!r}")
        if isinstance(data, str):
            try:
                data = data.encode()
            except UnicodeEncodeError as error:
                raise InvalidInputError(f"the text has a lone surrogate at index {error.start}; pass bytes") from None
        elif isinstance(data, (bytearray, memoryview)):
            data = bytes(data)
        elif not isinstance(data, (bytes, AsyncIterable)):
            raise InvalidInputError(f"data must be bytes, text or an async iterable of bytes, not {type(data).__name__}")
        return await self._changing(
            pour(self._within(lambda tree, bounds: _write(tree, parts, mode, self._limits, bounds), trusted), data)
        )

    async def read(self, path: str | PurePath, *, max_bytes: int = READ_BYTES, trusted: bool = False) -> bytes:
        """Read a file into memory.

        Args:
            path: The file.
            max_bytes: Maximum size in bytes.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The file cannot be read, is not a regular file, or is too large.
        """
        parts = self._workspace.inner(path, "file")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise InvalidInputError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        return await complete(self._within(lambda tree, bounds: _read(tree, parts, max_bytes, bounds), trusted))

    async def read_part(
        self, path: str | PurePath, offset: int, count: int, *, trusted: bool = False
    ) -> tuple[FileInfo, bytes]:
        """Read a part of a file, and return it with the file's current description.

        Args:
            path: The file.
            offset: Start of the part. At or beyond the end of the file, the part is empty.
            count: Maximum number of bytes.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError, FilesError: As for `read`.
        """
        parts = self._workspace.inner(path, "file")

        def work(tree: Tree, bounds: Bounds) -> Work[tuple[FileInfo, bytes]]:
            bounds.check_readable("read", parts)
            return (yield from transfer.read_part(tree, parts, offset, count))

        return await complete(self._within(work, trusted))

    async def read_text(
        self, path: str | PurePath, *, encoding: str = "utf-8", max_bytes: int = READ_BYTES, trusted: bool = False
    ) -> str:
        """Read a file as text. Line ends are unchanged.

        Args:
            path: The file.
            encoding: The encoding.
            max_bytes: Maximum size in bytes.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError, FilesError: As for `read`, or the file is not text in this encoding.
        """
        data = await self.read(path, max_bytes=max_bytes, trusted=trusted)
        try:
            return await complete(decode(data, encoding))
        except LookupError:
            raise InvalidInputError(f"encoding {encoding!r} is not known") from None
        except UnicodeDecodeError as error:
            why = f"it is not {encoding} text ({error.reason} at byte {error.start}); read() returns its bytes"
            raise FilesError(f"cannot read {str(path)!r}: {why}", path=str(path)) from None

    # -- folders -------------------------------------------------------------------------------------------------------

    async def list(self, path: str | PurePath = ".", *, recursive: bool = False, trusted: bool = False) -> list[FileInfo]:
        """List a folder, sorted by path, including links, FIFOs, sockets and devices.

        Files that the session cannot read are omitted, as are the directories of branches and the sandbox's empty placeholder
        folders, such as ``.vscode``.

        Args:
            path: The folder.
            recursive: Whether to list subfolders too.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The path is not a folder, or exceeds the limits of entries or depth.
        """
        parts = self._workspace.parts(path)
        return await complete(self._within(lambda tree, bounds: _list(tree, parts, recursive, self._limits, bounds), trusted))

    async def stat(self, path: str | PurePath, *, trusted: bool = False) -> FileInfo:
        """Describe a file, a folder, or any other entry.

        Args:
            path: The path.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The path does not exist, or leads through a link.
        """
        parts = self._workspace.parts(path)
        return await complete(self._within(lambda tree, bounds: _stat(tree, parts, bounds), trusted))

    async def mkdir(self, path: str | PurePath, *, trusted: bool = False) -> None:
        """Create a folder and missing parent folders. The operation is idempotent.

        Args:
            path: The path.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The folder cannot be created, or another entry has its path.
        """
        parts = self._workspace.parts(path)
        await self._changing(complete(self._within(lambda tree, bounds: _mkdir(tree, parts, bounds), trusted)))

    async def remove(self, path: str | PurePath, *, recursive: bool = False, trusted: bool = False) -> None:
        """Remove a file, a link (not its target), an empty folder, or any other entry.

        Args:
            path: The path to remove.
            recursive: Whether to remove a folder with its contents, however deep.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The path does not exist, is a non-empty folder, or cannot be removed. A part may already be removed.
        """
        parts = self._workspace.inner(path, "file or folder")
        await self._changing(complete(self._within(lambda tree, bounds: _remove(tree, parts, recursive, bounds), trusted)))

    # -- upload and download -------------------------------------------------------------------------------------------

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: str | PurePath | None = None,
        *,
        progress: Progress | None = None,
        trusted: bool = False,
    ) -> Transfer:
        """Copy a file or a folder from this machine's disk into the workspace.

        A file or folder appears once complete. Files for an existing folder are moved into it once all are complete, and
        replace files of the same name. Links in a folder are omitted.

        Args:
            local: The file or folder.
            path: The target; by default the same name in the workspace.
            progress: Called in this thread with the bytes done and the total. If it raises, the copy stops.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Returns:
            The copied and omitted entries.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: A file cannot be read or written, or exceeds a limit.
        """
        where, source = self._workspace.local(local, follow=True)
        target = self._workspace.inner(name_of(local) if path is None else path, "file")

        def work(tree: Tree, bounds: Bounds) -> Work[Transfer]:
            with telling("upload", str(local)), _on_disk(where, tree) as disk:
                ends = transfer.Ends(disk, source, NO_BOUNDS if where is not None else bounds, tree, target, bounds)
                return (yield from transfer.copy(ends, self._limits, overwrite=True, verb="upload"))

        return await self._changing(complete(self._within(work, trusted), progress))

    async def download(
        self,
        path: str | PurePath,
        local: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
        trusted: bool = False,
    ) -> Transfer:
        """Copy a file or a folder from the workspace to this machine's disk.

        Nothing is written outside `local`, and nothing appears there before it is complete. Links, FIFOs, sockets and devices
        in a folder are omitted, and so is an entry that changes its kind during the copy. The result names them.

        Args:
            path: The file or folder.
            local: The target. An existing folder receives the entries of a folder.
            overwrite: Whether files may replace files. Links are never replaced or followed.
            progress: Called in this thread with the bytes done and the total. If it raises, the copy stops.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Returns:
            The copied and omitted entries.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: A file cannot be read or written, another entry is in the way, or a limit is exceeded.
        """
        source = self._workspace.parts(path)
        where, target = self._workspace.local(local, follow=False)

        def work(tree: Tree, bounds: Bounds) -> Work[Transfer]:
            with telling("write", str(local)), _on_disk(where, tree) as disk:
                ends = transfer.Ends(tree, source, bounds, disk, target, NO_BOUNDS if where is not None else bounds)
                return (yield from transfer.copy(ends, self._limits, overwrite=overwrite, verb="download"))

        return await complete(self._within(work, trusted), progress)

    # -- as tar streams ------------------------------------------------------------------------------------------------

    async def tar(
        self,
        path: str | PurePath = ".",
        *,
        on_skip: Callable[[Skipped], object] | None = None,
        trusted: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file, or a folder's entries with relative paths, as an uncompressed tar stream.

        Args:
            path: The file or folder.
            on_skip: Called for each omitted entry: links, FIFOs, sockets, devices, entries that change their kind, and files
                that the session cannot read.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Yields:
            The archive's bytes. Close the generator to stop early.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: A file cannot be read, or a limit is exceeded.
        """
        parts = self._workspace.parts(path)
        packed = self._within(lambda tree, bounds: pack.pack(tree, parts, self._limits, bounds), trusted)
        async with aclosing(drain(packed, lambda item: len(item) if isinstance(item, bytes) else 0)) as batches:
            async for batch in batches:
                for item in batch:
                    if isinstance(item, Skipped) and on_skip is not None:
                        on_skip(item)
                if data := b"".join(item for item in batch if isinstance(item, bytes)):
                    yield data

    async def untar(
        self,
        stream: bytes | AsyncIterable[bytes],
        path: str | PurePath = ".",
        *,
        progress: Progress | None = None,
        trusted: bool = False,
    ) -> Transfer:
        """Unpack a tar stream, plain or gzipped, into a folder of the workspace.

        The stream may contain only files and folders, each file once. Nothing appears until the whole archive is validated;
        one invalid member rejects it. Files that the session cannot write are omitted, and named in the result.

        Args:
            stream: The archive's bytes.
            path: The folder, created if missing. Files replace files of the same name in it.
            progress: Called with the bytes read from the stream, and None.
            trusted: Whether the program acts for itself, so that the session's sandbox does not apply.

        Returns:
            The unpacked entries.

        Raises:
            InvalidInputError: An argument is invalid.
            FilesError: The archive is invalid or incomplete, or a file cannot be written.
        """
        parts = self._workspace.parts(path)
        if not isinstance(stream, (bytes, AsyncIterable)):
            raise InvalidInputError(f"stream must be bytes or an async iterable of bytes, not {type(stream).__name__}")
        unpacked = self._within(lambda tree, bounds: pack.unpack(tree, parts, self._limits, bounds), trusted)
        return await self._changing(pour(unpacked, stream, progress))

    @asynccontextmanager
    async def unpacked(self, stream: AsyncIterable[bytes]) -> AsyncIterator[tuple[int, Transfer]]:
        """Unpack a tar stream into a temporary folder in the workspace, for the duration of the context.

        Files that the session cannot write in the workspace are omitted.

        Yields:
            The open folder, and the unpacked entries.

        Raises:
            FilesError: As for `untar`.
        """
        with self._workspace.open() as tree:
            bounds = NO_BOUNDS if self._walls is None else self._walls.within(self._workspace.real)
            staging = Staging(tree, (), folder=True)
            try:
                with await in_thread(staging.folder) as folder:
                    yield folder.fd, await pour(pack.unpack(folder, (), self._limits, bounds), stream)
            finally:
                await in_thread(staging.close)

    async def _changing(self, work: Awaitable[R]) -> R:
        """Await an operation that can change files, then call `on_change`."""
        try:
            return await work
        finally:
            self._on_change()

    def _within(self, work: Callable[[Tree, Bounds], Generator[Y, S, R]], trusted: bool) -> Generator[Y, S, R]:
        """Open the workspace for the duration of an operation, and pass it the forbidden paths."""
        with self._workspace.open() as tree:
            bounds = NO_BOUNDS if trusted or self._walls is None else self._walls.within(self._workspace.real)
            return (yield from work(tree, bounds))


def _on_disk(where: str | None, workspace: Tree) -> Tree | nullcontext[Tree]:
    """Open a directory on the caller's disk, or use the workspace, whose opener closes it."""
    return nullcontext(workspace) if where is None else Tree.at(where, workspace.walk, where)


def _write(tree: Tree, parts: Parts, mode: int | None, limits: FileLimits, bounds: Bounds) -> Sink[FileInfo]:
    path = tree.name(parts)
    bounds.check_writable("write", parts)
    done = 0
    with telling("write", path), Staging(tree, parts, folder=False) as staging:
        existing = status(tree, parts)
        check_replaceable(existing, stat.S_IFREG, True)
        if mode is None and existing is not None:
            mode = existing.st_mode & 0o777
        with held(staging.file(0o666)) as fd:
            if mode is not None:
                os.fchmod(fd, mode)
            while (data := (yield)) is not None:
                done += len(data)
                if done > limits.max_file_bytes:
                    raise over("write", path, "it is larger", "max_file_bytes", limits.max_file_bytes)
                transfer.write_all(fd, data)
            written = describe(parts, os.fstat(fd))
        staging.commit_file(overwrite=True)
    return written


def _read(tree: Tree, parts: Parts, most: int, bounds: Bounds) -> Work[bytes]:
    path = tree.name(parts)
    bounds.check_readable("read", parts)
    with telling("read", path):
        fd, info = tree.open_file(parts)
        with held(fd):
            if info.st_size > most:
                what = f"it has {info.st_size:,} bytes"
                raise over("read", path, what, "max_bytes", most, "pass a larger max_bytes, or download() it")
            # Only the size at opening: a growing file would have no end.
            data = bytearray()
            while len(data) < info.st_size and (piece := os.read(fd, min(MIB, info.st_size - len(data)))):
                data += piece
                yield None
    return bytes(data)


def _list(tree: Tree, parts: Parts, recursive: bool, limits: FileLimits, bounds: Bounds) -> Work[list[FileInfo]]:
    found = []
    bounds.check_readable("list", parts)
    with telling("list", tree.name(parts)):
        for below, info in tree.scan(parts, limits, "list", recursive=recursive):
            of_branch = not parts and below[0].startswith(BRANCHES)
            if not of_branch and not bounds.hides(parts + below):
                found.append(describe(parts + below, info))
            yield None
    return sorted(found, key=lambda entry: entry.path)


def _stat(tree: Tree, parts: Parts, bounds: Bounds) -> Work[FileInfo]:
    bounds.check_readable("stat", parts)
    yield None
    with telling("stat", tree.name(parts)):
        return describe(parts, tree.lstat(parts))


def _mkdir(tree: Tree, parts: Parts, bounds: Bounds) -> Work[None]:
    bounds.check_writable("make the folder", parts)
    yield None
    with telling("make the folder", tree.name(parts)):
        os.close(tree.make_directories(parts))


def _remove(tree: Tree, parts: Parts, recursive: bool, bounds: Bounds) -> Work[None]:
    bounds.check_removable("remove", parts)
    with telling("remove", tree.name(parts)), tree.parent(parts) as folder:
        if not recursive and stat.S_ISDIR(os.lstat(parts[-1], dir_fd=folder).st_mode):
            os.rmdir(parts[-1], dir_fd=folder)
            return
        for _step in remove_tree(folder, parts[-1], tree.walk):
            yield None
