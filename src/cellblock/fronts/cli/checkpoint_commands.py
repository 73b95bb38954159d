"""The commands checkpoint, restore, undo, redo, trash, diff, fetch, apply, fork and adopt."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import STATES, Json, Session, known_names
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.output import moment, print_done, print_json, print_table, since, wants_json
from cellblock.fronts.cli.problems import OK, say
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    Fork,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.sessions import List

CHECKPOINT = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's name or id.")]
UNTIL = Annotated[
    str,
    typer.Option("--until", metavar="CHECKPOINT", help="A second checkpoint, to compare with instead of the current state."),
]

_StopProcesses = Annotated[
    bool, typer.Option("--stop-processes", help="Stop the programs beside the kernel first. By default they keep running.")
]

_MOST_BRANCHES = 100
_SHOWN = 60
"""Characters of a value in a table."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    for command in (checkpoint, checkpoints, restore, undo, redo, trash, diff, fetch, apply, fork, adopt):
        app.command(rich_help_panel=STATES)(command)


def checkpoint(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A name for the checkpoint.")] = "",
    files: Annotated[bool, typer.Option("--files", help="Include the files of the workspace.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the checkpoint of this name or id instead.")] = False,
    as_json: Json = False,
) -> int:
    """Create a checkpoint of a session's state."""
    if drop:
        if not name:
            raise InvalidInputError(f"name the checkpoint to drop: cellblock checkpoint {session} CHECKPOINT --drop")
        ask(DropCheckpoint(session, name))
        print_done({"dropped": name}, f"{printable(name, lines=False)} is dropped", as_json)
        return OK
    made = ask(MakeCheckpoint(session, name, "copy" if files else "shared"))
    if wants_json(as_json):
        print_json(made)
        return OK
    print(f"{made['id']}: the state after cell {made['execution_count']}")
    return OK


def checkpoints(session: Session, as_json: Json = False) -> int:
    """List the checkpoints of a session."""
    found = ask(Checkpoints(session))
    if wants_json(as_json):
        print_json({"checkpoints": found})
        return OK
    rows = [
        (
            one["id"],
            one["name"],
            str(one["execution_count"]),
            one["files"],
            "automatic" if one["automatic"] else "kept",
            f"{since(one['made_at'])} ago",
        )
        for one in found
    ]
    print_table(("id", "name", "after cell", "files", "kind", "made"), rows, empty="The session has no checkpoints.")
    return OK


def restore(session: Session, checkpoint: CHECKPOINT, stop_processes: _StopProcesses = False, as_json: Json = False) -> int:
    """Restore a checkpoint. It can be restored any number of times."""
    gone_to = ask(Restore(session, checkpoint, "stop" if stop_processes else "keep"))
    if wants_json(as_json):
        print_json(gone_to)
        return OK
    print(f"restored the state after cell {gone_to['execution_count']}")
    _print_changes(gone_to["changes"])
    return OK


def _print_changes(changes: dict[str, Any]) -> None:
    for kind in ("written", "removed", "kept"):
        for path in changes[kind]:
            print(f"{kind}: {printable(path, lines=False)}")
    if changes["more"]:
        print(f"and {changes['more']:,} more")


def undo(
    session: Session,
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many cells to undo.")] = 1,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="If an exact undo is impossible, undo more cells and skip files that cannot be restored."
        ),
    ] = False,
    stop_processes: _StopProcesses = False,
    as_json: Json = False,
) -> int:
    """Undo the last cells of a session, and what they have changed in its workspace."""
    undone = ask(Undo(session, count, partial, "stop" if stop_processes else "keep"))
    if wants_json(as_json):
        print_json(undone)
        return OK
    for cell in undone["cells"]:
        first = (cell["code"].strip().splitlines() or [""])[0]
        print(f"undone: [{cell['execution_count'] or ' '}] {printable(first, lines=False)[:100]}")
    _print_undone(undone, session, "undid")
    return OK


