"""Finds the repositories that git enters from the top of a workspace: submodules and worktrees.

`git status` at the top enters them automatically, and obeys their ``.git``. So these are protected like the top's own.
Their names are read from .gitmodules and the top's ``.git``, which a session cannot write if they existed before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from cellblock.walls.sandbox.paths import is_inside
from cellblock.wire.sandbox import Plan, Protect

_MOST = 256
"""Maximum number of repositories: each costs a mount."""

_MAX_SIZE = 256 * 1024
_DEPTH = 8
_PATH = re.compile(rb"^\s*path\s*=\s*(.+?)\s*$", re.MULTILINE)
_WORKTREE = re.compile(rb"^\s*worktree\s*=\s*(.+?)\s*$", re.MULTILINE)


def protect_repositories(plan: Plan) -> Plan:
    """Return a plan that also protects the ``.git`` of submodules and worktrees, if it protects the one that names them."""
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
    for place in _named(top):
        path = os.path.normpath(os.path.join(top, place))
        if path != top and is_inside(path, top) and not is_inside(path, f"{top}/.git"):
            found[f"{os.path.relpath(path, top)}/.git"] = None
        if len(found) == _MOST:
            break
    return [*found]


def _named(top: str) -> Iterator[str]:
    """Yield the directories of submodules and worktrees, as named in git's own files."""
    yield from (_text(path) for path in _PATH.findall(_read(f"{top}/.gitmodules")))
    yield from _submodules(f"{top}/.git/modules", 0)
    for name in _entries(f"{top}/.git/worktrees"):
        path = _text(_read(f"{top}/.git/worktrees/{name}/gitdir").strip())
        if path.endswith("/.git"):
            yield os.path.join(f"{top}/.git/worktrees/{name}", path.removesuffix("/.git"))


def _submodules(directory: str, depth: int) -> Iterator[str]:
    """Yield the directories that the repositories below ``modules`` name as theirs; a submodule's name may have slashes."""
    for name in _entries(directory) if depth < _DEPTH else ():
        place = f"{directory}/{name}"
        if os.path.isfile(f"{place}/config"):
            yield from (os.path.join(place, _text(path)) for path in _WORKTREE.findall(_read(f"{place}/config")))
            yield from _submodules(f"{place}/modules", depth + 1)
        elif os.path.isdir(place):
            yield from _submodules(place, depth + 1)


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:_MOST]
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MAX_SIZE)
    except OSError:
        return b""  # a directory
    finally:
        os.close(descriptor)


def _text(path: bytes) -> str:
    return os.fsdecode(path.strip(b'"'))
