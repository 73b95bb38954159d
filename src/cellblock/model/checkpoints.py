"""Data about checkpoints: records, undone cells, changed files."""

from __future__ import annotations

import difflib
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from cellblock.errors import FilesError, InvalidInputError, shown
from cellblock.model import HistoryEntry
from cellblock.model.plain import Plain
from cellblock.model.variables import VariableChanges

FilesMode: TypeAlias = Literal["shared", "copy"]
"""How the files of the workspace are handled: they are unchanged, or their state belongs to the checkpoint."""


class ForkKeywords(TypedDict, total=False):
    """The arguments of `Session.fork` that do not change its return type, for type checkers. A test compares the two."""

    files: FilesMode | None
    seeds: Sequence[int] | None
    same_random_state: bool


def check_seeds(seeds: Iterable[object]) -> None:
    """Validate seeds of random states.

    Raises:
        InvalidInputError: A seed is not a 64-bit integer.
    """
    for seed in seeds:
        if type(seed) is not int or not -(2**63) <= seed < 2**63:
            raise InvalidInputError(f"a seed must be an integer of 64 bits, not {shown(seed)}")


def branch_names(names: object) -> tuple[str, ...]:
    """Validate and return the names of branches. A string is rejected, because it would be one name per letter.

    Raises:
        InvalidInputError: The names are not a list.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"branches need a list of names, such as ['left', 'right'], not {shown(names)}")
    return tuple(names)


def undo_note(result: Mapping[str, Any]) -> str:
    """Return the sentence in a result's text about why the code cannot be undone; empty if none.

    For interfaces that show output as it arrives, not the text.

    Args:
        result: A result as data.
    """
    why = result["not_undoable"]
    return f"this cell cannot be undone: {why}" if why and why in (result["text"] or "") else ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord(Plain):
    """A checkpoint of a named session.

    Attributes:
        id: Unique id.
        name: Name given by the user; may be empty.
        made_at: Creation time (ISO 8601, UTC).
        execution_count: Number of the last cell before it.
        automatic: Whether it was created automatically.
        files: ``copy`` if it includes the workspace's files, else ``shared``.
        cell: Id of the execution of the last cell before it, in named sessions; else empty.
    """

    id: str
    name: str
    made_at: str
    execution_count: int
    automatic: bool
    files: str
    cell: str = ""


@dataclass(frozen=True, slots=True)
class FileAction(Plain):
    """The effect of an undo or a redo on one file, link or folder.

    Attributes:
        path: Path relative to the workspace.
        action: ``reverted`` to earlier content, ``removed``, or ``created`` again.
        size: Size in bytes of the replaced or removed file; None if there was no file.
        restorable: Whether the replaced or removed file is in the trash.
    """

    path: str
    action: Literal["reverted", "removed", "created"]
    size: int | None = None
    restorable: bool = False


@dataclass(frozen=True, slots=True)
class Undone(Plain):
    """The result of `Session.undo` and `Session.redo`.

    Attributes:
        cells: The cells, oldest first.
        execution_count: Number of the last cell that still counts.
        files: Changes of workspace files, at most the first 1,000.
        files_left: Files left unchanged, with reasons: later changes by others, or `partial`. Empty if all were restored.
        outside: Tool calls, commands and connections approved meanwhile. Their effects outside the session are not undone.
        trash: Id of the trash entry with the replaced and removed files; empty if none.
        redoable: Number of undos that `redo` can revert until the next cell begins.
    """

    cells: list[HistoryEntry]
    execution_count: int
    files: list[FileAction] = field(default_factory=list)
    files_left: str = ""
    outside: list[str] = field(default_factory=list)
    trash: str = ""
    redoable: int = 0

    def summary(self, session: str = "") -> str:
        """Return a one-line summary of an undo, and how to restore replaced and removed files.

        Args:
            session: The session's name, for a command.
        """
        return undone_summary(self.to_dict(), session)


def undone_summary(undone: Mapping[str, Any], session: str = "", verb: str = "undid") -> str:
    """Return `Undone.summary` of an answer as data."""
    counts = [str(cell["execution_count"]) for cell in undone["cells"] if cell["execution_count"]]
    cells = f"cell {counts[0]}" if len(counts) == 1 else f"cells {counts[0]} to {counts[-1]}" if counts else "no cell"
    kinds = {"reverted": "reverted", "removed": "removed", "created": "restored"}
    told: list[str] = []
    for action, word in kinds.items():
        if number := sum(file["action"] == action for file in undone["files"]):
            told.append(f"{number} {'file' if number == 1 else 'files'} {word}" if not told else f"{number} {word}")
    text = f"{verb} {cells}" + (f": {', '.join(told)}" if told else "")
    kept = [file["path"] for file in undone["files"] if file["restorable"]]
    if kept:
        text += f" (restore: cellblock trash restore {session or 'SESSION'} {shlex.quote(kept[0])})"
    return text


@dataclass(frozen=True, slots=True)
class TrashedFile(Plain):
    """A file or link in the trash.

    Attributes:
        path: Original path relative to the workspace.
        size: Size in bytes.
    """

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class TrashEntry(Plain):
    """The files that one operation moved to a session's trash.

    Attributes:
        id: Id, which sorts by time.
        at: Time in seconds since 1970.
        operation: ``undo``, ``redo``, ``restore``, ``adopt``, ``load`` or ``trash``.
        cell: Number of the last undone cell; 0 if none.
        files: The files, at most the first 1,000.
        more: Number of further files.
        expires: Time of removal in seconds since 1970. It is earlier if the trash of all sessions is full.
    """

    id: str
    at: float
    operation: str
    cell: int
    files: tuple[TrashedFile, ...] = ()
    more: int = 0
    expires: float = 0.0


@dataclass(frozen=True, slots=True)
class Changes(Plain):
    """The file changes of a restore, with paths relative to the workspace.

    Attributes:
        written: Files and links that were created or replaced.
        removed: Files, links and folders that were removed, without the contents of such folders.
        kept: Paths not restored because snapshots exclude them.
        more: Number of further paths. At most 1,000 of each kind are listed.
        trash: Id of the trash entry with the replaced and removed files; empty if none.
    """

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    more: int = 0
    trash: str = ""


@dataclass(frozen=True, slots=True)
class Restored(CheckpointRecord):
    """A checkpoint that a session restored.

    Attributes:
        changes: The file changes, if the checkpoint has files.
    """

    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file, link or folder that differs.

    Attributes:
        path: Path relative to the workspace, with a trailing slash for folders.
        before: Size before, in bytes; None if it was missing or is not a file.
        after: Size after, likewise.
    """

    path: str
    before: int | None
    after: int | None