def _print_undone(undone: dict[str, Any], session: str, verb: str) -> None:
    """Print the file changes of an undo or a redo, and how to restore replaced or removed files."""
    from cellblock.model.checkpoints import undone_summary

    for file in undone["files"]:
        print(f"{file['action']}: {printable(file['path'], lines=False)}")
    print(printable(undone_summary(undone, session, verb), lines=False))
    if undone["files_left"]:
        say(f"cellblock: not all files were restored: {printable(undone['files_left'], lines=False)}")
    for call in undone["outside"]:
        say(f"cellblock: not undone: {printable(call, lines=False)}")


def redo(session: Session, as_json: Json = False) -> int:
    """Reverse the last undo of a session, until its next cell begins."""
    redone = ask(Redo(session))
    if wants_json(as_json):
        print_json(redone)
        return OK
    _print_undone(redone, session, "redid")
    return OK


def trash(
    action: Annotated[str, typer.Argument(metavar="list|show|restore", help="What to do.")],
    session: Session,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or folder of the workspace.")] = "",
    entry: Annotated[str, typer.Option("--entry", metavar="ID", help="An operation; by default the newest one.")] = "",
    as_json: Json = False,
) -> int:
    """List, show or restore files that undo, redo, restore and adopt have replaced or removed."""
    if action not in ("list", "show", "restore"):
        raise InvalidInputError(f"trash can list, show or restore, not {action!r:.100}")
    if action == "restore":
        changes = ask(RestoreTrash(session, path, entry))
        if wants_json(as_json):
            print_json(changes)
        else:
            _print_changes(changes)
        return OK
    entries = [one for one in ask(Trash(session)) if not entry or one["id"] == entry]
    if path:
        entries = [one for one in entries if any(_is_in(file["path"], path) for file in one["files"])]
    if action == "show":
        entries = entries[:1]
    if wants_json(as_json):
        print_json({"entries": entries})
        return OK
    if action == "list":
        rows = [(one["id"], moment(one["at"]), one["operation"], _cell(one), _files_of(one)) for one in entries]
        print_table(("id", "at", "operation", "cell", "files"), rows, empty="The trash of the session is empty.")
    else:
        shown = [file for one in entries for file in one["files"] if not path or _is_in(file["path"], path)]
        sizes = [(file["path"], f"{file['size']:,} bytes") for file in shown]
        print_table(("path", "size"), sizes, empty="The trash of the session has no such entry.")
    return OK


def _is_in(file: str, path: str) -> bool:
    return file == path or file.startswith(f"{path.rstrip('/')}/")


def _cell(entry: Mapping[str, Any]) -> str:
    return str(entry["cell"] or "")


def _files_of(entry: Mapping[str, Any]) -> str:
    names = [file["path"] for file in entry["files"][:3]]
    more = len(entry["files"]) + entry["more"] - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def diff(
    session: Session,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's name or id. Without it: since the clone was made.")
    ] = "",
    until: UNTIL = "",
    file: Annotated[str, typer.Option("--file", metavar="PATH", help="Compare this file, line by line.")] = "",
    as_json: Json = False,
) -> int:
    """Show what has changed since a checkpoint: variables, and files if it holds them. Or the changes in a clone."""
    if not checkpoint:
        if file or until:
            raise InvalidInputError(f"name the checkpoint to compare with: cellblock diff {session} CHECKPOINT")
        return _clone_diff(session, as_json)
    if file:
        from cellblock.model.checkpoints import FileVersions

        versions = ask(VersionsOfFile(session, checkpoint, file, until))
        if as_json:
            print_json(versions)
            return OK
        _print_lines(FileVersions.from_dict(versions).diff())
        return OK
    changes = ask(Diff(session, checkpoint, until))
    if wants_json(as_json):
        print_json(changes)
        return OK
    rows = [*_variable_rows(changes["variables"]), *_file_rows(changes["files"] or {})]
    print_table(("", "name", "before", "after"), rows, empty="Nothing has changed.")
    if more := (changes["files"] or {}).get("more"):
        print(f"… and {more:,} more files")
    return OK


def _clone_diff(session: str, as_json: bool) -> int:
    found = ask(CloneDiff(session))
    if as_json:
        print_json(found)
    else:
        _print_lines(found["patch"])
    return OK


def _print_lines(lines: str) -> None:
    if sys.stdout.isatty():
        print(printable(lines), end="")
    else:  # unchanged, for `patch` and similar programs
        sys.stdout.buffer.write(lines.encode("utf-8", "surrogateescape"))


