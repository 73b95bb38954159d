"""Information about a file in a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cellblock.model.plain import Plain

FileKind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class FileInfo(Plain):
    """One file, folder or other thing in a workspace. Symbolic links are described, never followed.

    Attributes:
        path: Its path relative to the workspace; the workspace itself is ``.``. Bytes that are not UTF-8 become lone
            surrogates (`os.fsdecode`), so that the path names the same file when it is passed back.
        kind: ``file``, ``directory``, ``symlink``, or ``other`` for FIFOs, sockets and devices.
        size: Its size in bytes as reported by the file system; a sparse file may claim far more than it occupies.
        modified: When it was last modified, in seconds since 1970. The code in the session can set any number here.
        mode: Its permission bits.
    """

    path: str
    kind: FileKind
    size: int
    modified: float
    mode: int


FileChangeKind = Literal["watching", "created", "modified", "removed", "renamed", "attributes"]


@dataclass(frozen=True, slots=True)
class FileChange(Plain):
    """One change in a watched folder.

    Attributes:
        kind: ``created``, also by another name; ``modified``: its content was written; ``removed``; ``renamed``: it has
            another name or place now, which is reported as ``created`` if that is watched; ``attributes``, such as its
            permissions. For clients of the daemon, ``watching`` comes first: the folder is watched now.
        path: Its path relative to the watched folder.
    """

    kind: FileChangeKind
    path: str
