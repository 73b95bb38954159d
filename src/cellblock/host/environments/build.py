"""Makes environments: resolves, fetches, builds, unpacks, links and compiles packages."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit

from cellblock.common.environments import PackageSet
from cellblock.errors import CellblockError, InvalidInputError
from cellblock.host.environment import find_interpreter
from cellblock.host.environments.requirements import Requirements, of_set, parse
from cellblock.host.environments.sandbox import Done, Sandboxes, Step
from cellblock.host.environments.store import Source, Store, Wheel, key_of, no_room
from cellblock.host.files.steps import in_thread
from cellblock.walls.packages.fetch import download, without_credentials

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import KernelSpec, RunningKernel
    from cellblock.walls.packages.mirror import PackageMirror

Take: TypeAlias = Callable[[bytes], None]
"""Takes a piece of an archive."""

_PARALLEL = max(4, min(os.cpu_count() or 1, 16))  # unpacking needs a processor each
_LOOK = 0.05  # seconds between tries to lock
_MAX_PACKAGES = 2000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}")
_PIECE = 1024 * 1024


class _OfflineError(Exception):
    """The index does not answer."""


class _Entry(NamedTuple):
    """One package of a resolution, which is untrusted."""

    name: str
    version: str
    path: str
    digest: str

    @classmethod
    def read(cls, data: object) -> _Entry:
        """Parse an entry.

        Raises:
            InvalidInputError: It is invalid.
        """
        values = [data.get(key) for key in ("name", "version", "path", "sha256")] if isinstance(data, dict) else []
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) != 4 or not all(map(_NAME.fullmatch, texts[:2])):
            raise InvalidInputError("the resolver gave an invalid answer")
        return cls(*texts)


@dataclass(frozen=True, slots=True)
class EnvironmentDirectory:
    """An environment in the store.

    Attributes:
        key: Its name in the store.
        path: Its directory.
        lock: A descriptor that prevents its removal, for the caller to close.
        alone: Whether it hides the interpreter's packages.
    """

    key: str
    path: str
    lock: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A session for which packages are installed.

    Attributes:
        wanted: The specification of its kernels.
        kernel: Its kernel, if it has one. srt needs it.
        layers: The directories of its packages so far.
    """

    wanted: KernelSpec
    kernel: RunningKernel | None = None
    layers: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        """Maximum size of its packages in bytes."""
        return self.wanted.policy.resources.packages

    @property
    def kind(self) -> str:
        """The name of its interpreter, for bytecode and built wheels."""
        path = self.wanted.interpreter
        status = os.stat(path)
        return key_of(path, os.path.realpath(path), status.st_mtime_ns, status.st_size)[:16]

    @property
    def base(self) -> list[object]:
        """Data that changes when packages of its interpreter change."""
        top = os.path.dirname(os.path.dirname(self.wanted.interpreter))
        return [[path, os.stat(path).st_mtime_ns] for path in sorted(glob.glob(f"{glob.escape(top)}/lib/python3*/*-packages"))]


