"""Finds the repositories that git enters from the top of a workspace: submodules and worktrees.

`git status` at the top enters them automatically, and obeys their ``.git``. So these are protected like the top's own. Their
names are read from .gitmodules and the top's ``.git``, which a session cannot write if they existed before it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from cellblock.walls.sandbox.paths import is_inside
from cellblock.wire.sandbox import Plan, Protect

_MOST = 256
"""Maximum number of repositories: each costs a mount."""

_MAX_SIZE = 256 * 1024
_MAX_CONFIG = 16 * 1024
_MAX_PATH = 4096
_MAX_FOLDERS = 512
"""Maximum directories that are listed: a session can make a tree of any size, and its zygote serves others, too."""

_DEPTH = 8


def protect_repositories(plan: Plan) -> Plan:
    """Return a plan that also protects the ``.git`` of submodules and worktrees, if it protects their repository."""
    steps, reserve = [], dict(plan.reserve)
    for step in plan.steps:
        if isinstance(step, Protect) and step.target == f"{step.top}/.git":
            found = [name for name in find_repositories(step.top) if name not in reserve.get(step.top, ())]
            steps += [Protect(step.top, f"{step.top}/{name}") for name in found]
            if found:
                reserve[step.top] = (*reserve.get(step.top, ()), *found)
    return replace(plan, steps=(*plan.steps, *steps), reserve=reserve) if steps else plan


def find_repositories(top: str) -> list[str]:
    """Return the paths of the ``.git`` of each submodule and worktree in a directory, whether or not they exist.

    Args:
        top: The directory, absolute and without symbolic links.
    """
    found: dict[str, None] = {}
    for place in islice(_named(top), 2 * _MOST):  # some may not exist
        path = os.path.normpath(os.path.join(top, place))
        if path != top and is_inside(path, top) and not is_inside(path, f"{top}/.git"):
            found[f"{os.path.relpath(path, top)}/.git"] = None
        if len(found) == _MOST:
            break
    return [*found]


def _named(top: str) -> Iterator[str]:
    """Yield the directories of submodules and worktrees in git's own files."""
    yield from (_text(path) for path in _values(b"path", _read(f"{top}/.gitmodules", _MAX_SIZE)))
    yield from _submodules(f"{top}/.git/modules")
    for name in _entries(f"{top}/.git/worktrees"):
        path = _text(_read(f"{top}/.git/worktrees/{name}/gitdir", _MAX_PATH).strip())
        if path.endswith("/.git"):
            yield os.path.join(f"{top}/.git/worktrees/{name}", path.removesuffix("/.git"))


def _submodules(modules: str) -> Iterator[str]:
    """Yield the work trees of the repositories in ``modules``. A submodule's name may have slashes."""
    folders = deque([(modules, 0)])
    for _ in range(_MAX_FOLDERS):
        if not folders:
            return
        directory, depth = folders.popleft()
        for name in _entries(directory) if depth < _DEPTH else ():
            place = f"{directory}/{name}"
            if os.path.isfile(f"{place}/config"):
                config = _read(f"{place}/config", _MAX_CONFIG)
                yield from (os.path.join(place, _text(path)) for path in _values(b"worktree", config))
                folders.append((f"{place}/modules", depth + 1))
            elif os.path.isdir(place):
                folders.append((place, depth + 1))


def _values(key: bytes, config: bytes) -> Iterator[bytes]:
    """Yield the values of a key in git's settings. Without regular expressions: a session may have written the file."""
    for line in config.splitlines():
        if line.lstrip().startswith(b"["):  # a section header, perhaps followed by its first key
            line = line.partition(b'"]' if b'"]' in line else b"]")[2]
        name, _, value = line.partition(b"=")
        if name.strip().lower() == key and (value := value.strip()):
            yield value if value.startswith(b'"') else value.partition(b"#")[0].partition(b";")[0].strip()


def _entries(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as found:
            return sorted(entry.name for entry in islice(found, _MOST))
    except OSError:
        return []


def _read(path: str, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""  # a directory
    finally:
        os.close(descriptor)


def _text(path: bytes) -> str:
    return os.fsdecode(path.strip(b'"'))
