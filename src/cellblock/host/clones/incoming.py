"""A session's commit on the host: verified objects in a repository of the host's own, before anything reaches the user's."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

from cellblock.errors import AccessError, InvalidInputError
from cellblock.host.clones.git import GitError, run_git
from cellblock.host.environments.linking import opened
from cellblock.model.clones import COMMIT
from cellblock.walls.sandbox.policy import PROTECTED, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellblock.host.clones.project import Project

MOST_PACKED = 512 * 2**20
"""Maximum bytes of a pack from a session."""

_REF = "refs/heads/changes"
_FORMATS = {40: "sha1", 64: "sha256"}
_LINK, _MODULE = "120000", "160000"
_MAX_TARGET = 4096
_SHOWN = 5
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Programs of the user obey these files, too: attributes name filters of the user's settings.
_NAMES = frozenset(name.casefold() for name in (*PROTECTED, *SECRET, ".gitattributes", ".lfsconfig"))


class _Change(NamedTuple):
    path: str
    mode: str
    object: str


@dataclass(frozen=True, slots=True)
class Incoming:
    """A verified commit. The methods block.

    Attributes:
        repository: The repository with its objects, which only the host can write.
        base: The commit that the clone began with.
        commit: The commit.
    """

    repository: str
    base: str
    commit: str

    @classmethod
    def receive(cls, out: str, repository: str, project: Project, base: str, commit: object) -> Incoming:
        """Verify a pack that a sandbox has written.

        Args:
            out: The directory of the sandbox, with ``changes.pack``.
            repository: A directory for the objects, which exists.
            project: The user's repository.
            base: The commit that the clone began with.
            commit: The commit, as the sandbox says.

        Raises:
            InvalidInputError: The pack or an object is invalid, incomplete or too large.
        """
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise InvalidInputError("the clone has no valid commit")
        _git(repository, "init", "--quiet", "--bare", "--template=", f"--object-format={_FORMATS[len(base)]}", ".")
        if project.repository:
            with open(f"{repository}/objects/info/alternates", "wb") as file:
                file.write(os.fsencode(project.objects) + b"\n")
        try:
            with opened(out) as directory:
                descriptor = os.open("changes.pack", _PLAIN, dir_fd=directory)
            with open(descriptor, "rb", buffering=0) as pack:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise InvalidInputError("the pack of the clone is not a regular file")
                _index(repository, pack)
            made = cls(repository, base, commit)
            _git(repository, "update-ref", _REF, commit)
            made._git("rev-list", "--objects", "--quiet", commit, f"^{base}")
        except OSError as error:
            raise InvalidInputError(f"the clone has packed no commits: {error.strerror}") from None
        except GitError as error:
            raise InvalidInputError(f"git refuses the commits of the clone: {error}") from None
        return made

    def fetch(self, project: Project, to: str) -> int:
        """Fetch the commit into the user's repository. Return the number of new commits."""
        project.fetch(self.repository, _REF, to)
        return int(self._git("rev-list", "--count", self.commit, f"^{self.base}"))

    @property
    def files(self) -> tuple[str, ...]:
        """The changed paths."""
        return tuple(change.path for change in self._changes())

    @property
    def patch(self) -> bytes:
        """The changes as a patch, which git on the host makes of verified objects, with no settings of the session."""
        options = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        try:
            return self._git("diff-tree", "-r", "-p", *options, self.base, self.commit)
        except GitError as error:
            raise InvalidInputError(f"the changes of the clone cannot be shown: {error}. Commit and fetch them") from None

    def check_harmless(self, hooks: str) -> None:
        """Check that the changes contain nothing that programs of the user obey, and no way out of the working copy.

        Args:
            hooks: The directory of hooks in the working copy; may be empty.

        Raises:
            AccessError: They do.
        """
        refused = [change.path for change in self._changes() if self._is_dangerous(change, hooks)]
        if refused:
            named = ", ".join(map(repr, refused[:_SHOWN])) + (f" and {len(refused) - _SHOWN} more" if refused[_SHOWN:] else "")
            raise AccessError(
                f"nothing was applied: programs of yours obey such files, or they lead out of the working copy: {named}. "
                "Look at the diff; to apply it as a whole, pass allow_protected=True (--allow-protected)"
            )

    def _is_dangerous(self, change: _Change, hooks: str) -> bool:
        parts = change.path.casefold().split("/")
        inside = hooks and (change.path == hooks or change.path.startswith(f"{hooks}/"))
        if inside or change.mode == _MODULE or any(_is_named(parts, name) for name in _NAMES):
            return True
        return change.mode == _LINK and _leads_out(len(parts) - 1, self._target(change.object))

    def _target(self, link: str) -> str:
        target = self._git("cat-file", "blob", link)
        return os.fsdecode(target) if len(target) <= _MAX_TARGET else "/"

    def _changes(self) -> Iterator[_Change]:
        """Yield the changes: all paths, with the new modes and objects."""
        *fields, _ = self._git("diff-tree", "-r", "-z", "--raw", "--no-renames", self.base, self.commit).split(b"\0")
        for about, path in zip(fields[::2], fields[1::2], strict=True):
            _, mode, _, made, _ = about.decode().split()
            yield _Change(os.fsdecode(path), mode, made)

    def _git(self, *arguments: str) -> bytes:
        return _git(self.repository, *arguments)


def _index(repository: str, pack: IO[bytes]) -> None:
    """Add the objects of a pack to a repository."""
    limit = f"--max-input-size={MOST_PACKED}"
    # --strict also refuses trees with .git or its variants, and objects that refer to missing ones.
    run_git(repository, "index-pack", "--strict", "--fix-thin", "--stdin", limit, data=pack, untrusted=True)


def _git(repository: str, *arguments: str) -> bytes:
    return run_git(repository, *arguments, untrusted=True)


def _is_named(parts: list[str], name: str) -> bool:
    """Return whether a path, or a folder on it, has a name, which may have a slash. Any folder can be someone's workspace."""
    names = name.split("/")
    return any(parts[at : at + len(names)] == names for at in range(len(parts)))


def _leads_out(depth: int, target: str) -> bool:
    """Return whether a link could lead out of the working copy, or to protected names.

    Steps upwards are counted only at its beginning: after another link, they lead elsewhere than they seem to.

    Args:
        depth: The number of folders around the link.
        target: The target of the link.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    folded = [part.casefold() for part in parts]
    return target.startswith("/") or up > depth or ".." in parts[up:] or any(_is_named(folded, name) for name in _NAMES)
