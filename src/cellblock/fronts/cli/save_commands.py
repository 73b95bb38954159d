"""The commands save, load, export and variables."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.common.url_folder import folder_at
from cellblock.common.urls import is_url, local_path, split
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import (
    FILES,
    Json,
    Session,
    makes_sessions,
)
from cellblock.fronts.cli.daemon_access import ask, session_options
from cellblock.fronts.cli.output import Columns, finish, finish_list
from cellblock.fronts.cli.problems import say
from cellblock.fronts.cli.progress import Progress
from cellblock.operations.saving import Export, Load, Save, Variables
from cellblock.operations.sessions import Create, Destroy

File = Annotated[str, typer.Argument(metavar="FILE", help="The path of the file.")]
FileOrUrl = Annotated[str, typer.Argument(metavar="FILE", help="The path of the file, or a URL such as s3://bucket/file.")]
Files = Annotated[bool, typer.Option("--files", help="Include the files of the workspace.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists already.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    for command in (save, load, export, variables):
        app.command(rich_help_panel=FILES)(command)


def save(session: Session, file: FileOrUrl, files: Files = False, force: Force = False, as_json: Json = False) -> int:
    """Save a session to a file: variables, imports and cells."""
    path = _free_url(file, force) if is_url(file) else _free(file, force)
    with Progress("saving the session"):
        report = ask(Save(session, path, files))
    where = f"{printable(report['path'], lines=False)} ({report['size']:,} bytes)"
    show = partial(_show, where, report["saved"], report, "saved")
    return finish(report, show, as_json)


@makes_sessions
def load(
    file: FileOrUrl,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of the new session.")] = None,
    files: Files = False,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Make a session that continues a saved one. If you give no name, it gets a unique one."""
    with Progress("loading the session"):
        made = ask(Create(name or "", session_options(options), fresh=True))
        try:
            report = ask(Load(made["kernel_id"], file if is_url(file) else os.path.abspath(file), files))
        except BaseException:  # also Ctrl-C: no other client knows the session yet
            ask(Destroy(made["kernel_id"]))
            raise
    show = partial(_show, f"session {made['name']}", report["loaded"], report, "restored")
    return finish({"kernel": made, **report}, show, as_json)


def _show(where: str, names: list[str], report: dict[str, Any], what: str) -> None:
    """Print how many variables and cells a file has, and what was left out."""
    cells = report["cells"]
    print(f"{where}: {len(names)} variable{'s' * (len(names) != 1)}, {cells} cell{'s' * (cells != 1)}")
    for one in report["left_out"]:
        say(f"cellblock: {printable(one['name'], lines=False)} was not {what}: {printable(one['reason'], lines=False)}")


def _free(file: str, force: bool) -> str:
    """Return the absolute path of an output file that does not exist or may be replaced."""
    path = os.path.abspath(file)
    if not force and os.path.lexists(path):
        raise InvalidInputError(f"{path} exists already; --force replaces it")
    return path


def _free_url(url: str, force: bool) -> str:
    """Return the URL of an output file that does not exist or may be replaced; the path of a ``file:`` URL."""
    if (path := local_path(url)) is not None:
        return _free(path, force)
    folder, name = split(url)
    if not force and name in folder_at(folder).names():
        raise InvalidInputError(f"{url} exists already; --force replaces it")
    return url


def export(session: Session, file: File, force: Force = False, as_json: Json = False) -> int:
    """Write the cells of a session and their outputs as a notebook (.ipynb) or a script (.py)."""
    path = _free(file, force)
    with Progress("writing the file"):
        ask(Export(session, path))
    return finish({"file": path}, printable(path, lines=False), as_json)


def variables(session: Session, as_json: Json = False) -> int:
    """List the variables of a session."""
    columns: Columns = {
        "name": "name",
        "type": "type",
        "shape": lambda one: "" if one["shape"] is None else "×".join(map(str, one["shape"])),
        "bytes": lambda one: "" if one["size"] is None else f"{one['size']:,}",
        "value": "preview",
    }
    return finish_list("variables", ask(Variables(session)), columns, as_json, empty="The session has no variables.")
