"""Files as E2B's clients list and look at them: envd's service ``filesystem.Filesystem``."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from cellblock.errors import FilesError
from cellblock.fronts.e2b.connect import Message, unary, unsupported
from cellblock.model.programs import ExecResult
from cellblock.operations.files import ListFiles, RemoveFile
from cellblock.operations.programs import Exec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellblock.fronts.e2b.contexts import Contexts, Workspace

_SERVICE = "/filesystem.Filesystem"
_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_ERRNOS = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR)
_SECONDS = 60
_MODES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}


class PathMessage(Message):
    """What names a file."""

    path: str = ""


class ListMessage(PathMessage):
    """What names a directory, and how far to look into it."""

    depth: int = 0


class MoveMessage(Message):
    """What names a file, and what it is to be named."""

    source: str = ""
    destination: str = ""


async def get_stat(request: Request, message: PathMessage) -> dict[str, Any]:
    """Describe a file, a directory or a link."""
    contexts = _contexts(request)
    return {"entry": entry(contexts.workspace, await _find(contexts, contexts.workspace.inner(message.path)))}


async def list_directory(request: Request, message: ListMessage) -> dict[str, Any]:
    """List a directory, and those below it as far as the client wants."""
    contexts = _contexts(request)
    path, depth = contexts.workspace.inner(message.path), max(message.depth, 1)
    found = await contexts.ask(lambda session: ListFiles(session, path, recursive=depth > 1))
    most = depth + (0 if path == "." else path.count("/") + 1)
    near = [info for info in found if info["path"].count("/") < most]
    return {"entries": [entry(contexts.workspace, info) for info in near]}


async def make_directory(request: Request, message: PathMessage) -> dict[str, Any]:
    """Make a directory, and those above it. It is an error if there is one."""
    contexts = _contexts(request)
    path = contexts.workspace.inner(message.path)
    await _run(contexts, path, 'mkdir -p -- "$(dirname -- "$1")" && mkdir -- "$1"', path)
    return {"entry": entry(contexts.workspace, await _find(contexts, path))}


async def move(request: Request, message: MoveMessage) -> dict[str, Any]:
    """Give a file or a directory another name; a file of that name is replaced."""
    contexts = _contexts(request)
    source, target = (contexts.workspace.inner(path) for path in (message.source, message.destination))
    await _run(contexts, source, 'mkdir -p -- "$(dirname -- "$2")" && mv -T -- "$1" "$2"', source, target)
    return {"entry": entry(contexts.workspace, await _find(contexts, target))}


async def remove(request: Request, message: PathMessage) -> dict[str, Any]:
    """Remove a file, or a directory with all that is in it. What is not there is removed already, as for envd."""
    contexts = _contexts(request)
    path = contexts.workspace.inner(message.path)
    try:
        await contexts.ask(lambda session: RemoveFile(session, path, recursive=True))
    except FilesError as error:
        if error.errno != errno.ENOENT:
            raise
    return {}


def entry(workspace: Workspace, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what E2B's clients are told of a file (`FileInfo.to_dict`)."""
    path, kind = workspace.outer(info["path"]), info["kind"]
    try:
        modified = datetime.fromtimestamp(info["modified"], UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # code can set any time
        modified = "1970-01-01T00:00:00Z"
    return {
        "name": posixpath.basename(path),
        "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": info["size"],
        "mode": info["mode"],
        "permissions": stat.filemode(_MODES.get(kind, 0) | info["mode"]),
        "owner": "user",
        "group": "user",
        "modifiedTime": modified,
    }


async def _run(contexts: Contexts, about: str, command: str, *paths: str) -> None:
    """Run a command in the session, which follows its own links with its own rights, and not in this process.

    Raises:
        FilesError: It failed.
    """
    arguments = (contexts.workspace.outer(path) for path in paths)
    run = partial(Exec, command=("/bin/sh", "-c", command, "sh", *arguments), env={"LC_ALL": "C"}, timeout=_SECONDS * 1000)
    result = ExecResult.from_dict(await contexts.ask(run))
    if not result.ok:
        said = result.err.strip().rpartition("\n")[2] or result.reason
        number = next((number for number in _ERRNOS if said.endswith(os.strerror(number))), None)
        raise FilesError(f"{about[:200]!r}: {said[:500]}", path=about, errno=number)


async def _find(contexts: Contexts, path: str) -> Mapping[str, Any]:
    """Return what is known of a file.

    Raises:
        FilesError: It is not there.
    """
    if path == ".":
        return {"path": ".", "kind": "directory", "size": 0, "mode": 0o755, "modified": 0.0}
    above = posixpath.dirname(path) or "."
    try:
        for info in await contexts.ask(lambda session: ListFiles(session, above)):
            if info["path"] == path:
                return info
    except FilesError as error:
        if error.errno != errno.ENOTDIR:
            raise
    raise FilesError(f"{path[:200]!r} is not there", path=path, errno=errno.ENOENT)


def _contexts(request: Request) -> Contexts:
    contexts: Contexts = request.app.state.contexts
    return contexts


ROUTES = [
    unary(f"{_SERVICE}/Stat", PathMessage, get_stat),
    unary(f"{_SERVICE}/ListDir", ListMessage, list_directory),
    unary(f"{_SERVICE}/MakeDir", PathMessage, make_directory),
    unary(f"{_SERVICE}/Move", MoveMessage, move),
    unary(f"{_SERVICE}/Remove", PathMessage, remove),
    *(
        unsupported(f"{_SERVICE}/{name}", f"{name} is not served here: docs/e2b.md says what is")
        for name in ("WatchDir", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher")
    ),
]
