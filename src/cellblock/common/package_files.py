"""Parsers of the files that name packages: requirements, projects, scripts and locks. They fetch nothing and run nothing.

Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cellblock.common import config
from cellblock.errors import InvalidInputError, shown

MAX_PACKAGES = 2000
"""Maximum packages of an environment."""

_MAX_FILE = 16 * 2**20
_MAX_NESTED = 20
_MAX_REQUIREMENT = 1000  # characters
_HEAD = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99}) ?(\[[A-Za-z0-9._, -]*\])? ?\(?([^()]*)\)?")
_VERSION = re.compile(r"(?:~=|===?|!=|<=?|>=?) ?[A-Za-z0-9][A-Za-z0-9.*+!_-]*")
_MARKER = re.compile(r"[A-Za-z0-9_ .,'\"()<>=!~+*-]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_HASH_OPTION = re.compile(r"\s--hash(?:=|\s+)(\S+)")
_SETS = re.compile(r"\b(?:extras|dependency_groups)\b")
_ADVICE = {
    ("-r", "--requirement"): "copy the lines of the other file into this one",
    ("-c", "--constraint"): "copy the versions of the other file into this one, or use a lock",
    (
        "-e",
        "--editable",
        ".",
        "/",
        "~",
        "file:",
    ): ("add the directory to PYTHONPATH, or put a wheel of it into your package index"),
    ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host"): (
        "remove the line, and name the index in pip's configuration of this program"
    ),
    ("-",): "remove the option",
}


class Parsed(NamedTuple):
    """Packages, as a file names them.

    Attributes:
        packages: Requirements.
        hashes: The accepted SHA-256 hashes by package; packages without an entry may have any.
        exact: Whether these are all packages, with their dependencies.
        base: The `base` of the environment that a lock is from, if known.
    """

    packages: tuple[str, ...]
    hashes: Mapping[str, tuple[str, ...]]
    exact: bool = False
    base: Literal["interpreter", "empty"] | None = None


def normal(name: str) -> str:
    """Return the normalized name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def checked_requirement(text: str) -> str:
    """Return a requirement with single spaces.

    Raises:
        ValueError: It is not a name with extras, versions and markers. The message says what to do.
    """
    text = " ".join(text.split())
    head, semicolon, marker = text.partition(";")
    if "://" in text or "@" in head:
        raise ValueError(f"{shown(text)} is not in the package index: put a wheel of it into your index, and name its version")
    for starts, advice in _ADVICE.items():
        if text.startswith(starts):
            raise ValueError(f"{shown(text)} is not supported: {advice}")
    match = _HEAD.fullmatch(head.strip())
    versions = match[3].strip().removesuffix(",") if match else ""
    valid = match is not None and all(_VERSION.fullmatch(one.strip()) for one in (versions.split(",") if versions else ()))
    if not valid or len(text) > _MAX_REQUIREMENT or (semicolon and not _MARKER.fullmatch(marker)):
        raise ValueError(f"{shown(text)} is not a requirement such as 'pandas>=2'")
    return text


def name_of(requirement: str) -> str:
    """Return the normalized name in a requirement that was checked."""
    match = _HEAD.match(requirement)
    assert match is not None
    return normal(match[1])


def checked_hashes(given: object) -> dict[str, tuple[str, ...]]:
    """Return hashes by package.

    Raises:
        ValueError: They are not SHA-256 hashes.
    """
    if not isinstance(given, Mapping):
        raise ValueError("hashes must be lists of SHA-256 hashes by package")  # noqa: TRY004  # all of them are ValueError
    found = {}
    for name, values in given.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ValueError(f"hashes: {shown(name)} must have a list of SHA-256 hashes")
        if not all(isinstance(value, str) and _HASH.fullmatch(value) for value in values):
            raise ValueError(f"hashes: {shown(name)} has a value that is not a SHA-256 hash in lower case")
        found[normal(str(name))] = tuple(dict.fromkeys(values))
    return found


def read_text(path: str) -> str:
    """Read a file of packages.

    Raises:
        InvalidInputError: It cannot be read.
    """
    try:
        return config.read_file(Path(path), _MAX_FILE).decode("utf-8-sig")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} cannot be a file of packages: {error}") from None


