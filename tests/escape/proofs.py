"""Which mutants were proved before with the same sources: `proved.txt` has a digest of what decides whether a test kills its mutant.

That is, as far as the repository decides it and as far as names tell: the module that is mutated; the row; the test with the
functions, fixtures, constants and programs of tests/ that it reaches; how copies are made and tests are run on them. Comments,
documentation, directories and where names are imported from do not count. What else a test runs through does not count either: a second defence in
another module could hide a mutant. That is why some mutants run in any case, and all of them before a release (decision 56).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import random
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .copies import SOURCE, Edit

TESTS = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("proved.txt")
SAMPLE = 10
"""How many mutants run that were proved before."""
SEED = "MUTANTS_SEED"
"""The environment variable with the seed of the sample. By default it is the day on which the run began."""
PROVED, UNCHANGED = "proved", "unchanged"
"""Properties of tests' reports, which come from all processes that run tests."""

_APART = {"proofs.py", "progress.py", "test_mutants.py"}
"""Modules of tests/ that decide which tests run, or show how far they are, but not whether one fails."""
_HOOKS = {"pytest_configure", "pytest_collection_modifyitems"}
"""Hooks that decide how tests run."""


class Module:
    """A module of tests/: what it defines at its top, and what it imports from other modules of tests/.

    Attributes:
        defined: Name → the statements that define it. What defines nothing has no name.
        imported: Name → the module, and the name there; no name if it is the module itself.
    """

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.defined: dict[str, list[ast.stmt]] = {"": []}
        self.imported: dict[str, tuple[Path, str]] = {}
        for statement in tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in _names(statement) or [""]:
                    self.defined.setdefault(name, []).append(statement)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imported.update(_imports(node, path))


@functools.cache
def _module(path: Path) -> Module:
    return Module(path)


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign() | ast.AnnAssign():
            return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return []


