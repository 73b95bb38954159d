"""What clients ask about the files of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellblock.daemon.messages import MAX_REQUEST, ListFiles, ReadFile, ReadPart, RemoveFile, WriteFile, WritePart
from cellblock.errors import InvalidInputError

if TYPE_CHECKING:
    from cellblock.daemon.uploads import Uploads
    from cellblock.host.files import FileInfo, Files


async def answer(
    files: Files,
    request: ListFiles | ReadFile | WriteFile | RemoveFile | ReadPart | WritePart,
    body: bytes,
    uploads: Uploads,
) -> Any:
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
        case ReadPart(path=path, offset=offset, count=count):
            if not 0 <= offset < 2**63 or not 0 <= count <= MAX_REQUEST:
                raise InvalidInputError(f"a part has an offset, and at most {MAX_REQUEST} bytes")
            info, data = await files.read_part(path, offset, count)
            return {"file": _as_data(info), "data": data}
        case WritePart(upload=upload, abort=True):
            await uploads.give_up(f"{request.session}/{upload}")
            return None
        case WritePart(path=path, upload=upload, more=more):
            written = await uploads.take(files, path, f"{request.session}/{upload}", body, more=more)
            return None if written is None else _as_data(written)
        case RemoveFile(path=path, recursive=recursive):
            await files.remove(path, recursive=recursive)
            return True


def _as_data(info: FileInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__slots__}
