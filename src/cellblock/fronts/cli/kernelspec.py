"""``cellblock kernelspec``: lets a plain local Jupyter start sandboxed kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import (
    Json,
    makes_kernels,
    new_app,
)
from cellblock.fronts.cli.output import finish, finish_list

app = new_app("Sandboxed kernels for a local Jupyter.")


@app.command()
@makes_kernels
def install(
    name: Annotated[str, typer.Option(metavar="NAME", help="The kernelspec's name.")] = "cellblock",
    display_name: Annotated[str, typer.Option(metavar="TEXT", help="What Jupyter calls it.")] = "",
    user: Annotated[bool, typer.Option("--user", help="For this user. This is the default.")] = False,
    sys_prefix: Annotated[bool, typer.Option("--sys-prefix", help="For this Python environment.")] = False,
    prefix: Annotated[Path | None, typer.Option(metavar="DIRECTORY", help="Below share/jupyter in this directory.")] = None,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Install a kernelspec. Its kernels are sandboxed by default."""
    from cellblock.fronts.jupyter import kernelspecs

    if user + sys_prefix + (prefix is not None) > 1:
        raise InvalidInputError("give only one of --user, --sys-prefix and --prefix")
    made = kernelspecs.install(
        options,
        name=name,
        display_name=display_name,
        prefix=Path(sys.prefix) if sys_prefix else prefix,
    )
    return finish(made.to_dict(), f"{made.display_name} is installed in {made.directory}", as_json)


@app.command("list")
def list_(as_json: Json = False) -> int:
    """List the kernelspecs that this command has installed."""
    from cellblock.fronts.jupyter import kernelspecs

    found = [spec.to_dict() for spec in kernelspecs.installed()]
    columns = {"name": "name", "Jupyter calls it": "display_name", "directory": "directory"}
    return finish_list("kernelspecs", found, columns, as_json, empty="There are no kernelspecs of cellblock.")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See 'list'.")] = "cellblock", as_json: Json = False
) -> int:
    """Remove a kernelspec that this command has installed."""
    from cellblock.fronts.jupyter import kernelspecs

    removed = kernelspecs.remove(name)
    done = f"{printable(removed.name, lines=False)} is removed"
    return finish({"removed": removed.name, "directory": str(removed.directory)}, done, as_json)
