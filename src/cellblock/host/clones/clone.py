"""The clone of one session: a directory that its sandbox shows at the place of the project.

A branch has a copy of its session's clone, in that clone's directory, because it shares that session's sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cellblock.errors import InvalidInputError, LaunchError, StateError, UnsupportedError
from cellblock.host.clones.incoming import MOST_PACKED, Incoming
from cellblock.host.clones.pins import Pin
from cellblock.host.clones.project import Project, find_repository
from cellblock.host.environments.sandbox import Done, Sandboxes, Step
from cellblock.host.files.steps import in_thread
from cellblock.host.place import NO_PLACES, PATIENCE, Places, SessionPlace
from cellblock.launch.leftovers import remove_abandoned
from cellblock.model.clones import Applied, CloneChanges, Fetched
from cellblock.walls.sandbox.plan import masked_paths, resolve_paths
from cellblock.walls.sandbox.policy import ENV, MAKEABLE, PROTECTED, SECRET
from cellblock.wire.sandbox import Bind

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellblock.host.checkpoints.branches import BranchDirectory
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.options import ResolvedOptions
    from cellblock.walls.sandbox.policy import Policy
    from cellblock.walls.sandbox.probe import Facts

_T = TypeVar("_T")
_PROGRAM = "clone_repository"
_ORIGIN = ".origin"
_OURS = frozenset((*PROTECTED, *SECRET))


class Clone(SessionPlace):
    """A clone of the user's repository, made in the sandbox, that ends with its session.

    Attributes:
        project: The user's repository.
        root: The directory that the sandbox shows at the place of the project. The last of the sessions that use it removes it.
        files: The clone: `root`, or a branch's copy in it.
    """

    def __init__(
        self,
        resolved: ResolvedOptions,
        place: str,
        name: str,
        places: Places = NO_PLACES,
        *,
        changes: bool = False,
        branch: BranchDirectory | None = None,
        origin: Clone | None = None,
    ) -> None:
        """Set the paths without creating anything.

        Args:
            resolved: The options of the session in the project itself. With `origin`, they may be options of that session.
            place: The path of the session's directories.
            name: The session's name; may be empty.
            places: As for `SessionPlace`.
            changes: Whether the clone begins with uncommitted changes of the project.
            branch: The directory of the session's files, if it is a branch.
            origin: The clone of the session that a new branch is made from.

        Raises:
            InvalidInputError: The working directory is not the top of a repository, or not writable.
            UnsupportedError: The sandbox cannot show the clone.
        """
        if resolved.tier.name != "native":
            raise UnsupportedError(
                f"a session can work in a clone only with isolate='native', not {resolved.tier.name!r}: use the native "
                "sandbox, or leave out workspace='clone' (--clone)"
            )
        if "." not in resolved.policy.filesystem.write:
            raise InvalidInputError("a session in a clone must be able to write its workspace: add '.' to allowWrite")
        super().__init__(f"{place}-clone", places)
        if origin is None:
            path = os.path.realpath(resolved.cwd)
            self.project = Project(path, find_repository(path))
        else:
            self.project = origin.project
        self.root = self.path if branch is None else branch.root
        self.files = self.path if branch is None else branch.files
        self._origin = origin
        self._shared = self.made or branch is not None
        self._moved: tuple[Policy, Policy] | None = None if origin is None else origin._moved
        self._pin = Pin(self.project, place, places)
        self._name = _as_reference(name) or self._pin.number
        self._changes = changes
        self._turn = asyncio.Lock()
        self._sandboxes: Sandboxes | None = None
        self._wanted: KernelSpec | None = None

    def move(self, resolved: ResolvedOptions, facts: Facts) -> ResolvedOptions:
        """Return the options of a session that works here instead of in the project."""
        if resolved.cwd == self.root:
            return resolved  # of the session that this is a branch of

        def moved(path: Path) -> Path:
            top = self.project.path
            return Path(self.root, path.relative_to(top)) if path.is_relative_to(top) else path

        if self._moved is None or self._moved[0] != resolved.policy:
            self._moved = resolved.policy, _policy_for(resolved.policy, self.root, facts)
        return replace(
            resolved,
            cwd=self.root,
            stay_in=self.files,
            policy=self._moved[1],
            images_dir=moved(resolved.images_dir),
            spill_dir=None if resolved.spill_dir is None else moved(resolved.spill_dir),
            writable=tuple(str(moved(Path(path))) for path in resolved.writable),
        )

    @property
    def mounts(self) -> tuple[Bind, ...]:
        """The mounts that show the clone at the place of the project, and the repository, whose objects it shares."""
        return Bind(self.root, self.project.path, "rw"), Bind(self.project.repository, f"/tmp/{_ORIGIN}", "ro")

    @property
    def shown(self) -> str:
        """The path of the clone in the sandbox."""
        return os.path.normpath(os.path.join(self.project.path, os.path.relpath(self.files, self.root)))

    async def create(self, sandboxes: Sandboxes, wanted: KernelSpec) -> None:
        """Clone the repository, unless an earlier host has done so. The files of a branch are copied later.

        Args:
            sandboxes: Run git, now and later.
            wanted: The specification of the session's kernels.

        Raises:
            InvalidInputError, UnsupportedError, LaunchError: It cannot be cloned.
        """
        self._sandboxes, self._wanted = sandboxes, wanted
        if self.made:
            return
        if self._origin is not None:
            base = await self._origin.base()
            self._join()
            await self._pin.set(base)
            self._origin = None
            return
        base = await in_thread(functools.partial(self.project.check, changes=self._changes))
        self.make()
        settings = await in_thread(self.project.settings)
        branch = f"cellblock/{self._name}"
        request = {"do": "create", "origin": f"/tmp/{_ORIGIN}", "base": base, "branch": branch, "settings": settings}
        async with self._run(request) as done:
            if "error" in done.answer:
                raise LaunchError(f"a session cannot work in a clone of {self.project.path}: {done.error}")
        await self._pin.set(base)

    def _join(self) -> None:
        """Hold the directory of the clone that this is a branch of, so that it outlives that clone's session."""
        try:
            held = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise StateError(f"the clone that the branch would be copied from is gone: {error.strerror}") from error
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)
        self._held, self.made = held, True
        self._places.place_made(self.path, held)
        assert self._origin is not None
        self._origin._shared = True

    async def base(self) -> str:
        """Return the commit that the clone began with."""
        return await in_thread(self._pin.base)

    async def diff(self) -> CloneChanges:
        """Return the changes since the clone was made, committed or not.

        Raises:
            InvalidInputError: The objects of the clone are invalid or too large.
            CellblockError: The sandbox could not be created.
        """

        def compare(incoming: Incoming) -> CloneChanges:
            return CloneChanges(incoming.base, incoming.files, incoming.patch.decode(errors="replace"))

        return await self._receive(compare, uncommitted=True)

    async def fetch(self) -> Fetched:
        """Fetch the commits of the clone into the project's repository.

        Raises:
            InvalidInputError, CellblockError: As for `diff`.
        """
        ref = f"refs/remotes/cellblock/{self._name}"

        def fetch(incoming: Incoming) -> Fetched:
            return Fetched(ref, incoming.commit, incoming.fetch(self.project, ref))

        return await self._receive(fetch, uncommitted=False)

    async def apply(self, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
        """Apply the changes, committed or not, to the working copy of the project.

        Raises:
            AccessError: They contain protected names. Nothing was changed.
            ConflictError: They do not fit the working copy. Nothing was changed.
            InvalidInputError, CellblockError: As for `diff`.
        """

        def apply(incoming: Incoming) -> Applied:
            if not allow_protected:
                incoming.check_harmless(self.project.hooks())
            files = incoming.files
            if not files:
                return Applied(())
            return replace(self.project.apply(incoming.patch, three_way=three_way), files=files)

        return await self._receive(apply, uncommitted=True)

    async def _receive(self, use: Callable[[Incoming], _T], *, uncommitted: bool) -> _T:
        """Pack the changes in a sandbox, verify them on the host, and return what a function makes of them."""
        async with self._turn:
            base = await self.base()
            request = {"do": "pack", "base": base, "uncommitted": uncommitted}
            async with self._run(request) as done:
                if "error" in done.answer:
                    raise StateError(f"the changes of the clone cannot be packed: {done.error}")

                def receive() -> _T:
                    commit = done.answer.get("commit")
                    return use(Incoming.receive(done.out, done.work, self.project, base, commit))

                return await in_thread(receive)

    @contextlib.asynccontextmanager
    async def _run(self, request: dict[str, Any]) -> AsyncIterator[Done]:
        assert self._sandboxes is not None
        assert self._wanted is not None
        wanted = replace(self._wanted, setup=replace(self._wanted.setup, cwd=self.files))
        step = Step(
            _PROGRAM,
            request,
            readable={},
            limit=MOST_PACKED,
            sees_session=True,
            mounts=self.mounts,
            what="git in the clone",
            limit_of="a clone",
        )
        async with self._sandboxes.run(step, wanted) as done:
            yield done

    async def remove(self, patience: float = PATIENCE) -> None:
        """Remove the clone, and let git prune the commit that it began with."""
        if self.made:
            await self._pin.remove()
        await super().remove(patience)

    def delete(self, held: int | None) -> None:
        """Delete the directory, unless the session of the clone or another branch of it lives."""
        if not self._shared:
            super().delete(held)
            return
        if held is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_UN)  # also for the custodian's descriptor
        remove_abandoned(self.root)


def _as_reference(name: str) -> str:
    """Return a different part of a reference's name for each name of a session."""

    def quoted(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))

    return re.sub(r"[^\w+.-]|^\.|\.(?=\.|lock$|$)", quoted, name)


def _policy_for(policy: Policy, clone: str, facts: Facts) -> Policy:
    """Return a policy for a session in a clone: without our protected names, because no program of the user looks there.

    What the policy itself denies stays denied, and so do our names in other directories.

    Args:
        policy: The policy.
        clone: The clone.
        facts: Facts about this machine.
    """
    files = policy.filesystem
    denied = resolve_paths(files.deny_write, clone, facts, absolute_only=True)
    for top in resolve_paths(files.write, clone, facts):
        for name in (*files.deny_write, *((ENV,) if ENV in files.deny_read else ())):
            path = os.path.join(top, name)
            makeable = name in MAKEABLE and not os.path.lexists(path)
            if name[0] not in "/~" and not (name in _OURS and (top == clone or makeable)):
                denied.append(path)
    ours = {f"{clone}/{name}" for name in _OURS}
    hidden = [path for path in masked_paths(files, clone, facts) if path not in ours]
    return replace(policy, filesystem=replace(files, deny_write=tuple(denied), deny_read=tuple(hidden)))
