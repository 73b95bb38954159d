"""Listing and managing files for E2B's clients: envd's service ``filesystem.Filesystem``."""

from __future__ import annotations

import errno
import posixpath
import stat
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from cellblock.errors import FilesError
from cellblock.fronts.e2b.connect import Message, Messages, pause_of, stream, unary
from cellblock.fronts.e2b.contexts import contexts_of
from cellblock.fronts.e2b.watching import Watchers
from cellblock.operations.files import ListFiles, MakeFolder, RemoveFile, RenameFile, StatFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellblock.fronts.e2b.contexts import Contexts, Workspace

_SERVICE = "/filesystem.Filesystem"
_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_MODES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}


class PathMessage(Message):
    """The path of a file."""

    path: str = ""


class ListMessage(PathMessage):
    """The path of a directory, and how many levels of it to list."""

    depth: int = 0


class MoveMessage(Message):
    """The path of a file, and its new path."""

    source: str = ""
    destination: str = ""


class WatchMessage(PathMessage):
    """The path of a directory to watch, and whether to include subdirectories."""

    recursive: bool = False


class WatcherMessage(Message):
    """The id of a watcher."""

    watcher_id: str = ""


async def get_stat(request: Request, message: PathMessage) -> dict[str, Any]:
    """Describe a file, a directory or a link."""
    contexts = contexts_of(request)
    return {"entry": entry(contexts.workspace, await _find(contexts, contexts.workspace.inner(message.path)))}


async def list_directory(request: Request, message: ListMessage) -> dict[str, Any]:
    """List a directory to the requested depth."""
    contexts = contexts_of(request)
    path, depth = contexts.workspace.inner(message.path), max(message.depth, 1)
    found = await contexts.ask(lambda session: ListFiles(session, path, recursive=depth > 1))
    most = depth + (0 if path == "." else path.rstrip("/").count("/") + 1)
    near = [info for info in found if info["path"].count("/") < most]
    return {"entries": [entry(contexts.workspace, info) for info in near]}


async def make_directory(request: Request, message: PathMessage) -> dict[str, Any]:
    """Create a directory and its parents. An existing directory is an error."""
    contexts = contexts_of(request)
    path = contexts.workspace.inner(message.path)
    try:
        await _find(contexts, path)
    except FilesError:
        await contexts.ask(partial(MakeFolder, path=path))
    else:
        raise FilesError(f"{path[:200]!r} is there already", path=path, errno=errno.EEXIST)
    return {"entry": entry(contexts.workspace, await _find(contexts, path))}


async def move(request: Request, message: MoveMessage) -> dict[str, Any]:
    """Rename a file or a directory; an existing file is replaced."""
    contexts = contexts_of(request)
    source, target = (contexts.workspace.inner(path) for path in (message.source, message.destination))
    if above := posixpath.dirname(target):
        await contexts.ask(partial(MakeFolder, path=above))
    await contexts.ask(partial(RenameFile, path=source, to=target))
    return {"entry": entry(contexts.workspace, await _find(contexts, target))}


async def remove(request: Request, message: PathMessage) -> dict[str, Any]:
    """Remove a file, or a directory with its content. A missing path is no error, as for envd."""
    contexts = contexts_of(request)
    path = contexts.workspace.inner(message.path)
    try:
        await contexts.ask(lambda session: RemoveFile(session, path, recursive=True))
    except FilesError as error:
        if error.errno != errno.ENOENT:
            raise
    return {}


def entry(workspace: Workspace, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a file (`FileInfo.to_dict`) for E2B's clients."""
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


async def watch_directory(request: Request, message: WatchMessage) -> Messages:
    """Stream changes in a directory while the client listens."""
    return _watchers(request).events(message.path, recursive=message.recursive, every=pause_of(request))


async def create_watcher(request: Request, message: WatchMessage) -> dict[str, Any]:
    """Watch a directory for a client that polls."""
    return {"watcherId": await _watchers(request).make(message.path, recursive=message.recursive)}


async def get_watcher_events(request: Request, message: WatcherMessage) -> dict[str, Any]:
    """Return the changes since the client's last poll."""
    return {"events": _watchers(request).take(message.watcher_id)}


async def remove_watcher(request: Request, message: WatcherMessage) -> dict[str, Any]:
    """Stop watching a directory."""
    await _watchers(request).remove(message.watcher_id)
    return {}


async def _find(contexts: Contexts, path: str) -> Mapping[str, Any]:
    """Describe a file.

    Raises:
        FilesError: The file does not exist.
    """
    try:
        return await contexts.ask(partial(StatFile, path=path))
    except FilesError as error:
        if error.errno == errno.ENOTDIR:
            raise FilesError(f"{path[:200]!r} is not there", path=path, errno=errno.ENOENT) from None
        raise


def _watchers(request: Request) -> Watchers:
    watchers: Watchers = request.app.state.watchers
    return watchers


ROUTES = [
    unary(f"{_SERVICE}/Stat", PathMessage, get_stat),
    unary(f"{_SERVICE}/ListDir", ListMessage, list_directory),
    unary(f"{_SERVICE}/MakeDir", PathMessage, make_directory),
    unary(f"{_SERVICE}/Move", MoveMessage, move),
    unary(f"{_SERVICE}/Remove", PathMessage, remove),
    stream(f"{_SERVICE}/WatchDir", WatchMessage, watch_directory),
    unary(f"{_SERVICE}/CreateWatcher", WatchMessage, create_watcher),
    unary(f"{_SERVICE}/GetWatcherEvents", WatcherMessage, get_watcher_events),
    unary(f"{_SERVICE}/RemoveWatcher", WatcherMessage, remove_watcher),
]
