"""Without extras, the package imports, and names the extra that a feature needs."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cellblock
from cellblock.common.extras import MODULES, require_extra
from cellblock.errors import UnsupportedError
from cellblock.fronts.cli.problems import UNAVAILABLE

PACKAGE = Path(cellblock.__file__).parent
PROJECT = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]

ROOMS = {
    "cluster/credentials": "ray",
    "cluster/director_calls": "ray",
    "cluster/host_actor": "ray",
    "cluster/ray_nodes": "ray",
    "fronts/e2b": "serve",
    "fronts/gateway": "serve",
    "fronts/jupyter/zeromq": "jupyter",
    "fronts/mcp_server": "mcp",
    "tools/mcp": "mcp",
    "walls/keys/authority": "keys",
    "walls/keys/turnkey": "keys",
    "tools/serving/websocket": "mcp",
}
"""Module or room → the extra that it may import from. All others import without any, whatever they import in turn."""

CHECKED_BEFORE = {"cellblock.cluster.director", "cellblock.tools.serving.listen"}
"""Modules that import a room's in functions, which only a caller reaches that has checked the extra."""

_NOT_IMPORTED = ("adapters", "__main__")
"""Adapters have a framework's classes as bases."""

_ONLY = """
import contextlib, importlib, io, json, sys
from importlib.machinery import PathFinder

given = json.loads(sys.stdin.read())

class Only:
    find_distributions = PathFinder.find_distributions

    def find_spec(name, path=None, target=None):
        first = name.partition(".")[0]
        if first in given["modules"] or first in sys.stdlib_module_names or first.startswith("_"):
            return PathFinder.find_spec(name, path, target)

sys.meta_path = [Only if finder is PathFinder else finder for finder in sys.meta_path]
failed = {}

@contextlib.contextmanager
def trying(name):
    try:
        yield
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
"""

_IMPORTS = """
for name in given["names"]:
    with trying(name):
        importlib.import_module(name)
print(json.dumps(failed))
"""

_FEATURES = """
import asyncio
from cellblock import *
from cellblock.cluster.opening import open_director
from cellblock.common.url_folder import folder_at
from cellblock.fronts.cli import main
from cellblock.fronts.jupyter.kernelspecs import install

with trying("import"):
    generate_mcp_sources, KernelGateway, ExecutionError
for name, call in {
    "Client": lambda: Client("http://127.0.0.1:1", "token"),
    "AsyncClient": lambda: AsyncClient("http://127.0.0.1:1", "token"),
    "install": lambda: install({}),
    "open_director": lambda: open_director("127.0.0.1:1"),
    "memory": lambda: folder_at("memory://a").names(),
    "s3": lambda: folder_at("s3://a").names(),
}.items():
    with trying(name):
        call()
for name, run in {
    "expose": lambda: CodeExecutor().expose(8501),
    "KernelClient": lambda: KernelClient().connect(),
    "KernelGateway": lambda: KernelGateway(port=0).start(),
    "ToolServer": lambda: ToolServer(port=0).start(),
    "ApprovalClient": lambda: ApprovalClient(print).connect(),
    "generate_mcp_sources": lambda: generate_mcp_sources("a", {"command": "true"}, given["directory"]),
}.items():
    with trying(name):
        asyncio.run(run())
for command in given["commands"]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(command.split())
    failed[command] = f"{status} {said.getvalue().strip()}"
print(json.dumps(failed))
"""


def closure(*extras: str) -> set[str]:
    """Return the distributions that an installation with extras has, as far as this one has them."""
    found, todo = set[str](), [Requirement(f"cellblock[{','.join(extras)}]")]
    while todo:
        requirement = todo.pop()
        for extra in ("", *requirement.extras):
            name = canonicalize_name(requirement.name)
            if (key := f"{name}[{extra}]") not in found:
                found |= {name, key}
                todo += [
                    one
                    for one in map(Requirement, required(name, extra))
                    if one.marker is None or one.marker.evaluate({"extra": extra})
                ]
    return found


def required(name: str, extra: str) -> list[str]:
    if name == PROJECT["name"]:
        optional: list[str] = PROJECT["optional-dependencies"][extra] if extra else []
        return [*PROJECT["dependencies"], *optional]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