def parse_requirements(text: str, path: str) -> Parsed:
    """Parse a file for ``pip install -r``.

    Args:
        text: Its content.
        path: Its path, for errors.

    Raises:
        InvalidInputError: A line is not a requirement. The message names file, line, cause and next step.
    """
    packages: list[str] = []
    hashes: dict[str, tuple[str, ...]] = {}
    for number, line in _logical_lines(text):
        try:
            bare = _HASH_OPTION.sub("", line)
            packages.append(checked_requirement(bare))
            if given := _HASH_OPTION.findall(line):
                known = [one.removeprefix("sha256:").lower() for one in given if one.startswith("sha256:")]
                if not known:
                    raise ValueError("only sha256 hashes are supported: write 'sha256:…'")
                hashes |= checked_hashes({name_of(packages[-1]): known})
        except ValueError as error:
            raise InvalidInputError(f"{path}, line {number}: {error}") from None
    return Parsed(tuple(packages), hashes)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, joined at backslashes, with the number of the first."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if pending else number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        whole = re.sub(r"(^|\s)#.*", "", pending + line).strip()
        pending = ""
        if whole:
            yield first, whole
    if whole := re.sub(r"(^|\s)#.*", "", pending).strip():
        yield first, whole


def parse_project(text: str, path: str, groups: Iterable[str] = ()) -> Parsed:
    """Parse the dependencies and dependency groups (PEP 735) of a ``pyproject.toml``.

    Args:
        text: Its content.
        path: Its path, for errors.
        groups: The names of groups to include.

    Raises:
        InvalidInputError: It is invalid, or its dependencies are not from the index.
    """
    data = _toml(text, path)
    project = data.get("project", {})
    if not isinstance(project, dict) or not isinstance(project.get("dependencies", []), list):
        raise InvalidInputError(f"{path}: project.dependencies must be a list of requirements")
    if "dependencies" in (project.get("dynamic") or ()):
        raise InvalidInputError(f"{path}: the dependencies are dynamic, so only a build knows them: lock them, and pass lock=")
    found = [(f"{path}, project.dependencies", one) for one in project.get("dependencies", [])]
    tables = data.get("dependency-groups", {})
    known = {normal(name): (name, items) for name, items in (tables if isinstance(tables, dict) else {}).items()}
    included: set[str] = set()
    for group in groups:
        found += _group(normal(group), known, path, (), included)
    if not found:
        raise InvalidInputError(f"{path} names no dependencies: add project.dependencies, or pass groups=")
    return _checked_all(found, data, path)


def _group(
    name: str, known: Mapping[str, tuple[str, object]], path: str, above: tuple[str, ...], included: set[str]
) -> list[tuple[str, object]]:
    if name not in known:
        raise InvalidInputError(f"{path} has no dependency group {name!r}: it has {', '.join(sorted(known)) or 'none'}")
    if name in above:
        raise InvalidInputError(f"{path}: the dependency groups {' and '.join(dict.fromkeys(above))} include each other")
    if len(above) > _MAX_NESTED:
        raise InvalidInputError(f"{path}: dependency groups are nested more than {_MAX_NESTED} levels deep")
    if name in included:  # once: groups that include two others twice each would take exponential time
        return []
    included.add(name)
    title, items = known[name]
    where = f"{path}, dependency group {title}"
    if not isinstance(items, list):
        raise InvalidInputError(f"{where}: it must be a list")
    found: list[tuple[str, object]] = []
    for item in items:
        if isinstance(item, dict) and item.keys() == {"include-group"}:
            found += _group(normal(str(item["include-group"])), known, path, (*above, name), included)
        else:
            found.append((where, item))
        if len(found) > MAX_PACKAGES:
            raise InvalidInputError(f"{where}: it has more than {MAX_PACKAGES} packages")
    return found


