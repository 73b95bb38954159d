"""The commands of environments: packages with a name, for new sessions of any kind. They need no daemon."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cellblock.common.environments import Environment
from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import Columns, age, finish, finish_list, print_fields
from cellblock.fronts.cli.problems import FAILED, OK
from cellblock.fronts.cli.progress import Progress

if TYPE_CHECKING:
    from cellblock.host.environments.named_environments import NamedEnvironment, Names

Name = Annotated[str, typer.Argument(metavar="NAME", help="The environment's name.")]

_REBUILD = ("show NAME --lock > NAME.toml", "remove NAME", "prune", "create NAME --lock NAME.toml")

app = new_app("Environments: packages with a name, which '--environment NAME' gives to sessions.")


@app.command()
def create(
    name: Name,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="PACKAGE...", help="Requirements, such as 'pandas>=2'.")
    ] = None,
    requirements: Annotated[
        str | None, typer.Option("--requirements", "-r", metavar="FILE", help="Add the packages of a requirements file.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="DIR", help="Add the dependencies of a project, by its pyproject.toml.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "--groups", metavar="GROUP", help="Add a dependency group of the project; repeatable."),
    ] = None,
    script: Annotated[
        str | None, typer.Option(metavar="FILE", help="Add the dependencies in a script's comments (PEP 723).")
    ] = None,
    lock: Annotated[str | None, typer.Option(metavar="FILE", help="Use exactly the packages of a pylock.toml.")] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Replace an existing one: by these packages, or else by newer versions.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Make an environment. Its sessions see the standard library, IPython and these packages.

    Running sessions keep the packages that they started with.
    """
    import asyncio  # not for --help

    given = any((packages, requirements, project, groups, script, lock))
    if not given and not upgrade:
        raise InvalidInputError("name packages, or a file with -r, --project, --script or --lock")
    wanted = Environment(
        packages=packages or (),
        groups=groups or (),
        requirements=requirements,
        project=project,
        script=script,
        lock=lock,
    )
    made = asyncio.run(_create(name, wanted if given else None, upgrade=upgrade))
    sentence = f"environment {name} has {len(made.lock.packages)} packages; use it with --environment {name}"
    if made.previous:
        sentence += f"\nthe earlier one: cellblock env create {name} --upgrade --lock {made.previous}"
    data = made.to_dict() | ({"previous": made.previous} if made.previous else {})
    return finish(data, printable(sentence), as_json)


async def _create(name: str, wanted: Environment | None, *, upgrade: bool) -> NamedEnvironment:
    from cellblock.host import Host

    with Progress(f"making environment {name}") as progress:
        async with Host() as host:
            host.environments.report = lambda text: setattr(progress, "text", text)
            return await host.create_environment(name, wanted, upgrade=upgrade)


@app.command("list")
def list_(as_json: Json = False) -> int:
    """List the environments."""
    found = {one.name: one for one in _names().all()}
    columns: Columns = {
        "name": "name",
        "packages": lambda one: len(found[one["name"]].lock.packages),
        "made from": lambda one: found[one["name"]].asked.title or "nothing",
        "trusted": lambda one: _yes(found[one["name"]].trusted),
        "age": lambda one: age(time.time() - found[one["name"]].made),
    }
    data = [one.to_dict() for one in found.values()]
    return finish_list("environments", data, columns, as_json, empty="There are no environments.")


@app.command()
def show(
    name: Name,
    lock: Annotated[bool, typer.Option("--lock", help="Print a lock (pylock.toml) for --lock and other programs.")] = False,
    as_json: Json = False,
) -> int:
    """Show the packages of an environment."""
    names = _names()
    found = names.get(name)
    if lock:
        print(names.lock_text(found), end="")
        return OK
    fields = [("name", name), ("key", found.key[:16]), ("base", found.lock.base), ("made from", found.asked.title)]
    fields += [("trusted", _yes(found.trusted)), ("packages", " ".join(found.lock.packages))]
    return finish(found.to_dict(), partial(print_fields, fields), as_json)


@app.command()
def remove(name: Name, as_json: Json = False) -> int:
    """Remove an environment. Its sessions continue, and 'cellblock env create --lock' restores it."""
    path = _names().remove(name)
    sentence = f"removed {name}; until 'cellblock env prune': cellblock env create {name} --lock {path}"
    return finish({"removed": name, "lock": path}, printable(sentence), as_json)


@app.command()
def trust(name: Name, as_json: Json = False) -> int:
    """Let sessions preload an environment's packages, which then run outside of the sandbox when a zygote starts.

    This is for the packages that the environment has now: --upgrade ends it.
    """
    from cellblock.host.environments.trust import Trust

    Trust().add((found := _names().get(name)).key)
    sentence = f"trusted {name} with its {len(found.lock.packages)} packages: --environment {name} --preload MODULE"
    return finish(found.to_dict(), printable(sentence), as_json)


@app.command()
def distrust(name: Name, as_json: Json = False) -> int:
    """Withdraw the trust in an environment. Running sessions continue; no more sessions preload its packages."""
    from cellblock.host.environments.trust import Trust

    Trust().remove((found := _names().get(name)).key)
    return finish(found.to_dict(), printable(f"{name} is not trusted"), as_json)


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The environment; all of them by default.")] = None,
    as_json: Json = False,
) -> int:
    """Compare the files of environments with the packages that were unpacked. Status 1 if a file is damaged."""
    from cellblock.host.environments.store import Store

    keys = None if name is None else [_names().get(name).key]
    with Progress("reading the packages"):
        damaged = Store().verify(keys)
    sentence = "all files are intact"
    if damaged:
        sentence = "\n".join(
            (*damaged, f"{len(damaged)} files are damaged. To rebuild environments, end their sessions, then:")
        )
        sentence += "\n".join(("", *(f"  cellblock env {command}" for command in _REBUILD)))
    return finish({"damaged": damaged}, printable(sentence), as_json, FAILED if damaged else OK)


@app.command()
def prune(as_json: Json = False) -> int:
    """Delete packages that no environment with a name and no session uses, and the locks of removed environments."""
    from cellblock.host.environments.store import Store

    with Progress("deleting unused packages"):
        found = Store().prune()
    return finish({"pruned": found}, f"deleted {len(found)} unnamed environments", as_json)


def _yes(trusted: bool) -> str:
    return "yes" if trusted else "no"


def _names() -> Names:
    from cellblock.host.environments.named_environments import Names
    from cellblock.host.environments.store import Store

    return Names(Store())
