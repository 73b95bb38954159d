"""Limits what the host does to a workspace on a session's behalf: nothing that the session itself may not do.

Otherwise a client, a saved session or an archive could use the host to bypass the sandbox: write a file that the user's
editor, agent or git obeys later, or read a secret in the workspace.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cellblock.errors import FilesError
from cellblock.host.files.info import Parts, show
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import denied_paths, masked_paths, resolve_paths

if TYPE_CHECKING:
    from cellblock.walls.sandbox.policy import Policy
    from cellblock.walls.sandbox.probe import Facts

UNREADABLE = "the session's sandbox hides it"
UNWRITABLE = "the session's sandbox protects it"
OUTSIDE = "the session's sandbox does not allow writing it"
_WHY = "so the host does not do that on the session's behalf (docs/files.md)"

_REMEMBERED = 64
"""Walls that are not computed again for the next session, which takes a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class Walls:
    """The absolute paths that a policy denies a session. Computed once per session; `within` resolves them on disk.

    Attributes:
        hidden: Paths that cannot be read or written.
        shown: Exceptions in hidden paths.
        protected: Paths that cannot be written.
        writable: Paths that can be written, unless protected. ``/`` stands for all.
        hidden_like: More hidden paths, as a pattern of absolute paths.
        protected_like: More protected paths, as a pattern.
    """

    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    writable: tuple[str, ...] = ("/",)
    hidden_like: re.Pattern[str] | None = None
    protected_like: re.Pattern[str] | None = None

    @classmethod
    @functools.lru_cache(maxsize=_REMEMBERED)
    def of(cls, policy: Policy, facts: Facts, workspace: str, directory: str) -> Self:
        """Return the walls of a session without file access, so that sessions with the same workspace and policy share them.

        Args:
            policy: Its policy.
            facts: Facts about this machine.
            workspace: The workspace of its sandbox.
            directory: Its working directory: the workspace, or the directory of a branch. Names protected at the top of the
                workspace are also protected at the top of a branch, whose files can replace the workspace's.
        """
        rules = policy.rules
        hidden, protected = [], []
        for top in dict.fromkeys((workspace, directory)):
            hidden += masked_paths(rules, top, facts)
            protected += denied_paths(rules.deny_write, rules.write, facts, top)
        shown = resolve_paths((name for name in policy.shown if name != "/"), workspace, facts)
        return cls(
            tuple(dict.fromkeys(hidden)),
            tuple(dict.fromkeys(shown)),
            tuple(dict.fromkeys(protected)),
            tuple(dict.fromkeys(resolve_paths(rules.write, workspace, facts))),
            policy.denied_like(rules.deny_read, workspace, facts.home),
            policy.denied_like(rules.deny_write, workspace, facts.home),
        )

    def within(self, root: str) -> Bounds:
        """Return the part of the walls in a directory, with links resolved now.

        Args:
            root: The directory, absolute and without links.
        """

        def named(paths: Iterable[str]) -> frozenset[Parts]:
            return frozenset(map(_folded, _beneath(root, paths)))

        return Bounds(
            named(self.hidden),
            named(self.shown),
            named(self.protected),
            writable=None if _around(root, self.writable) else named(self.writable),
            all_hidden=_around(root, self.hidden) > _around(root, self.shown),
            hidden_like=self.hidden_like,
            protected_like=self.protected_like,
            root=root,
        )

    def names(self, root: str) -> set[str]:
        """Return the part of the walls in a directory as ignore patterns of a snapshot: ``/.env`` is at the top.

        Args:
            root: The directory, absolute and without links.
        """
        return {f"/{show(parts)}" for parts in _beneath(root, (*self.hidden, *self.protected))}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The walls for one operation, with paths from the top of a workspace and case-insensitive names.

    A file system may not distinguish ``.git`` from ``.GIT``. Refusing both is harmless where it does.
    """

    hidden: frozenset[Parts] = frozenset()
    shown: frozenset[Parts] = frozenset()
    protected: frozenset[Parts] = frozenset()
    writable: frozenset[Parts] | None = None
    """None: everything."""
    all_hidden: bool = False
    """Whether a hidden path contains the workspace."""
    hidden_like: re.Pattern[str] | None = None
    protected_like: re.Pattern[str] | None = None
    root: str = ""

    def hides(self, parts: Parts) -> bool:
        """Return whether the session cannot read a path."""
        folded = _folded(parts)
        hidden, shown = _longest(folded, self.hidden), _longest(folded, self.shown)
        if self.hidden_like is not None:
            hidden = max(hidden, _longest_like(parts, self.hidden_like, self.root))
        return shown < hidden or (shown == 0 and self.all_hidden)

    def why_unreadable(self, parts: Parts) -> str:
        """Return why a path must not be read; empty if it may."""
        return UNREADABLE if self.hides(parts) else ""

    def why_unwritable(self, parts: Parts) -> str:
        """Return why a path must not be written; empty if it may."""
        if self.hides(parts):
            return UNREADABLE
        folded = _folded(parts)
        if _longest(folded, self.protected) > 0:
            return UNWRITABLE
        if self.protected_like is not None and _longest_like(parts, self.protected_like, self.root) > 0:
            return UNWRITABLE
        # Only entries of the workspace itself are written, and those are checked.
        return "" if self.writable is None or not parts or _longest(folded, self.writable) > 0 else OUTSIDE

    def check_readable(self, verb: str, parts: Parts) -> None:
        """Check that the session can read a path.

        Raises:
            FilesError: It cannot.
        """
        if why := self.why_unreadable(parts):
            raise _refusal(verb, parts, why)

    def check_writable(self, verb: str, parts: Parts) -> None:
        """Check that the session can write a path.

        Raises:
            FilesError: It cannot.
        """
        if why := self.why_unwritable(parts):
            raise _refusal(verb, parts, why)

    def check_removable(self, verb: str, parts: Parts) -> None:
        """Check that the session can write a path and everything in it.

        Raises:
            FilesError: It cannot.
        """
        self.check_writable(verb, parts)
        folded = _folded(parts)
        for inside in (*self.hidden, *self.protected):
            if inside[: len(folded)] == folded:
                raise _refusal(verb, parts, f"the session's sandbox protects {show(inside)!r} in it")


NO_BOUNDS = Bounds()
"""For actions of the program itself, and for sessions without a sandbox."""


def _refusal(verb: str, parts: Parts, why: str) -> FilesError:
    path = show(parts)
    return FilesError(f"cannot {verb} {path!r}: {why}, {_WHY}", path=path, errno=errno.EACCES)


def _folded(parts: Parts) -> Parts:
    return tuple(part.casefold() for part in parts)


def _longest(parts: Parts, among: frozenset[Parts]) -> int:
    """Return the length of the longest path in a set that is this path or a parent; 0 for none."""
    return max((length for length in range(1, len(parts) + 1) if parts[:length] in among), default=0)


def _beneath(root: str, paths: Iterable[str]) -> set[Parts]:
    """Return the paths inside a directory and the targets of links among them, relative to the directory."""
    places = _with_targets(paths)
    return {tuple(place[len(root) :].strip("/").split("/")) for place in places if place != root and is_inside(place, root)}


def _with_targets(paths: Iterable[str]) -> set[str]:
    """Return paths together with their resolved forms.

    Dozens of them lie in a few directories, and each session asks. `os.path.realpath` for every path would examine each parent
    directory again and again.
    """
    places: set[str] = set()
    directories: dict[str, str] = {}
    for path in paths:
        directory, name = os.path.split(path)
        if name in ("", ".") or "/.." in path or os.path.islink(path):
            real = os.path.realpath(path)
        else:
            if directory not in directories:
                directories[directory] = os.path.realpath(directory)
            real = os.path.join(directories[directory], name)
        places |= {path, real}
    return places


def _around(root: str, paths: Iterable[str]) -> int:
    """Return the length of the longest path that is a directory or its parent; 0 for none."""
    places = _with_targets(paths)
    return max((len(place) for place in places if is_inside(root, place)), default=0)


def _longest_like(parts: Parts, pattern: re.Pattern[str], root: str) -> int:
    """Return the length of the longest prefix of a path that a pattern matches; 0 for none."""
    lengths = range(1, len(parts) + 1)
    return max((length for length in lengths if pattern.fullmatch(f"{root}/{show(parts[:length])}")), default=0)