@functools.cache
def owners() -> Mapping[str, list[str]]:
    """Return the distributions that each module of this environment is from."""
    return packages_distributions()


def run_with(extras: tuple[str, ...], code: str, **given: Any) -> dict[str, str]:
    """Run code in a process that can import only what an installation with extras has; return what failed there."""
    installed = closure(*extras)
    given["modules"] = [
        "cellblock",
        *(name for name, dists in owners().items() if {*map(canonicalize_name, dists)} & installed),
    ]
    ran = subprocess.run([sys.executable, "-c", _ONLY + code], input=json.dumps(given), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    failed: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return failed


def names(extra: str | None) -> list[str]:
    """Return the modules that may import from an extra, or those that may not from any."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")
        room = next((needed for room, needed in ROOMS.items() if f"{name}/".startswith(f"{room}/")), None)
        if room == extra and not name.startswith(_NOT_IMPORTED) and path.stem != "__main__":
            found.append(".".join(["cellblock", *name.split("/")]).removesuffix(".__init__"))
    return found


def late_imports(path: Path) -> set[str]:
    """Return the modules of this package that a module imports in functions."""
    functions = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    imports = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
    return {name for node in imports for name in (node.module or "", *(f"{node.module}.{one.name}" for one in node.names))}


@pytest.mark.slow
def test_modules_import_without_extras_and_check_before_they_import_others() -> None:
    without = names(None)
    failed = run_with((), _IMPORTS, names=[*without, *(name for extra in {*ROOMS.values()} for name in names(extra))])
    assert {*failed} & {*without} == set()
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    unchecked = {
        name
        for name, path in modules.items()
        if name not in failed and late_imports(path) & {*failed} and "require_extra(" not in path.read_text()
    }
    assert unchecked == CHECKED_BEFORE


@pytest.mark.slow
def test_an_extra_brings_what_its_rooms_import() -> None:
    for extra in ("mcp", "serve"):
        assert run_with((extra,), _IMPORTS, names=names(extra)) == {}


@pytest.mark.slow
def test_a_feature_names_its_extra(tmp_path: Path) -> None:
    features = {
        "AsyncClient": "client",
        "ApprovalClient": "client",
        "Client": "client",
        "KernelClient": "client",
        "KernelGateway": "serve",
        "ToolServer": "mcp",
        "expose": "serve",
        "generate_mcp_sources": "mcp",
        "install": "jupyter",
        "memory": "urls",
        "open_director": "ray",
        "s3": "s3",
    }
    commands = {
        "serve": "serve",
        "serve --e2b": "serve",
        "console --no-browser": "serve",
        "mcp": "mcp",
        "tools add one -- true": "mcp",
        "tools login one": "mcp",
        "cluster start": "ray",
        "kernelspec install": "jupyter",
    }
    failed = run_with((), _FEATURES, directory=str(tmp_path), commands=[*commands])
    assert failed["generate_mcp_sources"] == "UnsupportedError: tools need an extra: pip install 'cellblock[mcp]'"
    for name, extra in (features | commands).items():
        begin = "UnsupportedError: " if name in features else f"{UNAVAILABLE} cellblock: "
        assert failed[name].startswith(begin), failed[name]
        assert failed[name].endswith(f" need an extra: pip install 'cellblock[{extra}]'"), failed[name]
    assert {*failed} == {*features, *commands}


@pytest.mark.slow
def test_modules_belong_to_their_extras() -> None:
    assert {*MODULES} <= {*PROJECT["optional-dependencies"]}
    for extra, needed in MODULES.items():
        brought = closure(extra)
        missing = {name for name in needed if not {*map(canonicalize_name, owners().get(name, [name]))} & brought}
        assert missing == set(), extra


def test_all_brings_what_a_plain_installation_has_not() -> None:
    assert closure("all") == closure("client", "keys", "mcp", "serve") | {"cellblock[all]"}


def test_a_directory_with_the_name_of_a_module_is_not_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_directory").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MODULES, "mcp", ("only_a_directory",))
    with pytest.raises(UnsupportedError, match=r"tools need an extra: pip install 'cellblock\[mcp\]'"):
        require_extra("mcp", "tools")
