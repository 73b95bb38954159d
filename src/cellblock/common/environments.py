"""Declarations of environments: which packages a session has, and from which files they are read.

Standard library only, because the command line loads this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cellblock.common import package_files as files
from cellblock.common.package_files import MAX_PACKAGES, Parsed, checked_hashes, checked_requirement
from cellblock.errors import InvalidInputError, shown

Base: TypeAlias = Literal["interpreter", "empty"]
Path: TypeAlias = str | os.PathLike[str]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BASES = ("interpreter", "empty")


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The packages of a session, for its option `environment` (docs/sandbox.md).

    Several inputs add up, except a lock, which is complete. The files are read when a session is created.

    Attributes:
        packages: Requirements, such as ``["polars>=1"]``.
        requirements: A file of requirements. Options such as ``-r``, ``-e`` and ``--index-url``, paths and URLs are refused.
        project: A project's directory or ``pyproject.toml``, whose dependencies are installed; the project itself is not.
        groups: Dependency groups of the project to add.
        script: A script with dependencies in its comments (PEP 723).
        lock: A lock (``pylock.toml``, PEP 751). A package is accepted only from the package index, with a hash in the lock.
        base: ``interpreter`` adds to the interpreter's packages, whose versions are constraints. ``empty`` hides
            the interpreter's packages, except IPython and its dependencies. Default: what a lock of cellblock says;
            ``empty`` for an environment with a name; otherwise ``interpreter``.
        trusted: Whether `preload` may import the packages outside of the sandbox. It applies to this session, or to the
            environment that is created with a name.

    Raises:
        InvalidInputError: A value is invalid.
    """

    packages: Sequence[str] = ()
    requirements: Path | None = None
    project: Path | None = None
    groups: Sequence[str] = ()
    script: Path | None = None
    lock: Path | None = None
    base: Base | None = None
    trusted: bool = False

    def __post_init__(self) -> None:
        for name, example in (("packages", "['pandas>=2']"), ("groups", "['dev']")):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
                raise InvalidInputError(f"{name} of an environment must be a list such as {example}, not {shown(value)}")
            object.__setattr__(self, name, tuple(value))
        for name in ("requirements", "project", "script", "lock"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | os.PathLike) or not os.fspath(value)):
                raise InvalidInputError(f"{name} of an environment must be a path, not {shown(value)}")
        if self.base is not None:
            _check_base(self.base)
        if not isinstance(self.trusted, bool):
            raise InvalidInputError(f"trusted of an environment must be True or False, not {shown(self.trusted)}")
        if self.groups and self.project is None:
            raise InvalidInputError(
                "groups of an environment are groups of a project: pass project='DIRECTORY' (--project), too"
            )
        if self.lock is not None and (self.packages or self.requirements or self.project or self.script):
            raise InvalidInputError(
                "the lock of an environment is complete: leave packages, requirements, project, script out"
            )

    def read(self, base: Base = "interpreter") -> PackageSet:
        """Read the files, and return the packages.

        Args:
            base: The default of `base`.

        Raises:
            InvalidInputError: A file cannot be read, or has something that no environment can have. The message names it.
        """
        found: list[Parsed] = [_parsed(self.packages, {}, exact=False)]
        titles = [*self.packages]
        for path, parse in (
            (self.requirements, files.parse_requirements),
            (self.project, lambda text, name: files.parse_project(text, name, self.groups)),
            (self.script, files.parse_script),
            (self.lock, files.parse_lock),
        ):
            if path is not None:
                name = os.path.expanduser(os.fspath(path))
                name = files.project_file(name) if path is self.project else name
                found.append(parse(files.read_text(name), name))
                titles.append(name)
        packages = tuple(dict.fromkeys(one for parsed in found for one in parsed.packages))
        base = self.base or next((parsed.base for parsed in found if parsed.base), None) or base
        if not packages and base == "interpreter":
            raise InvalidInputError(f"{', '.join(titles) or 'the environment'} names no packages: name at least one")
        hashes = {name: values for parsed in found for name, values in parsed.hashes.items()}
        return PackageSet(packages, hashes, self.lock is not None, base, ", ".join(titles)[:200], self.trusted)


