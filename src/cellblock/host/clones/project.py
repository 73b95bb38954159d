"""The user's repository that a session works in a clone of."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cellblock.errors import ConflictError, InvalidInputError, StateError, UnsupportedError
from cellblock.host.clones.git import GitError, run_git
from cellblock.model.clones import Applied

_ADVICE = "commit there, or leave out workspace='clone' (--clone)"
_CHANGES = "Uncommitted changes"
_MAX_PATH = 4096


def find_repository(directory: str) -> str:
    """Return the directory of a working copy's repository: its ``.git``, or a worktree's shared repository.

    Args:
        directory: The top of the working copy, absolute and without symbolic links.

    Raises:
        InvalidInputError: The directory is not the top of a working copy.
    """
    found = os.path.join(directory, ".git")
    if os.path.isfile(found):  # a worktree
        found = _pointer(found, "gitdir: ", directory)
        if os.path.isfile(shared := os.path.join(found, "commondir")):
            found = _pointer(shared, "", found)
    if not os.path.isdir(os.path.join(found, "objects")):
        above = Path(directory)
        while above != above.parent and not (above / ".git").exists():
            above = above.parent
        if above != above.parent:
            raise InvalidInputError(
                f"{directory} is a folder of the git repository {above}: a session in a clone works at its top "
                "(working_dir=, --workspace)"
            )
        raise InvalidInputError(
            f"{directory} is not a git repository, so a session cannot work in a clone of it: run 'git init' and {_ADVICE}"
        )
    return os.path.realpath(found)


def _pointer(path: str, prefix: str, base: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read(_MAX_PATH).strip()
    return os.path.join(base, text.removeprefix(prefix))


@dataclass(frozen=True, slots=True)
class Project:
    """A repository of the user, with its working copy. The methods block.

    Attributes:
        path: The top of the working copy.
        repository: The repository; empty if the project has none, and a saved clone is loaded.
    """

    path: str
    repository: str

    def check_exists(self) -> None:
        """Check that the repository exists.

        Raises:
            StateError: It does not exist.
        """
        if not self.repository:
            raise StateError(
                f"{self.path} has no git repository, so the changes of the saved clone cannot get there: run 'git init' there"
            )

    def check(self, *, changes: bool) -> str:
        """Check that a clone can share the objects of the repository. Return the commit that it begins with.

        Args:
            changes: Whether it begins with uncommitted changes, too, except untracked files.

        Raises:
            InvalidInputError, UnsupportedError: It cannot. The message says what to do.
        """
        try:
            base = self._text("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except GitError as error:
            why = str(error) if error.status != 1 else "it has no commit"
            raise InvalidInputError(f"a session cannot work in a clone of {self.path}: {why}; {_ADVICE}") from None
        if changes:
            base = self._with_changes(base)
        if os.path.lexists(os.path.join(self.repository, "objects/info/alternates")):
            raise self._unsupported(
                "it shares objects with another one", "run 'git repack -a -d' there and remove .git/objects/info/alternates"
            )
        if self._finds("config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$"):
            raise self._unsupported("it is a partial clone", "use a complete clone")
        if self._text("rev-parse", "--is-shallow-repository") == "true":
            raise self._unsupported("it is a shallow clone", "fetch its whole history first")
        if any(line.startswith(b"160000 ") for line in self._git("ls-tree", "-r", "-z", base).split(b"\0")):
            raise self._unsupported("it has submodules", "work in a submodule, or without a clone")
        if self._finds("grep", "-q", "-I", "filter=lfs", base, "--", ":(top,glob)**/.gitattributes"):
            raise self._unsupported("it has files of Git LFS", "work without a clone")
        return base

    def _with_changes(self, base: str) -> str:
        """Return a commit of the uncommitted changes, which no reference names; the same commit without any."""
        who = [part for name in ("name", "email") for part in ("-c", f"user.{name}=cellblock")]
        try:
            self._refresh()
            stash = self._text(*who, "stash", "create")  # changes neither files nor references
            return self._text(*who, "commit-tree", "-p", base, "-m", _CHANGES, f"{stash}^{{tree}}") if stash else base
        except GitError as error:
            raise InvalidInputError(f"the uncommitted changes of {self.path} cannot be cloned: {error}; {_ADVICE}") from None

    def _unsupported(self, why: str, advice: str) -> UnsupportedError:
        return UnsupportedError(f"a session cannot work in a clone of {self.path}, because {why}: {advice}")

    def settings(self) -> dict[str, str]:
        """Return the user's name and address, for commits of the session."""
        found = {name: self._git("config", name, accept=(0, 1)).decode().strip() for name in ("user.name", "user.email")}
        return {name: value for name, value in found.items() if value}

    @property
    def objects(self) -> str:
        """The directory of its objects."""
        return os.path.join(self.repository, "objects")

    def pin(self, ref: str, commit: str) -> None:
        """Keep a commit from being pruned."""
        self._git("update-ref", ref, commit)

    def pinned(self, ref: str) -> str:
        """Return the commit of a reference.

        Raises:
            StateError: There is no such reference.
        """
        try:
            return self._text("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        except GitError:
            raise StateError(f"{ref} is missing in {self.path}, so the changes of the clone are unknown") from None

    def has(self, commit: str) -> bool:
        """Return whether the repository has a commit."""
        return self.repository != "" and self._finds("cat-file", "-e", f"{commit}^{{commit}}", accept=(1, 128))

    def unpin(self, ref: str) -> None:
        """Remove a reference."""
        self._git("update-ref", "-d", ref)

    def fetch(self, source: str, ref: str, to: str) -> None:
        """Fetch a reference of a verified repository, without tags and submodules.

        Raises:
            StateError: git refuses it.
        """
        options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-prune")
        self._git("fetch", *options, source, f"+{ref}:{to}")

    def apply(self, patch: bytes, *, three_way: bool) -> Applied:
        """Apply a patch to the working copy, whole or not at all. A three-way merge can leave conflicts.

        Raises:
            ConflictError: It does not fit. Nothing was changed.
        """
        options = ("--3way",) if three_way else ()
        try:
            if three_way:
                self._refresh()
            self._git("apply", "--whitespace=nowarn", *options, data=patch)
        except GitError as error:
            found = self._git("diff", "--name-only", "--diff-filter=U", "-z") if three_way else b""
            if conflicts := tuple(os.fsdecode(path) for path in found.split(b"\0") if path):
                return Applied((), conflicts)
            advice = "" if three_way else "; to merge them, pass three_way=True (--3way)"
            raise ConflictError(f"the changes do not fit the working copy {self.path}: {error}{advice}") from None
        return Applied(())

    def hooks(self) -> str:
        """Return the directory of hooks in the working copy, relative to it; empty if it is elsewhere."""
        # The last value is `run_git`'s own.
        *_, path, _ = "", *os.fsdecode(self._git("config", "--type=path", "--get-all", "core.hooksPath")).splitlines()
        found = os.path.relpath(os.path.realpath(os.path.join(self.path, path)), self.path) if path else ""
        return "" if found.startswith("..") else found

    def _refresh(self) -> None:
        """Note in the index which touched files are unchanged: `stash create` and `apply --3way` fail otherwise."""
        self._git("update-index", "-q", "--refresh", accept=(0, 1))

    def _git(self, *arguments: str, data: bytes = b"", accept: tuple[int, ...] = (0,)) -> bytes:
        return run_git(self.path, *arguments, data=data, accept=accept)

    def _text(self, *arguments: str) -> str:
        return os.fsdecode(self._git(*arguments).strip())

    def _finds(self, *arguments: str, accept: Collection[int] = (1,)) -> bool:
        try:
            self._git(*arguments)
        except GitError as error:
            if error.status not in accept:
                raise
            return False
        return True