def fetch(session: Session, as_json: Json = False) -> int:
    """Fetch the commits of a session's clone into the project's repository, as cellblock/NAME."""
    fetched = ask(CloneFetch(session))
    if wants_json(as_json):
        print_json(fetched)
    else:
        print(f"{fetched['commits']} new commits are in {fetched['ref'].removeprefix('refs/remotes/')}")
    return OK


def apply(
    session: Session,
    three_way: Annotated[bool, typer.Option("--3way", help="Merge changes that do not fit; conflicts are marked.")] = False,
    allow_protected: Annotated[
        bool, typer.Option("--allow-protected", help="Also write names that your programs obey, such as .envrc.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Apply the changes of a session's clone, committed or not, to the working copy of the project."""
    applied = ask(CloneApply(session, three_way, allow_protected))
    if wants_json(as_json):
        print_json(applied)
        return OK
    for path in applied["files"]:
        kind = "conflict" if path in applied["conflicts"] else "applied"
        print(f"{kind}: {printable(path, lines=False)}")
    if not applied["files"]:
        print("Nothing has changed.")
    return OK


def _variable_rows(changes: Mapping[str, list[dict[str, Any]]]) -> Iterator[tuple[str, ...]]:
    for one in changes["new"]:
        yield "new", one["name"], "", _value(one)
    for one in changes["changed"]:
        yield "changed", one["after"]["name"], _value(one["before"]), _value(one["after"])
    for one in changes["deleted"]:
        yield "deleted", one["name"], _value(one), ""
    for one in changes["unknown"]:
        yield "unknown", one["name"], "", _value(one)


def _value(variable: Mapping[str, Any]) -> str:
    """Return a short text of a variable's value, or its type if the value is unknown."""
    return str(variable["preview"] or variable["type"])[:_SHOWN]


def _file_rows(changes: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for kind in ("new", "changed", "deleted"):
        for file in changes.get(kind, ()):
            sizes = ("" if size is None else f"{size:,} bytes" for size in (file["before"], file["after"]))
            yield f"{kind} file", file["path"], *sizes


def fork(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="BRANCH...|N", help="The names of the new sessions, or their number.")],
    files: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="copy: each branch gets the files in a directory of its own. shared: all work in one directory. By default "
            "copy, if the session has a working directory of its own.",
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="The random seed of a branch. Once per branch.")] = None,
    same_random_state: Annotated[bool, typer.Option(help="All branches draw the same random numbers.")] = False,
    as_json: Json = False,
) -> int:
    """Make sessions that begin with the state that another one has now."""
    from cellblock.model.checkpoints import check_seeds

    check_seeds(seed or ())
    if len(names) == 1 and names[0].isdecimal():
        names = _numbered(session, int(names[0]))
    made = ask(Fork(session, tuple(names), files or "", tuple(seed or ()), same_random_state))
    if wants_json(as_json):
        print_json({"kernels": made})
        return OK
    for record in made:
        print(f"{record['name']}: {record['kernel_id']}")
    return OK


def _numbered(session: str, count: int) -> list[str]:
    """Return unused names for the branches, such as demo-1 and demo-2.

    Raises:
        InvalidInputError: The number of branches is out of range.
    """
    if not 1 <= count <= _MOST_BRANCHES:
        raise InvalidInputError(f"a session has 1 to {_MOST_BRANCHES} branches at once, not {count}")
    taken = {record["name"] for record in ask(List())}
    free = (name for number in itertools.count(1) if (name := f"{session}-{number}") not in taken)
    return [*itertools.islice(free, count)]


def adopt(
    session: Session,
    branch: Annotated[
        str, typer.Argument(metavar="BRANCH", help="The name or id of the other session.", autocompletion=known_names)
    ],
    as_json: Json = False,
) -> int:
    """Continue from another session's state (usually a branch) and close that session."""
    changes = ask(Adopt(session, branch))
    if wants_json(as_json):
        print_json(changes)
        return OK
    print(f"{session} continues from the state of {branch}, which is closed")
    _print_changes(changes)
    return OK
