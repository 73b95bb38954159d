"""The commands checkpoint, restore, undo, redo, trash, diff, fetch, apply, fork and adopt."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import STATES, Json, Session, known_names
from cellblock.fronts.cli.daemon_access import ask
from cellblock.fronts.cli.output import Columns, finish, finish_list, moment, print_json, print_table, since
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
        return finish({"dropped": name}, f"{printable(name, lines=False)} is dropped", as_json)
    made = ask(MakeCheckpoint(session, name, "copy" if files else "shared"))
    return finish(made, f"{made['id']}: the state after cell {made['execution_count']}", as_json)


def checkpoints(session: Session, as_json: Json = False) -> int:
    """List the checkpoints of a session."""
    columns: Columns = {
        "id": "id",
        "name": "name",
        "after cell": "execution_count",
        "files": "files",
        "kind": lambda one: "automatic" if one["automatic"] else "kept",
        "made": lambda one: f"{since(one['made_at'])} ago",
    }
    return finish_list("checkpoints", ask(Checkpoints(session)), columns, as_json, empty="The session has no checkpoints.")


def restore(session: Session, checkpoint: CHECKPOINT, stop_processes: _StopProcesses = False, as_json: Json = False) -> int:
    """Restore a checkpoint. It can be restored any number of times."""
    gone_to = ask(Restore(session, checkpoint, "stop" if stop_processes else "keep"))
    lines = [f"restored the state after cell {gone_to['execution_count']}", *_lines(gone_to["changes"])]
    return finish(gone_to, "\n".join(lines), as_json)


def _lines(changes: Mapping[str, Any]) -> list[str]:
    """Return changes of files, one in a line."""
    kinds = ("written", "removed", "kept")
    more = [f"and {changes['more']:,} more"] if changes["more"] else []
    return [*(f"{kind}: {printable(path, lines=False)}" for kind in kinds for path in changes[kind]), *more]


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
    return finish(undone, functools.partial(_print_undone, undone, session, "undid"), as_json)


def _print_undone(undone: dict[str, Any], session: str, verb: str) -> None:
    """Print the cells and file changes of an undo or a redo, and how to restore replaced or removed files."""
    from cellblock.model.checkpoints import undone_summary

    for cell in undone["cells"] if verb == "undid" else ():
        first = (cell["code"].strip().splitlines() or [""])[0]
        print(f"undone: [{cell['execution_count'] or ' '}] {printable(first, lines=False)[:100]}")
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
    return finish(redone, functools.partial(_print_undone, redone, session, "redid"), as_json)


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
        return finish(changes, "\n".join(_lines(changes)), as_json)
    entries = [one for one in ask(Trash(session)) if not entry or one["id"] == entry]
    if path:
        entries = [one for one in entries if any(_is_in(file["path"], path) for file in one["files"])]
    if action == "list":
        columns: Columns = {
            "id": "id",
            "at": lambda one: moment(one["at"]),
            "operation": "operation",
            "cell": lambda one: one["cell"] or "",
            "files": _files_of,
        }
        return finish_list("entries", entries, columns, as_json, empty="The trash of the session is empty.")
    files = [file for one in entries[:1] for file in one["files"] if not path or _is_in(file["path"], path)]
    sizes = [(file["path"], f"{file['size']:,} bytes") for file in files]
    show = functools.partial(print_table, ("path", "size"), sizes, empty="The trash of the session has no such entry.")
    return finish({"entries": entries[:1]}, show, as_json)


def _is_in(file: str, path: str) -> bool:
    return file == path or file.startswith(f"{path.rstrip('/')}/")


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
    return finish(changes, functools.partial(_print_diff, changes), as_json)


def _print_diff(changes: Mapping[str, Any]) -> None:
    files = changes["files"] or {}
    rows = [*_variable_rows(changes["variables"]), *_file_rows(files)]
    print_table(("", "name", "before", "after"), rows, empty="Nothing has changed.")
    if more := files.get("more"):
        print(f"… and {more:,} more files")


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
    return finish(fetched, f"{fetched['commits']} new commits are in {fetched['ref'].removeprefix('refs/remotes/')}", as_json)


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
    conflicts = applied["conflicts"]
    lines = [f"{'conflict' if path in conflicts else 'applied'}: {printable(path, lines=False)}" for path in applied["files"]]
    return finish(applied, "\n".join(lines) or "Nothing has changed.", as_json)


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
    return finish({"kernels": made}, "\n".join(f"{record['name']}: {record['kernel_id']}" for record in made), as_json)


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
    lines = [f"{session} continues from the state of {branch}, which is closed", *_lines(changes)]
    return finish(changes, "\n".join(lines), as_json)
