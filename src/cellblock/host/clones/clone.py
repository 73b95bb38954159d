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
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

from cellblock.common.open_flags import READ
from cellblock.errors import InvalidInputError, LaunchError, StateError, UnsupportedError
from cellblock.host.clones.incoming import MOST_PACKED, Incoming
from cellblock.host.clones.pins import Pin
from cellblock.host.clones.project import Project, find_repository
from cellblock.host.environments.linking import opened
from cellblock.host.environments.sandbox import Done, Sandboxes, Step
from cellblock.host.files.info import BRANCHES
from cellblock.host.files.steps import in_thread
from cellblock.host.place import NO_PLACES, PATIENCE, Places, SessionPlace
from cellblock.launch.leftovers import remove_abandoned, remove_place
from cellblock.model.clones import Applied, CloneChanges, Fetched
from cellblock.walls.sandbox.plan import masked_paths, resolve_paths
from cellblock.walls.sandbox.policy import ENV, MAKEABLE, PROTECTED, SECRET
from cellblock.wire.sandbox import Bind

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.options import ResolvedOptions
    from cellblock.walls.sandbox.policy import Policy
    from cellblock.walls.sandbox.probe import Facts

_T = TypeVar("_T")
Take: TypeAlias = Callable[[int, str, str], bool]
"""Moves an entry to the trash: takes its open folder, its name there and its path. Returns whether all of it was moved."""

_PROGRAM = "clone_repository"
_ORIGIN = ".origin"
MOST_SAVED = 4 * MOST_PACKED
"""Maximum bytes that saving or loading a clone writes: an archive of its files, and the files."""
_PATIENCE = 300.0
_PIECE = 2**20
_OURS = frozenset((*PROTECTED, *SECRET))