def _imports(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, tuple[Path, str]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            place = TESTS.joinpath(*alias.name.split(".")).with_suffix(".py")
            if place.is_file() and place.name not in _APART:
                yield alias.asname or alias.name.rpartition(".")[2], (place, "")
        return
    start = path.parents[node.level - 1] if node.level else TESTS
    base = start.joinpath(*(node.module or "").split("."))
    for alias in node.names:
        for place, name in ((base / f"{alias.name}.py", ""), (base.with_name(f"{base.name}.py"), alias.name)):
            if place.is_file() and place.name not in _APART:
                yield alias.asname or alias.name, (place, name)
                break


@functools.cache
def _words(path: Path, name: str) -> frozenset[str]:
    """Return all names in a definition, and texts, as fixtures and programs can be named by these."""
    found = set()
    for node in (node for statement in _module(path).defined.get(name, ()) for node in ast.walk(statement)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.Constant(value=str(word)):
                found.add(word)
    return frozenset(found)


@functools.cache
def _files() -> dict[str, list[Path]]:
    """Return programs and the like by their names."""
    found: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if not path.name.startswith(("conftest", "__init__", "test_")) and path.name not in _APART:
            found.setdefault(path.name, []).append(path)
    return found


def _is_fixture(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        "fixture" in ast.unparse(decorator) for decorator in statement.decorator_list
    )


def _is_always_used(statement: ast.stmt) -> bool:
    """Whether something in a conftest.py is used without being asked for."""
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and (
        statement.name in _HOOKS or any("autouse=True" in ast.unparse(one) for one in statement.decorator_list)
    )


def reached(file: Path, name: str) -> set[tuple[Path, str]]:
    """Return all definitions in tests/ that a test reaches, by what they and it name."""
    conftests = [place / "conftest.py" for place in file.parents if place.is_relative_to(TESTS)]
    conftests = [path for path in conftests if path.is_file()]
    todo = [(file, name), (file, "pytestmark")]
    for path in (file, *conftests):
        todo += [(path, name) for name, found in _module(path).defined.items() if any(map(_is_always_used, found))]
    seen: set[tuple[Path, str]] = set()
    while todo:
        here = path, name = todo.pop()
        if here not in seen:
            seen.add(here)
            todo += _called(path, name)
            if path == file or path in conftests:
                todo += _fixtures(_words(path, name), tuple(conftests))
    return seen


@functools.cache
def _called(path: Path, name: str) -> list[tuple[Path, str]]:
    """Return what a definition names."""
    module, words = _module(path), _words(path, name)
    found = [(path, ""), *((path, word) for word in words & module.defined.keys())]
    for word in words & module.imported.keys():
        place, there = module.imported[word]
        found.append((place, there))
        if not there:
            found += ((place, one) for one in words & _module(place).defined.keys())
    programs = {file for word in words if ".py" in word for file in re.findall(r"\w+\.py\b", word)}
    found += ((place, one) for file in programs for place in _files().get(file, ()) for one in _module(place).defined)
    return found


@functools.cache
def _fixtures(words: frozenset[str], conftests: tuple[Path, ...]) -> list[tuple[Path, str]]:
    endings = tuple(word for word in words if re.fullmatch(r"_[a-z]+", word))  # "native" + "_host"
    return [
        (path, name)
        for path in conftests
        for name, found in _module(path).defined.items()
        if (name in words or name.endswith(endings)) and any(map(_is_fixture, found))
    ]


def said(thing: object) -> str:
    """Return what code says, the same in all versions of Python, without comments, documentation and directories."""
    match thing:
        case ast.Import() | ast.ImportFrom():
            return ""  # see `_whole`
        case ast.Expr(value=ast.Constant(value=str())):
            return ""
        case ast.Constant(value=str(text)):
            return repr(_without_directories(text))
        case ast.AST():
            fields = ((name, getattr(thing, name, None)) for name in thing._fields if name not in ("ctx", "kind"))
            return f"{type(thing).__name__}({','.join(f'{name}={said(value)}' for name, value in fields if value not in (None, []))})"
        case list():
            return f"[{','.join(filter(None, map(said, thing)))}]"
    return repr(thing)


def _without_directories(text: str) -> str:
    """Return a text in which names of our modules have no more than their last two parts: modules move between directories."""
    return re.sub(r"\bcellblock(?:[./]\w+)+", lambda found: ".".join(re.split("[./]", found[0])[-2:]), text)


@functools.cache
def _whole(file: Path) -> str:
    """Return what a module says, and which names it imports, from wherever."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {f"{alias.name.rpartition('.')[2]} as {alias.asname}" for node in imports for alias in node.names}
    return f"{sorted(names)}{said(tree)}"


@functools.cache
def _definition(path: Path, name: str) -> str:
    return f"{path.name} {name}: {said(_module(path).defined.get(name, []))}"


@functools.cache
def _how_tests_run() -> str:
    here = Path(__file__).parent
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    kept = {name: value for name, value in options.items() if name not in ("markers", "testpaths", "pythonpath")}
    mutants = _module(here / "test_mutants.py").defined
    parts = ("NATIVE", "OPTIONS", "UNREWRITTEN", "SECONDS", "run", "test_a_test_fails_without_its_defence")
    return f"{_whole(here / 'copies.py')}{_whole(here / 'pytest_server.py')}{kept}{[said(mutants[name]) for name in parts]}"


def digest(test: str, edits: Iterable[Edit], *more: object) -> str:
    """Return a digest of what decides whether a test fails on a copy with edits."""
    file, _, names = test.partition("::")
    name, _, case = names.partition("[")
    parts = {_definition(path, name) for path, name in reached(TESTS / file, name)}
    for edit in edits:
        new = said(ast.parse(textwrap.dedent(edit.new).strip()))
        parts.add(f"{Path(edit.file).name} {edit.name}: {new} {_whole(SOURCE / edit.file)}")
    text = "\n".join([name, case, *map(repr, more), _how_tests_run(), *sorted(parts)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:20]


class Plan(NamedTuple):
    """Which mutants run.

    Attributes:
        digests: The digest of each.
        new: Those that were not proved with the same sources.
        sample: Those that run nevertheless.
        gone: Names in the record that are no mutant's.
    """

    digests: Mapping[str, str]
    new: list[str]
    sample: list[str]
    gone: set[str]

    @property
    def runs(self) -> list[str]:
        """Return all that run."""
        return sorted({*self.new, *self.sample})


def planned(digests: Mapping[str, str], which: str, seed: str) -> Plan:
    """Return which mutants run.

    Args:
        digests: Digests of all.
        which: ``all``, ``new`` for those that were not proved with the same sources, or ``some`` for a sample in addition.
        seed: A sample is the same wherever the seed is.
    """
    recorded = read()
    new = sorted(name for name in digests if recorded.get(name) != digests[name])
    old = sorted({*digests} - {*new})
    sample = {"all": old, "new": [], "some": random.Random(seed).sample(old, min(SAMPLE, len(old)))}[which]
    return Plan(digests, new, sample, recorded.keys() - digests.keys())


def read() -> dict[str, str]:
    """Return the digest that each mutant was last proved with."""
    rows = (line.partition(" ") for line in RECORD.read_text().splitlines())
    return {name: digest for digest, _, name in rows}


def write(proved: Mapping[str, str]) -> None:
    """Write the record: sorted lines, one for each mutant, as branches that are merged have proved different ones."""
    RECORD.write_text("".join(f"{digest} {name}\n" for name, digest in sorted(proved.items())))


class Recorder:
    """Writes the record at the end of a run, for `make mutants`: what was proved now, and before."""

    def __init__(self) -> None:
        self._proved: dict[str, tuple[str, str]] = {}
        self._unchanged: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of what a test has proved."""
        if report.when == "call" and report.passed:
            properties: dict[str, Any] = dict(report.user_properties)
            if PROVED in properties:
                name, test, digest = properties[PROVED]
                self._proved[name] = test, digest
            self._unchanged.update(properties.get(UNCHANGED, ()))

    def pytest_sessionfinish(self) -> None:
        """Write the record. A mutant counts only if its test has passed on a copy that is not changed."""
        from .test_mutants import MUTANTS

        proved = {name: digest for name, (test, digest) in self._proved.items() if test in self._unchanged}
        write({name: digest for name, digest in (read() | proved).items() if name in MUTANTS})
