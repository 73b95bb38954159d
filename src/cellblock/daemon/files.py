"""What clients ask about the files of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.daemon.messages import ListFiles, ReadFile, RemoveFile, WriteFile

if TYPE_CHECKING:
    from cellblock.host.files import FileInfo, Files


async def answer(files: Files, request: ListFiles | ReadFile | WriteFile | RemoveFile, body: bytes) -> Any:
    """Do what a client asks; return JSON data or bytes.

    Raises:
        InvalidInputError, FilesError: As `Files` has them.
    """
    match request:
        case ListFiles(path=path, recursive=recursive):
            return [_as_data(info) for info in await files.list(path, recursive=recursive)]
        case ReadFile(path=path, max_bytes=most):
            return await files.read(path, max_bytes=most)
        case WriteFile(path=path):
            return _as_data(await files.write(path, body))
        case RemoveFile(path=path, recursive=recursive):
            await files.remove(path, recursive=recursive)
            return True


def _as_data(info: FileInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__slots__}