MAX_FILE_CHANGES = 1000
"""How many files are listed of those that are new, that have changed, and that are deleted: code can make 100,000."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Differences between two states of a workspace, by path.

    Attributes:
        new: Paths that exist only in the later state.
        changed: Files with other content or permissions, and links with another target.
        deleted: Paths that exist only in the earlier state.
        more: Number of further paths. At most 1,000 of each kind are listed.
    """

    new: tuple[FileChange, ...] = ()
    changed: tuple[FileChange, ...] = ()
    deleted: tuple[FileChange, ...] = ()
    more: int = 0


MAX_FILE_TEXT = 256 * 1024
"""Maximum bytes of a file that is compared line by line."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The content of a path in one state of a workspace.

    Attributes:
        size: Size in bytes; None if it is not a file.
        text: Text; None if it is not text, or exceeds 256 KiB.
        why: Why there is no text, in words; empty if there is one.
    """

    size: int | None = None
    text: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FileVersions(Plain):
    """A file in two states of a workspace.

    Attributes:
        path: Path relative to the workspace.
        before: The earlier version; None if it did not exist.
        after: The later version; None if it did not exist.
    """

    path: str
    before: FileVersion | None = None
    after: FileVersion | None = None

    def diff(self) -> str:
        """Return the differences between the texts in the unified format, as from ``diff -u``; empty if none.

        Raises:
            FilesError: A version has no text. The message says why.
        """
        for one in (self.before, self.after):
            if one is not None and one.text is None:
                raise FilesError(f"{self.path!r} cannot be compared line by line: {one.why}", path=self.path)
        texts = ["" if one is None else one.text or "" for one in (self.before, self.after)]
        before, after = (list(io.StringIO(text, newline="\n")) for text in texts)  # others end lines with more than "\n"
        old = "/dev/null" if self.before is None else f"a/{self.path}"
        new = "/dev/null" if self.after is None else f"b/{self.path}"
        lines = difflib.unified_diff(before, after, old, new)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True)
class StateChanges(Plain):
    """Differences between a checkpoint and the current state.

    Attributes:
        variables: New, changed and deleted variables, and those that cannot be compared.
        files: New, changed and deleted files; None if the checkpoint has no files (``files="copy"``).
    """

    variables: VariableChanges
    files: FileChanges | None = None

    def __bool__(self) -> bool:
        return bool(self.variables) or (self.files is not None and self.files != FileChanges())