def parse_script(text: str, path: str) -> Parsed:
    """Parse the dependencies in the comments of a script (PEP 723).

    Args:
        text: The script.
        path: Its path, for errors.

    Raises:
        InvalidInputError: It has no such comments, or they are invalid.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line == "# /// script"]
    if len(starts) != 1:
        count = "no" if not starts else "more than one"
        raise InvalidInputError(f"{path} has {count} block '# /// script': write one, with 'dependencies = [...]' (PEP 723)")
    block: list[str] = []
    for line in lines[starts[0] + 1 :]:
        if line != "#" and not line.startswith("# "):
            break
        block.append(line)
    if "# ///" not in block:
        raise InvalidInputError(f"{path}, line {starts[0] + 1}: the block has no end: write '# ///' after it")
    end = len(block) - 1 - block[::-1].index("# ///")
    data = _toml("\n".join(line[2:] for line in block[:end]), path)
    listed = data.get("dependencies", [])
    if not isinstance(listed, list):
        raise InvalidInputError(f"{path}: dependencies must be a list of requirements")
    return _checked_all([(f"{path}, dependencies", one) for one in listed], data, path)


def _checked_all(found: Iterable[tuple[str, object]], data: Mapping[str, Any], path: str) -> Parsed:
    packages = []
    sources = data.get("tool", {})
    for name in ("uv", "sources"):
        sources = sources.get(name, {}) if isinstance(sources, dict) else {}
    elsewhere = {normal(name) for name in sources} if isinstance(sources, dict) else set()
    for where, item in found:
        try:
            if not isinstance(item, str):
                raise ValueError(f"{shown(item)} is not a requirement such as 'pandas>=2'")  # noqa: TRY004  # shown below
            packages.append(checked_requirement(item))
        except ValueError as error:
            raise InvalidInputError(f"{where}: {error}") from None
        # The index could have another package of this name.
        if (name := name_of(packages[-1])) in elsewhere:
            raise InvalidInputError(
                f"{path}: [tool.uv.sources] takes {name} from elsewhere, and only the package index can be used: put a wheel "
                "of it into your index, and remove the entry"
            )
    return Parsed(tuple(packages), {})


def parse_lock(text: str, path: str) -> Parsed:
    """Parse a lock (``pylock.toml``, PEP 751). Its URLs are not used: files come from the index, if they have a listed hash.

    Args:
        text: The lock.
        path: Its path, for errors.

    Raises:
        InvalidInputError: It is invalid, has packages without hashes, or packages that no index can have.
    """
    data = _toml(text, path)
    if str(data.get("lock-version", "")).partition(".")[0] != "1":
        raise InvalidInputError(f"{path} is not a lock of version 1 (PEP 751): make one with 'uv export --format pylock.toml'")
    entries = data.get("packages")
    if not isinstance(entries, list) or len(entries) > MAX_PACKAGES:
        raise InvalidInputError(f"{path}: packages must be a list of at most {MAX_PACKAGES} tables")
    packages: list[str] = []
    hashes: dict[str, tuple[str, ...]] = {}
    for number, entry in enumerate(entries, 1):
        try:
            requirement, values = _locked(entry)
        except ValueError as error:
            name = entry.get("name", number) if isinstance(entry, dict) else number
            raise InvalidInputError(f"{path}, package {name}: {error}") from None
        packages.append(requirement)
        hashes[name_of(requirement)] = (*hashes.get(name_of(requirement), ()), *values)
    own = data.get("tool", {}).get("cellblock", {}) if isinstance(data.get("tool"), dict) else {}
    base = own.get("base") if isinstance(own, dict) else None
    return Parsed(tuple(packages), hashes, exact=True, base=base if base in ("interpreter", "empty") else None)


def _locked(entry: object) -> tuple[str, tuple[str, ...]]:
    """Return the requirement and the hashes of one package of a lock.

    Raises:
        ValueError: It is invalid.
    """
    if not isinstance(entry, dict):
        raise ValueError("it must be a table")  # noqa: TRY004  # all of them are ValueError
    if other := {"vcs", "directory", "archive"} & entry.keys():
        raise ValueError(
            f"its source is {min(other)}, not from a package index: leave it out, as 'uv export --no-emit-local' and "
            "'--no-emit-project' do, or put a wheel of it into your index"
        )
    if not all(isinstance(entry.get(name), str) for name in ("name", "version")):
        raise ValueError("it needs a name and a version")
    marker = entry.get("marker", "")
    if not isinstance(marker, str) or _SETS.search(marker):
        raise ValueError("its marker depends on extras or dependency groups: export the lock for one set of them")
    wheels, source = entry.get("wheels", []), entry.get("sdist")
    files = [*(wheels if isinstance(wheels, list) else []), *([] if source is None else [source])]
    values = []
    for file in files:
        known = file.get("hashes") if isinstance(file, dict) else None
        if not isinstance(known, dict) or not isinstance(known.get("sha256"), str):
            raise ValueError("a file has no sha256 hash: make the lock again, with hashes")  # noqa: TRY004  # all are
        values.append(known["sha256"].lower())
    requirement = f"{entry['name']}=={entry['version']}" + (f"; {marker}" if marker else "")
    hashes = checked_hashes({entry["name"]: values})
    return checked_requirement(requirement), hashes[normal(entry["name"])]


def _toml(text: str, path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not valid TOML: {error}") from None


def project_file(path: str) -> str:
    """Return the path of a project's file, by the file or its directory."""
    return os.path.join(path, "pyproject.toml") if os.path.isdir(path) else path
