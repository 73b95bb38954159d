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
"""How the files of the workspace are handled: they stay as they are, or their state belongs to the checkpoint."""


class ForkKeywords(TypedDict, total=False):
    """The arguments of `Session.fork` that do not change what it returns, for type checkers; a test compares the two."""

    files: FilesMode | None
    seeds: Sequence[int] | None
    same_random_state: bool


def check_seeds(seeds: Iterable[object]) -> None:
    """Check that random states can begin with these.

    Raises:
        InvalidInputError: One of them is not an integer of 64 bits.
    """
    for seed in seeds:
        if type(seed) is not int or not -(2**63) <= seed < 2**63:
            raise InvalidInputError(f"a seed must be an integer of 64 bits, not {shown(seed)}")


def branch_names(names: object) -> tuple[str, ...]:
    """Return the names of branches, and check that they are several names: a string would be one for each letter.

    Raises:
        InvalidInputError: They are a string, a number, or anything else that is not a list.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(f"branches need a list of names, such as ['left', 'right'], not {shown(names)}")
    return tuple(names)


def undo_note(result: Mapping[str, Any]) -> str:
    """Return what a result's text says at its end of why the code cannot be undone; empty if it says nothing of that.

    For fronts that show output as it comes, and not the text.

    Args:
        result: A result as data.
    """
    why = result["not_undoable"]
    return f"this cell cannot be undone: {why}" if why and why in (result["text"] or "") else ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord(Plain):
    """A checkpoint of a named session.

    Attributes:
        id: Its unique id.
        name: The name given by its maker; may be empty.
        made_at: When it was made (ISO 8601, UTC).
        execution_count: The number of the last cell before it.
        automatic: Whether it was made automatically.
        files: ``copy`` if the state of the workspace's files belongs to it, else ``shared``.
        cell: The id of the execution of the last cell before it, in sessions with names; else empty.
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
    """What an undo or a redo has done to one file, link or folder.

    Attributes:
        path: Its path relative to the workspace.
        action: ``reverted``: it has an earlier content again. ``removed``: it was removed. ``created``: it is there again.
        size: The size in bytes of what was replaced or removed; None if there was none, or if it is not a file.
        restorable: Whether what was replaced or removed is in the trash.
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
        execution_count: The number of the last cell that still counts.
        files: What was done to files of the workspace: at most the first 1,000.
        files_left: Files that stay as they are, and why: somebody else has changed them since, or `partial` allowed it. Empty
            if all were brought back.
        outside: Calls of tools, commands and connections that were allowed meanwhile. What they did outside is not undone.
        trash: The id of the entry of the trash that holds what was replaced or removed; empty if nothing was.
        redoable: How many undos `redo` can take back, until the next cell begins.
    """

    cells: list[HistoryEntry]
    execution_count: int
    files: list[FileAction] = field(default_factory=list)
    files_left: str = ""
    outside: list[str] = field(default_factory=list)
    trash: str = ""
    redoable: int = 0

    def summary(self, session: str = "", verb: str = "undid") -> str:
        """Return what has happened in one line, and how to get back what was replaced or removed.

        Args:
            session: The session's name, for a command.
            verb: What was done to the cells.
        """
        return undone_summary(self.to_dict(), session, verb)


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
        path: Where it was, relative to the workspace.
        size: Its size in bytes.
    """

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class TrashEntry(Plain):
    """What one operation has moved to the trash of a session.

    Attributes:
        id: Its id, which sorts by time.
        at: When (seconds since 1970).
        operation: What it was: ``undo``, ``redo``, ``restore``, ``adopt``, ``load`` or ``trash``.
        cell: The number of the last undone cell; 0 if it undid none.
        files: The files: at most the first 1,000.
        more: How many further files there are.
        expires: When it is removed (seconds since 1970), or earlier if the trash of all sessions is full.
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
    """Files that a restore has changed. Paths are relative to the workspace.

    Attributes:
        written: Files and links that were made or replaced.
        removed: Files, links and folders that were removed; what was in such a folder is not named.
        kept: Paths that are not as in the snapshot, and stay so, because no snapshot would hold them.
        more: How many further paths there are: at most 1,000 of each kind are listed.
        trash: The id of the entry of the trash that holds what was replaced or removed; empty if nothing was.
    """

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    more: int = 0
    trash: str = ""


@dataclass(frozen=True, slots=True)
class Restored(CheckpointRecord):
    """A checkpoint that a session has gone back to.

    Attributes:
        changes: The changes made to files, if the checkpoint holds any.
    """

    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file, link or folder that differs.

    Attributes:
        path: Its path relative to the workspace; that of a folder ends with a slash.
        before: Its size before, in bytes; None if it was not there, or is not a file.
        after: Its size after.
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
        changed: Files that have another content or other permissions, and links that lead elsewhere.
        deleted: Paths that exist only in the earlier state.
        more: How many further files differ: at most 1,000 of each kind are listed.
    """

    new: tuple[FileChange, ...] = ()
    changed: tuple[FileChange, ...] = ()
    deleted: tuple[FileChange, ...] = ()
    more: int = 0


MAX_FILE_TEXT = 256 * 1024
"""Maximum bytes of a file that is compared line by line."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The content at a path in one state of a workspace.

    Attributes:
        size: The file's size in bytes; None if it is not a file.
        text: Its text; None if it has none, or more than 256 KiB.
        why: Why there is no text, in words; empty if there is one.
    """

    size: int | None = None
    text: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FileVersions(Plain):
    """A file in two states of a workspace.

    Attributes:
        path: Its path relative to the workspace.
        before: The earlier one; None if there was none.
        after: The later one; None if there was none.
    """

    path: str
    before: FileVersion | None = None
    after: FileVersion | None = None

    def diff(self) -> str:
        """Return the differences between the texts in the unified format, empty if there are none; see ``diff -u``.

        Raises:
            FilesError: One of them has no text; the message says why.
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
    """Differences between a checkpoint and the present state.

    Attributes:
        variables: New, changed and deleted variables, and those that cannot be compared.
        files: New, changed and deleted files; None if the checkpoint holds no files (``files="copy"``).
    """

    variables: VariableChanges
    files: FileChanges | None = None

    def __bool__(self) -> bool:
        return bool(self.variables) or (self.files is not None and self.files != FileChanges())