class Clone(SessionPlace):
    """A clone of the user's repository, made in the sandbox, that ends with its session.

    Attributes:
        project: The user's repository.
        root: The directory that the sandbox shows at the place of the project. The last session that uses it removes it.
        files: The clone: `root`, or a branch's copy in it.
        unused: Whether it was just made for a saved clone, which nothing was loaded from yet.
        policies: The policy that `move` was given, and the policy that it returned.
    """

    def __init__(
        self,
        resolved: ResolvedOptions,
        place: str,
        name: str,
        places: Places = NO_PLACES,
        *,
        changes: bool = False,
        loads: bool = False,
        branch: tuple[str, str] | None = None,
        origin: Clone | None = None,
    ) -> None:
        """Set the paths without creating anything.

        Args:
            resolved: The options of the session in the project itself. With `origin`, they may be options of that session.
            place: The path of the session's directories.
            name: The session's name; may be empty.
            places: As for `SessionPlace`.
            changes: Whether the clone begins with uncommitted changes of the project.
            loads: Whether a saved clone is loaded next, so that no repository is needed.
            branch: If the session is a branch, the directory of its session's clone, and the copy in it.
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
            self.project = Project(path, _repository_for(path, loads=loads or self.made))
        else:
            self.project = origin.project
        self.root, self.files = (self.path, self.path) if branch is None else branch
        self._origin = origin
        self.unused = False
        self._loads = loads
        self.policies: tuple[Policy, Policy] | None = None if origin is None else origin.policies
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

        if self.policies is None or self.policies[0] != resolved.policy:
            self.policies = resolved.policy, _policy_for(resolved.policy, self.root, facts)
        return replace(
            resolved,
            cwd=self.root,
            stay_in=self.files,
            policy=self.policies[1],
            images_dir=moved(resolved.images_dir),
            spill_dir=None if resolved.spill_dir is None else moved(resolved.spill_dir),
            writable=tuple(str(moved(Path(path))) for path in resolved.writable),
        )

    @property
    def mounts(self) -> tuple[Bind, ...]:
        """The mounts that show the clone at the place of the project, and the repository, whose objects it shares."""
        clone = Bind(self.root, self.project.path, "rw")
        if not self.project.repository:
            return (clone,)
        return clone, Bind(self.project.repository, f"/tmp/{_ORIGIN}", "ro", optional=True)

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
        self.unused = self._loads
        if not self.project.repository:
            self.make()  # empty, for the saved clone
            return
        try:
            base = await in_thread(functools.partial(self.project.check, changes=self._changes))
        except (InvalidInputError, UnsupportedError):
            if not self._loads:
                raise
            self.make()
            return
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
            raise StateError(f"the clone that the branch would be copied from was removed: {error.strerror}") from error
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)
        self._held, self.made = held, True
        self._places.place_made(self.path, held)

    async def base(self) -> str:
        """Return the commit that the clone began with."""
        return await in_thread(self._pin.base)

    async def begin_with(self, base: str) -> None:
        """Record another first commit of the clone, after its files were replaced."""
        if base != await self.base():
            await self._pin.set(base)

    async def diff(self) -> CloneChanges:
        """Return the changes since the clone was made, committed or not.

        Raises:
            InvalidInputError: The objects of the clone are invalid or too large.
            CellblockError: The sandbox could not be created.
        """

        def compare(incoming: Incoming, _: Project) -> CloneChanges:
            return CloneChanges(incoming.base, incoming.files, incoming.patch.decode(errors="replace"))

        return await self._receive(compare, uncommitted=True, writes=False)

    async def fetch(self) -> Fetched:
        """Fetch the commits of the clone into the project's repository.

        Raises:
            InvalidInputError, CellblockError: As for `diff`.
        """
        ref = f"refs/remotes/cellblock/{self._name}"

        def fetch(incoming: Incoming, project: Project) -> Fetched:
            return Fetched(ref, incoming.commit, incoming.fetch(project, ref))

        return await self._receive(fetch, uncommitted=False)

    async def apply(self, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
        """Apply the changes, committed or not, to the working copy of the project.

        Raises:
            AccessError: They contain protected names. Nothing was changed.
            ConflictError: They do not fit the working copy. Nothing was changed.
            InvalidInputError, CellblockError: As for `diff`.
        """

        def apply(incoming: Incoming, project: Project) -> Applied:
            if not allow_protected:
                incoming.check_harmless(project.hooks())
            files = incoming.files
            if not files:
                return Applied(())
            return replace(project.apply(incoming.patch, three_way=three_way), files=files)

        return await self._receive(apply, uncommitted=True)

    async def _receive(self, use: Callable[[Incoming, Project], _T], *, uncommitted: bool, writes: bool = True) -> _T:
        """Pack the changes in a sandbox, verify them on the host, and return what a function makes of them."""
        async with self._turn:
            base, project = await self.base(), self.project
            if not project.repository:  # the user may have made one
                project = replace(project, repository=_repository_for(project.path, loads=True))
            if writes:
                project.check_exists()
            has_base = await in_thread(project.has, base)
            request = {"do": "pack", "base": base, "has_base": has_base, "uncommitted": uncommitted}
            async with self._run(request) as done:
                if "error" in done.answer:
                    raise StateError(f"the changes of the clone cannot be packed: {done.error}")

                def receive() -> _T:
                    commit = done.answer.get("commit")
                    return use(Incoming.receive(done.out, done.work, project, base, commit), project)

                return await in_thread(receive)

    async def whole(self, files: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield files of the clone as a tar stream that needs no other repository: git packs their objects in a sandbox.

        Args:
            files: The files, as a tar stream.

        Raises:
            StateError: They are no repository, or it is incomplete.
            InvalidInputError: They are too large.
            CellblockError: The sandbox could not be created.
        """
        async with self._run({"do": "save"}, files) as done:
            if "error" in done.answer:
                raise StateError(f"the clone cannot be saved: {done.error}. Repair it, or save without its files")
            with _open_archive(done.out) as archive:
                while piece := await in_thread(archive.read, _PIECE):
                    yield piece

    async def load(
        self, files: AsyncIterator[bytes], base: str, load: Callable[[], Awaitable[object]], take: Take | None
    ) -> None:
        """Replace the files of the clone by the files of a saved clone, then load its variables: both or neither.

        Args:
            files: The saved files, as a tar stream.
            base: The commit that the saved clone began with.
            load: Loads the variables. If it fails, the present files are restored.
            take: Takes an entry of the clone; None to remove the present files.

        Raises:
            InvalidInputError: The files are no repository, or too large. Nothing was replaced.
            StateError: The present files cannot be moved.
            CellblockError: The sandbox could not be created.
        """
        new = f".cellblock-{secrets.token_hex(8)}"  # a later session of this directory removes it
        old = f"{new}-old"
        async with self._turn:
            try:
                with _telling():
                    async with self._run({"do": "load", "into": new}, files) as done:
                        if "error" in done.answer:
                            raise InvalidInputError(f"the saved clone cannot be loaded: {done.error}")
                    await in_thread(self._exchange, new, old)
                try:
                    await load()
                except BaseException:  # includes cancellation
                    with _telling():
                        await in_thread(self._exchange, old, new)
                    raise
                self.unused = False
                with _telling():
                    await in_thread(self._remove_old, old, take)
            finally:
                await in_thread(remove_place, f"{self.files}/{new}")
            await self._pin.set(base)

    def _exchange(self, new: str, old: str) -> None:
        """Move the files of the clone to a folder, and the files of another folder to the clone: all or none."""
        moved: list[tuple[str, int, int]] = []
        with opened(self.files) as top, opened(new, top) as inside:
            with contextlib.suppress(FileExistsError):
                os.mkdir(old, 0o700, dir_fd=top)
            with opened(old, top) as outside:
                try:
                    for source, target in ((top, outside), (inside, top)):
                        for name in os.listdir(source):
                            if name not in (new, old) and not name.startswith(BRANCHES):
                                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
                                moved.append((name, source, target))
                except BaseException:  # includes interrupts
                    for name, source, target in reversed(moved):
                        os.rename(name, name, src_dir_fd=target, dst_dir_fd=source)
                    raise
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(new, dir_fd=top)

    def _remove_old(self, old: str, take: Take | None) -> None:
        """Move the replaced files of the clone to the trash. What the trash cannot take stays in their folder."""
        with opened(self.files) as top, opened(old, top) as outside:
            info = os.fstat(outside)
            taken = [take is None or take(outside, name, name) for name in os.listdir(outside)]
        if all(taken):
            remove_place(f"{self.files}/{old}", (info.st_dev, info.st_ino))

    @contextlib.asynccontextmanager
    async def _run(self, request: dict[str, Any], files: AsyncIterator[bytes] | None = None) -> AsyncIterator[Done]:
        assert self._sandboxes is not None
        assert self._wanted is not None

        async def fill(out: str) -> None:
            assert files is not None
            size = 0
            archive = os.open(f"{out}/files.tar", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(archive, "wb") as file:
                async for piece in files:
                    size += len(piece)
                    if size > MOST_SAVED:
                        raise InvalidInputError(f"the files of the clone exceed {MOST_SAVED >> 20:,} MiB")
                    await in_thread(file.write, piece)

        # The program enters the clone, not the host: the session can put a link in place of a branch's directory.
        step = Step(
            _PROGRAM,
            {**request, "clone": self.shown},
            readable={},
            limit=MOST_PACKED if files is None else MOST_SAVED,
            fill=None if files is None else fill,
            sees_session=True,
            mounts=self.mounts,
            what="git in the clone",
            limit_of="a clone",
        )
        try:
            async with asyncio.timeout(_PATIENCE) as limit, self._sandboxes.run(step, self._wanted) as done:
                yield done
        except TimeoutError:
            if not limit.expired():
                raise
            raise StateError(f"{step.what} took more than {_PATIENCE:g} s") from None

    async def remove(self, patience: float = PATIENCE) -> None:
        """Remove the clone, and let git prune the commit that it began with."""
        if self.made:
            await self._pin.remove()
        await super().remove(patience)

    def delete(self, held: int | None) -> None:
        """Delete the directory, unless the session of the clone or another branch of it lives."""
        try:
            assert held is not None
            fcntl.flock(held, fcntl.LOCK_UN)  # also for the custodian's descriptor
        except OSError:  # a file system without locks
            super().delete(held)
        else:
            remove_abandoned(self.root)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Raise `StateError` for errors of the system while a saved clone replaces another one."""
    try:
        yield
    except OSError as error:
        raise StateError(f"the saved clone cannot be loaded: {error.filename}: {error.strerror}") from error


def _open_archive(out: str) -> IO[bytes]:
    """Open the archive that a sandbox has written."""
    try:
        with opened(out) as directory:
            descriptor = os.open("saved.tar", READ | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        raise StateError(f"the clone cannot be saved: its archive cannot be opened: {error.strerror}") from error
    archive = open(descriptor, "rb")  # noqa: SIM115  # the caller closes it
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MOST_SAVED:
        archive.close()
        raise InvalidInputError("the clone cannot be saved: its archive is not a file, or too large")
    return archive


def _repository_for(path: str, *, loads: bool) -> str:
    """Return the repository of a project; empty if the project has none and `loads` is true."""
    try:
        return find_repository(path)
    except InvalidInputError:
        if not loads:
            raise
        return ""


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
