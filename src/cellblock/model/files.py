"""Information about a file in a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cellblock.model.plain import Plain

FileKind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class FileInfo(Plain):
    """A file, folder or other entry of a workspace. Symbolic links are described, never followed.

    Attributes:
        path: Path relative to the workspace; the workspace itself is ``.``. Bytes that are not UTF-8 become lone surrogates
            (`os.fsdecode`), so that the path names the same file when it is passed back.
        kind: ``file``, ``directory``, ``symlink``, or ``other`` for FIFOs, sockets and devices.
        size: Size in bytes as reported by the file system. A sparse file may occupy far less.
        modified: Modification time in seconds since 1970. The session's code can set any number.
        mode: Permission bits.
    """

    path: str
    kind: FileKind
    size: int
    modified: float
    mode: int


FileChangeKind = Literal["watching", "created", "modified", "removed", "renamed", "attributes"]


@dataclass(frozen=True, slots=True)
class FileChange(Plain):
    """A change in a watched folder.

    Attributes:
        kind: ``created``, also by a rename; ``modified``, by a write; ``removed``; ``renamed`` away from this path (the new
            path, if watched, is ``created``); ``attributes``, such as permissions. For clients of the daemon, ``watching``
            comes first, once the watch is active.
        path: Path relative to the watched folder.
    """

    kind: FileChangeKind
    path: str