class Environments:
    """The environments of one host, in the user's store.

    Attributes:
        store: The store.
        report: Called with a short text at each step.
        sandboxes: Run the steps.
    """

    def __init__(self, store: Store, sandboxes: Sandboxes) -> None:
        """Store the arguments.

        Args:
            store: The store.
            sandboxes: Run the steps.
        """
        self.store = store
        self.report: Callable[[str], object] = lambda _: None
        self.sandboxes = sandboxes
        self._compiling: dict[str, asyncio.Task[None]] = {}
        self._parallel = asyncio.Semaphore(_PARALLEL)

    async def close(self) -> None:
        """Stop compiling."""
        tasks = [*self._compiling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for sessions --------------------------------------------------------------------------------------------------

    async def obtain(
        self, given: Sequence[str] | PackageSet, target: Target, *, renew: bool = True, now: bool = False
    ) -> EnvironmentDirectory:
        """Return the environment with these packages. Make it if it does not exist.

        Args:
            given: Packages, or requirements and options, as after ``pip install``.
            target: The session.
            renew: Whether a resolution of yesterday is repeated.
            now: Whether a resolution of today is repeated, too.

        Raises:
            InvalidInputError: The packages cannot be found, built, or stored.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
        """
        asked = of_set(given) if isinstance(given, PackageSet) else parse(given)
        wheels = await self._resolved(asked, target, renew=renew and "no_deps" not in asked.options, now=now)
        key = _key(wheels, target, alone=asked.alone)
        await self.check_size(wheels, target.limit)
        lock = await self._hold(key, wheels, target, alone=asked.alone)
        self.compile_soon(wheels, target, self.store.environment(key))
        self.store.use(key)
        return EnvironmentDirectory(key, self.store.environment(key), lock, asked.alone)

    def answer_name(self, asked: Requirements, target: Target) -> str:
        """Return the name of a resolution in the store."""
        index = self.sandboxes.index
        what = (sorted(asked.names), sorted(asked.options), sorted(asked.hashes.items()))
        age = (index.age,) if index.age and not asked.locked else ()
        return key_of(target.kind, target.base, what, index.indexes, index.links, index.prereleases, *age)

    async def _resolved(self, asked: Requirements, target: Target, *, renew: bool, now: bool) -> tuple[Wheel, ...]:
        """Return the wheels for some requirements, which are resolved again after a day, or if the wheels are missing."""
        name = self.answer_name(asked, target)
        known = None if asked.local else self.store.answer(name)
        if known is not None and not await in_thread(self._is_there, known.wheels, target, asked):
            known = None
        if known is None or now or (renew and not known.fresh):
            try:
                wheels = await self._acquire(asked, target)
            except _OfflineError as error:
                if known is None or now:
                    raise InvalidInputError(str(error)) from error
                wheels = known.wheels
            else:
                if not asked.local:
                    with self._storing():
                        self.store.add_answer(name, wheels)
        else:
            wheels = known.wheels
        return wheels

    async def acquire(self, asked: Requirements, target: Target) -> tuple[Wheel, ...]:
        """Resolve requirements, and bring the wheels to the store. Return those that the session does not have.

        Args:
            asked: The requirements.
            target: The session.

        Raises:
            InvalidInputError: The packages cannot be found, built, or stored.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
        """
        try:
            return await self._acquire(asked, target)
        except _OfflineError as error:
            raise InvalidInputError(str(error)) from error

    async def check_size(self, wheels: Iterable[Wheel], limit: int) -> None:
        """Check the size of unpacked wheels.

        Raises:
            InvalidInputError: They are too large.
        """
        sizes = [await in_thread(self.store.size, wheel.digest) for wheel in wheels]
        if sum(sizes) > limit:
            raise InvalidInputError(
                f"these are more than {limit >> 20:,} MiB of packages, over the limit of this session (resources.packages): "
                "install fewer, or raise the limit"
            )

    async def link(self, wheels: Iterable[Wheel], target: Target, directory: str) -> None:
        """Link wheels into a session's own directory.

        Args:
            wheels: The wheels.
            target: The session.
            directory: The directory.
        """
        with self._storing():
            for wheel in wheels:
                copy = target.wanted.tier.wrapped  # its sessions may be able to write there
                await in_thread(self.store.link, wheel.digest, target.kind, directory, copy=copy)

    def compile_soon(self, wheels: Sequence[Wheel], target: Target, directory: str) -> None:
        """Compile wheels in the background, and link the bytecode into a directory with their files."""
        missing = [wheel for wheel in wheels if not os.path.isdir(self.store.bytecode(wheel.digest, target.kind))]
        if missing and directory not in self._compiling and not target.wanted.tier.wrapped:
            task = asyncio.create_task(self._compile_all(missing, target, directory))
            self._compiling[directory] = task
            task.add_done_callback(lambda _: self._compiling.pop(directory, None))

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _acquire(self, asked: Requirements, target: Target) -> tuple[Wheel, ...]:
        self.report(f"resolving {asked.title}")
        with self._storing():
            async with (
                self._in_use(),
                self.sandboxes.run(self._resolution(asked, target), target.wanted, target.kernel) as done,
            ):
                if "error" in done.answer:
                    if done.mirror is not None and done.mirror.unreachable:
                        raise _OfflineError(f"offline, and {asked.title} is not in the store")
                    hidden = f" ({_hidden(done.mirror)})" if done.mirror is not None and done.mirror.too_new else ""
                    raise InvalidInputError(f"{asked.title} cannot be installed: {done.error}{hidden}")
                listed = done.answer.get("packages")
                if not isinstance(listed, list) or len(listed) > _MAX_PACKAGES:
                    raise InvalidInputError("the resolver gave an invalid answer")
                entries = [_Entry.read(one) for one in listed]
                left = {entry.name for entry in entries}

                async def bring(entry: _Entry) -> Wheel:
                    wheel = await self._wheel(entry, done, target, asked)
                    left.discard(entry.name)
                    waiting = f", waiting for {', '.join(sorted(left)[:3])}" if left else ""
                    self.report(f"installed {len(entries) - len(left)} of {len(entries)} packages{waiting}")
                    return wheel

                tasks = [asyncio.ensure_future(bring(entry)) for entry in entries]
                try:
                    return tuple(sorted(await asyncio.gather(*tasks)))
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    def _resolution(self, asked: Requirements, target: Target) -> Step:
        uv = _find_uv()
        readable = {layer: f".layer{number}" for number, layer in enumerate(target.layers)}
        request = {
            "requirements": asked.names,
            "files": asked.files,
            "hashes": {name: list(values) for name, values in asked.hashes.items()},
            "options": sorted(asked.options),
            "layers": [f"path:{layer}" for layer in readable],
            "uv": f"path:{uv}" if uv else "",
        }
        if uv:
            readable[uv] = ".uv"
        age = 0.0 if asked.locked else None  # its hashes were chosen at another time
        return Step("resolve_packages", request, readable, target.limit, sees_session=asked.local, fetches=True, age=age)

    async def _wheel(self, entry: _Entry, done: Done, target: Target, asked: Requirements) -> Wheel:
        """Bring one package of a resolution to the store."""
        source = await self._archive(entry, done, target)
        digest, name = source.digest, source.file
        if digest not in asked.hashes.get(entry.name, () if asked.locked else (digest,)):
            raise InvalidInputError(
                f"{entry.name} cannot be installed: {name} in the package index has the hash {digest}, which {asked.title} "
                "does not list: lock the packages again with this index"
            )
        if not name.endswith(".whl"):
            digest, name = await self._build(digest, name, target)
        found, version = _identity(name)
        if found != entry.name:
            raise InvalidInputError(f"{entry.name} cannot be installed: its archive {name} is another package")
        if not self.store.has_wheel(digest):
            async with self._parallel:
                await self._unpack(digest, name, target)
        self.store.add_source(digest, source)
        return Wheel(found, version, digest)

    async def _archive(self, entry: _Entry, done: Done, target: Target) -> Source:
        """Return the origin of an archive, which is then in the store.

        Only the pages of the index, its directories, and what the session's own files were built to are believed.
        """
        if entry.path.startswith("http://127.0.0.1:") and done.mirror is not None:
            try:
                file = await done.mirror.find(urlsplit(entry.path).path)
            except ValueError as error:
                raise InvalidInputError(f"{entry.name} cannot be installed: {error}") from error
            if not _NAME.fullmatch(file.name) or (file.sha256 and entry.digest and file.sha256 != entry.digest):
                raise InvalidInputError(f"{entry.name} cannot be installed: the index has another hash for {file.name}")
            if file.sha256 and self.store.archives.has(file.sha256):
                return Source(file.name, without_credentials(file.url), file.sha256)
            fetcher = done.mirror.fetcher
            self.sandboxes.warm_up(target.wanted)
            digest = await self._fetch(
                entry, file.name, file.sha256, lambda take: download(fetcher, file.url, take, target.limit)
            )
            return Source(file.name, without_credentials(file.url), digest)
        path = unquote(entry.path)
        name = os.path.basename(path)
        own = f"{done.inside}/wheels/"
        if path == own + name:
            path = f"{done.out}/wheels/{name}"
        elif not self.sandboxes.index.contains(path):
            raise InvalidInputError(f"{entry.name} cannot be installed: {path[:200]} is not in the host's package index")
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"{entry.name} cannot be installed: {name[:200]!r} is not the name of an archive")
        return Source(name, f"file://{quote(path)}", await self._fetch(entry, name, "", lambda take: _read(path, take)))

    async def _fetch(self, entry: _Entry, name: str, digest: str, fetch: Callable[[Take], None]) -> str:
        stopped = threading.Event()

        def work() -> str:
            with self.store.archives.adding(digest) as archive:

                def take(data: bytes) -> None:
                    if stopped.is_set():
                        raise ValueError("it was stopped")
                    archive.write(data)

                fetch(take)
            return archive.digest

        running = asyncio.ensure_future(in_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([running])
            raise
        except HTTPError as error:
            raise InvalidInputError(f"{name} cannot be fetched: the index answered {error.code}") from error
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
                raise _OfflineError(f"offline, and {entry.name} {entry.version} is not in the store") from error
            raise
        except ValueError as error:
            raise InvalidInputError(f"{name} is not installed: {error}") from error

    async def _build(self, digest: str, name: str, target: Target) -> tuple[str, str]:
        """Build a source archive in a sandbox of its own. Return the hash and the name of the wheel."""
        key = key_of(target.kind, digest)
        if (known := self.store.built(key)) is not None:
            return known[1], known[0]
        copies = {name: self.store.archives.path(digest)}
        step = Step("resolve_packages", {"archive": name}, {}, target.limit, fetches=True, copies=copies)
        async with self._parallel, self.sandboxes.run(step, target.wanted, target.kernel) as done:
            if "error" in done.answer:
                raise InvalidInputError(f"{name} cannot be built, and the index has no wheel of it: {done.error}")
            wheels = [found for found in os.listdir(f"{done.out}/wheels") if found.endswith(".whl") and _NAME.fullmatch(found)]
            if len(wheels) != 1:
                raise InvalidInputError(f"{name} cannot be built: its build made {len(wheels)} wheels")
            made = f"{done.out}/wheels/{wheels[0]}"
            built = await self._fetch(_Entry(name, "", "", ""), wheels[0], "", lambda take: _read(made, take))
        self.store.add_built(key, wheels[0], built)
        return built, wheels[0]

    async def _unpack(self, digest: str, name: str, target: Target) -> None:
        archive = self.store.archives.path(digest)
        request = {"wheel": f"path:{archive}", "name": name, "limit": target.limit}
        # By this program's interpreter: other sessions use the result, and a session may have written its own interpreter.
        step = Step("unpack_wheel", request, {archive: ".wheel"}, 2 * target.limit, find_interpreter(None))
        async with self.sandboxes.run(step, target.wanted, target.kernel) as done:
            if "errno" in done.answer:
                raise OSError(done.answer["errno"], done.error)
            if "error" in done.answer:
                raise InvalidInputError(f"{name} is not installed: {done.error}")
            try:
                await in_thread(self.store.add_wheel, digest, done.out, target.limit)
            except ValueError as error:
                raise InvalidInputError(f"{name} is not installed: {error}") from error

    async def _compile_all(self, wheels: Iterable[Wheel], target: Target, directory: str) -> None:
        for wheel in wheels:
            tree = f"{self.store.wheel(wheel.digest)}/tree"
            with contextlib.suppress(CellblockError, OSError, ValueError):  # modules work without bytecode
                request = {"tree": f"path:{tree}", "modules": await in_thread(self.store.modules, wheel.digest)}
                async with self.sandboxes.run(
                    Step("unpack_wheel", request, {tree: ".tree"}, target.limit), target.wanted
                ) as done:
                    kind, made = target.kind, f"{done.out}/tree"
                    await in_thread(self.store.add_bytecode, wheel.digest, kind, made, target.limit)
                await in_thread(self.store.link, wheel.digest, kind, directory)

    # -- environments --------------------------------------------------------------------------------------------------

    def _is_there(self, wheels: Sequence[Wheel], target: Target, asked: Requirements) -> bool:
        return self.store.has_environment(_key(wheels, target, alone=asked.alone)) or all(
            self.store.has_wheel(wheel.digest) for wheel in wheels
        )

    async def _hold(self, key: str, wheels: Sequence[Wheel], target: Target, *, alone: bool) -> int:
        """Lock an environment against removal, after making it if it is missing. Return the locked descriptor."""
        with self._storing():
            while True:
                lock = self.store.lock(key)
                try:
                    if not self.store.has_environment(key):
                        await _lock(lock, fcntl.LOCK_EX)
                        if not self.store.has_environment(key) and _is_named(lock):
                            async with self._in_use():
                                with self.store.building() as made:
                                    python = target.wanted.interpreter if alone else None
                                    await in_thread(self.store.make_environment, key, target.kind, wheels, made, python)
                            await in_thread(self.store.collect)
                    await _lock(lock, fcntl.LOCK_SH)
                except BaseException:  # of any kind: nothing else closes it
                    os.close(lock)
                    raise
                # A collection may have removed both before this lock.
                if self.store.has_environment(key) and _is_named(lock):
                    return lock
                os.close(lock)

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """Prevent a collection while something is made. Another host's collection may take seconds: wait for it in turns."""
        lock = self.store.lock("store")
        try:
            await _lock(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, CellblockError):
                raise
            raise no_room(error, self.store.directory) from error


def _hidden(mirror: PackageMirror) -> str:
    return (
        f"environment_newest hides {mirror.too_new:,} of the index's files: they are newer, or the index does not say when "
        "they were uploaded"
    )


def _is_named(descriptor: int) -> bool:
    """Return whether a file has not been removed."""
    return os.fstat(descriptor).st_nlink > 0


async def _lock(descriptor: int, how: int) -> None:
    """Lock a file, after waiting for other processes."""
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_LOOK)
        else:
            return


def _key(wheels: Iterable[Wheel], target: Target, *, alone: bool) -> str:
    return key_of(target.kind, sorted(wheels), alone)


def _identity(name: str) -> tuple[str, str]:
    """Return the normalized name and the version of a wheel, by its file name."""
    parts = name.split("-")
    if len(parts) not in (5, 6):
        raise InvalidInputError(f"{name} is not the name of a wheel")
    return re.sub(r"[-_.]+", "-", parts[0]).lower(), parts[1]


def _read(path: str, take: Take) -> None:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        while piece := file.read(_PIECE):
            take(piece)


def _find_uv() -> str | None:
    """Return the path of uv: next to this program's interpreter, or on the PATH."""
    places = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    found = shutil.which("uv", path=places)
    return None if found is None else os.path.realpath(found)
