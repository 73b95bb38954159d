"""``cellblock actions``: code that agents have saved as tools for later code."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import DaemonError, InvalidInputError, NotFoundError, did_you_mean
from cellblock.fronts.cli.arguments import (
    Json,
    known_names,
    makes_sessions,
    new_app,
)
from cellblock.fronts.cli.output import finish
from cellblock.fronts.cli.problems import FAILED, OK

app = new_app("Work with saved code actions: the tools in gentools/ of the current directory.")

_ROOT = "gentools"

Action = Annotated[str, typer.Argument(metavar="CATEGORY.NAME", help="The action.")]


@app.command("list")
def list_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="Words to search for; all actions without them."),
    ] = None,
    as_json: Json = False,
) -> int:
    """List actions with their signatures. Exit with 1 if no action matches."""
    from cellblock.tools.calling import search

    found = {name: "".join(search.signatures(name, root_dir=_ROOT)) for name in search.names(" ".join(words or []), _ROOT)}
    data = [{"action": name, "signature": signature} for name, signature in found.items()]
    lines = "\n".join(printable(line, lines=False) for line in found.values()) or f"No action in {_ROOT}/ matches."
    return finish(data, lines, as_json, OK if found else FAILED)


@app.command()
def show(
    action: Action, impl: Annotated[bool, typer.Option("--impl", help="Print the implementation instead.")] = False
) -> int:
    """Print the interface of an action."""
    from cellblock.tools.calling import beneath, catalog

    category, name = _known(action)
    file = "impl.py" if impl else "api.py"
    try:
        source = beneath.read(_ROOT, category, name, file, most=catalog.MOST_INDEX)
    except OSError as error:
        raise InvalidInputError(f"{_ROOT}/{category}/{name}/{file} cannot be read: {error.strerror or error}") from error
    print(printable(source.decode("utf-8", "replace")), end="")
    return OK


@app.command()
def save(
    action: Action,
    api: Annotated[Path, typer.Argument(metavar="API", help="File with the interface: types, and run() with a docstring.")],
    impl: Annotated[Path, typer.Argument(metavar="IMPL", help="File with the implementation of run().")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing action.")] = False,
    as_json: Json = False,
) -> int:
    """Save two files as an action."""
    from cellblock.tools.calling.actions import save_action

    category, name = _parts(action)
    try:
        sources = [path.read_text(encoding="utf-8") for path in (api, impl)]
        folder = save_action(category, name, *sources, root_dir=_ROOT, replace=replace)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the source is not valid UTF-8: {error}") from error
    except OSError as error:
        raise InvalidInputError(f"{error.filename}: {error.strerror}") from error
    done = f"saved {printable(str(folder), lines=False)}; code calls it with: from {_ROOT}.{action} import run"
    return finish({"action": action, "directory": str(folder)}, done, as_json)


@app.command()
@makes_sessions
def run(
    action: Action,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARAMETER=VALUE", help="Its arguments; a value that is not JSON is text."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The session; a new one by default.", autocompletion=known_names),
    ] = None,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Run an action in a session, and print what it returns. The options apply to a new session."""
    from cellblock.fronts.cli import execute

    _known(action)
    code = _code(action, _arguments(arguments or []))
    if name is not None:
        return execute.run(name=name, code=code, as_json=as_json, options=options or None)
    return _run_alone(code, options, as_json)


def _run_alone(code: str, options: dict[str, Any], as_json: bool) -> int:
    """Run code in a session that ends with it."""
    from cellblock.fronts.cli import execute
    from cellblock.fronts.cli.daemon_access import ask, session_options
    from cellblock.operations.sessions import Create, Destroy

    session = ask(Create("", session_options({"idle_timeout": 60} | options)))["kernel_id"]
    try:
        return execute.run(session_id=session, code=code, as_json=as_json)
    finally:
        with suppress(DaemonError):
            ask(Destroy(session))


def _parts(action: str) -> tuple[str, str]:
    category, _, name = action.removeprefix(f"{_ROOT}.").partition(".")
    if not category.isidentifier() or not name.isidentifier():
        raise InvalidInputError(f"an action is called CATEGORY.NAME, both Python identifiers, not {action!r}")
    return category, name


def _known(action: str) -> tuple[str, str]:
    """Return the category and the name of an action.

    Raises:
        NotFoundError: The action does not exist.
    """
    from cellblock.tools.calling import search

    category, name = _parts(action)
    known = search.names("", _ROOT)
    if f"{category}.{name}" not in known:
        near = did_you_mean(f"{category}.{name}", known) or "; 'cellblock actions list' lists the actions"
        raise NotFoundError(f"there is no action {category}.{name} in {_ROOT}/{near}")
    return category, name


def _arguments(given: list[str]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in given]
    for parameter, equals, _ in pairs:
        if not parameter.isidentifier() or not equals:
            raise InvalidInputError(f"arguments are PARAMETER=VALUE, not {parameter + equals!r}")
    return {parameter: _value(text) for parameter, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _code(action: str, arguments: dict[str, Any]) -> str:
    category, name = _parts(action)
    return (
        f"import inspect as _inspect, json as _json\nfrom {_ROOT}.{category}.{name} import run as _run\n"
        f"_returned = _run(**_json.loads({json.dumps(arguments)!r}))\n"
        "await _returned if _inspect.isawaitable(_returned) else _returned"
    )