@dataclass(frozen=True, slots=True)
class PackageSet:
    """The packages of an environment, read from its inputs.

    Attributes:
        packages: Requirements.
        hashes: The accepted SHA-256 hashes by package; packages without an entry may have any.
        exact: Whether the requirements are complete, so that dependencies are not looked for.
        base: As for `Environment`.
        title: Where they are from, for errors.
        trusted: Whether the program trusts them (`Environment`). It is not part of the data, so that no client can claim it.
    """

    packages: tuple[str, ...] = ()
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exact: bool = False
    base: Base = "interpreter"
    title: str = field(default="", compare=False)
    trusted: bool = field(default=False, compare=False)

    def for_daemon(self) -> dict[str, Any]:
        """Return it as JSON data for a session of another process.

        Raises:
            InvalidInputError: It is trusted, which another process does not believe.
        """
        if self.trusted:
            raise InvalidInputError(
                "trusted=True is for sessions of this process: give the environment a name, trust it with "
                "'cellblock env trust NAME' where the session runs, and pass the name"
            )
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        hashes = {name: list(values) for name, values in self.hashes.items()}
        return {
            "packages": list(self.packages),
            "hashes": hashes,
            "exact": self.exact,
            "base": self.base,
            "title": self.title,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PackageSet:
        """Return a set of packages from JSON data.

        Raises:
            InvalidInputError: The data are invalid.
        """
        if unknown := data.keys() - {"packages", "hashes", "exact", "base", "title"}:
            raise InvalidInputError(f"environment has packages, hashes, exact and base, not {shown(min(map(str, unknown)))}")
        packages = data.get("packages", [])
        if not isinstance(packages, list | tuple) or not all(isinstance(one, str) for one in packages):
            raise InvalidInputError(f"packages of an environment must be a list, not {shown(packages)}")
        exact, title, base = data.get("exact", False), data.get("title", ""), data.get("base", "interpreter")
        if not isinstance(exact, bool) or not isinstance(title, str) or not title.isprintable():
            raise InvalidInputError("exact of an environment must be true or false, and title a printable text")
        _check_base(base)
        parsed = _parsed(packages, data.get("hashes", {}), exact=exact)
        return cls(parsed.packages, parsed.hashes, exact, base, title[:200] or ", ".join(packages)[:200])


def check_name(name: object) -> str:
    """Return the name of an environment.

    Raises:
        InvalidInputError: It is not a valid name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"the name of an environment has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or digit; "
            f"not {shown(name)}"
        )
    return name


def read_environment(given: object) -> str | PackageSet | None:
    """Return an option `environment`: a name, or packages; None without any.

    Raises:
        InvalidInputError: It is invalid.
    """
    if given is None or isinstance(given, PackageSet):
        return given
    if isinstance(given, Environment):
        return given.read()
    if isinstance(given, Mapping):
        return PackageSet.from_dict(given)
    if not isinstance(given, str):
        raise InvalidInputError(f"environment must be a name or an Environment, not {shown(given)}")
    return check_name(given)


def _parsed(packages: Sequence[str], hashes: object, *, exact: bool) -> Parsed:
    if len(packages) > MAX_PACKAGES:
        raise InvalidInputError(f"an environment has at most {MAX_PACKAGES} packages, not {len(packages)}")
    try:
        return Parsed(tuple(checked_requirement(one) for one in packages), checked_hashes(hashes), exact)
    except ValueError as error:
        raise InvalidInputError(f"packages of an environment: {error}") from None


def _check_base(base: object) -> None:
    if base not in _BASES:
        raise InvalidInputError(f"base of an environment must be 'interpreter' or 'empty', not {shown(base)}")
