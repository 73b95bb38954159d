"""Parses the arguments of ``pip install`` that sessions may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cellblock.common.environments import PackageSet
from cellblock.errors import InvalidInputError

_MAX_ARGUMENTS = 128 * 1024  # characters
_FLAGS = {
    "-U": "upgrade",
    "--upgrade": "upgrade",
    "--pre": "pre",
    "--no-deps": "no_deps",
    "-I": "ignore_installed",
    "--ignore-installed": "ignore_installed",
    "-q": "quiet",
    "--quiet": "quiet",
}
_WITHOUT_EFFECT = ("-v", "--verbose", "--no-input", "--no-cache-dir", "--disable-pip-version-check")
_FILE = ("-r", "--requirement", "--requirements")


@dataclass(slots=True)
class Requirements:
    """What to install.

    Attributes:
        names: Requirements, and paths of local archives and directories.
        files: Paths of files with more.
        options: The chosen options: ``upgrade``, ``pre``, ``no_deps``, ``ignore_installed``, ``quiet``,
            ``alone`` (without the interpreter's packages).
        hashes: The accepted hashes by package; packages without an entry may have any.
        title: Where the requirements are from, for messages.
    """

    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""

    @property
    def alone(self) -> bool:
        """Whether the interpreter's packages are hidden."""
        return "alone" in self.options

    @property
    def locked(self) -> bool:
        """Whether only files with the hashes are accepted."""
        return bool(self.hashes) and "no_deps" in self.options

    @property
    def local(self) -> bool:
        """Whether files of the session matter."""
        return bool(self.files) or any("/" in name or name.startswith((".", "~")) for name in self.names)


def of_set(given: PackageSet) -> Requirements:
    """Return the requirements of a set of packages."""
    options = {name for name, chosen in (("no_deps", given.exact), ("alone", given.base == "empty")) if chosen}
    return Requirements([*given.packages], [], options, given.hashes, given.title)


def parse(arguments: Sequence[str]) -> Requirements:
    """Return what the arguments of ``pip install`` ask for.

    Raises:
        InvalidInputError: They name nothing, or something that a session may not choose.
    """
    if sum(map(len, arguments)) + len(arguments) > _MAX_ARGUMENTS:
        raise InvalidInputError(
            f"the requirements exceed {_MAX_ARGUMENTS:,} characters: put the requirements in a file, for -r"
        )
    found = Requirements()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in _FILE:
            found.files.append(next(rest, ""))
        elif name in _FILE[1:] and equals:
            found.files.append(value)
        elif argument.startswith("-r") and not argument.startswith("--"):
            found.files.append(argument[2:])
        elif argument.startswith("-"):
            found.options |= _options(argument)
        else:
            _check_name(argument)
            found.names.append(argument.removeprefix("file://"))
    if not found.names and not any(found.files):
        raise InvalidInputError("name the packages to install: install('package>=1')")
    found.title = ", ".join(found.names or found.files)
    return found


def _options(argument: str) -> set[str]:
    """Return the options in an argument, which may be a bundle of short ones: ``-qU``."""
    letters = [argument] if argument.startswith("--") else [f"-{letter}" for letter in argument[1:]]
    if unknown := [one for one in letters if one not in _FLAGS and one not in _WITHOUT_EFFECT]:
        raise InvalidInputError(
            f"{unknown[0]} cannot be chosen by a session: packages come from the host's index, for it alone. "
            "%pip install has -r FILE, -U, -I (--ignore-installed), --no-deps, --pre and -q"
        )
    return {_FLAGS[one] for one in letters if one in _FLAGS}


def _check_name(argument: str) -> None:
    if not argument.isprintable():
        raise InvalidInputError("a requirement is one line of printable characters")
    local = argument.startswith(("file:///", "./", "../", "/"))
    if ("://" in argument and not local) or "@ file:" in argument or argument.startswith("git+"):
        raise InvalidInputError(
            f"{argument} is not in the host's package index, and only the index can be reached: download it in a cell, if the "
            "session's network allows it, and install the file"
        )
