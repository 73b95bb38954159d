"""Installs packages for one session: pip runs in its own sandbox, with an index that the host serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from cellblock.errors import InvalidInputError, KernelDiedError, LaunchError, SandboxError
from cellblock.host.launch.srt import sandbox_apart
from cellblock.host.place import NO_PLACES, Places, PrivateDirectories, SessionPlace
from cellblock.launch.leftovers import find_places, remove_abandoned
from cellblock.walls.packages.index import PackageIndex
from cellblock.walls.packages.space import excess
from cellblock.walls.sandbox import srt
from cellblock.walls.sandbox.policy import Network, Policy
from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.control import Setup, Stop
from cellblock.wire.sandbox import Bind, Step

if TYPE_CHECKING:
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.control import Control
    from cellblock.host.launch.kernel_spec import KernelSpec, RunningKernel
    from cellblock.walls.sandbox.tiers import Tier

_PREFIX = "cellblock-packages-"
_RUN_PIP = str(Path(__file__).parents[1] / "worker" / "run_pip.py")
_CREDENTIALS = ".netrc"
_LOOK = 0.5  # seconds between checks of the packages' size
_MAX_ARGUMENTS = 128 * 1024  # characters; Linux's limit for one argument
_PATIENCE = 2.0  # seconds that a caller waits for the removal of packages

Launch: TypeAlias = Callable[["KernelSpec"], Awaitable["Kernel"]]
"""Starts a kernel, which the caller closes."""


def name_places() -> str:
    """Return an unguessable path prefix for the packages of one host's sessions. Nothing is created."""
    try:
        top = os.path.abspath(tempfile.gettempdir())
    except FileNotFoundError as error:
        advice = "set TMPDIR to a directory that can be written to, or give the container one: 'docker run --tmpfs /tmp IMAGE'"
        raise LaunchError(f"no session can be made without a directory for temporary files: {advice}") from error
    return os.path.join(top, f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}-")


def remove_places_of_the_dead() -> None:
    """Remove the packages of hosts that were killed together with their cleaners. May take long."""
    for place in find_places(os.path.join(os.path.abspath(tempfile.gettempdir()), _PREFIX)):
        remove_abandoned(place)


class SessionPackages:
    """The packages of one session: their directory and installation.

    Attributes:
        inside: Their directory as seen by the session.
    """

    def __init__(
        self, place: str, interpreter: str, env: Mapping[str, str], cwd: str, *, tier: Tier, places: Places = NO_PLACES
    ) -> None:
        """Set the paths without creating anything.

        Args:
            place: An unused path.
            interpreter: The interpreter whose pip installs.
            env: The session's environment, used for pip.
            cwd: The session's directory.
            tier: The session's isolation.
            places: Preserves the directory for the next process, if it should outlive this one.
        """
        self._kept = SessionPlace(place, places)
        # In other sandboxes, pip has its own /tmp. Without mounts, its build files are next to the packages.
        self._scratch = PrivateDirectories(f"{place}-pip", places) if tier.private_directories else None
        self.inside = tier.packages(place)
        self._interpreter = interpreter
        self._env = env
        self._cwd = cwd
        self._tier = tier

    def prepare(self) -> None:
        """Create what must exist before a kernel.

        In other tiers, that is nothing: most sessions install nothing, and what was never created cannot be left behind.
        """
        if self._tier.ours:
            self._kept.make()

    @property
    def place(self) -> str:
        """Their directory outside the sandbox."""
        return self._kept.path

    @property
    def any(self) -> bool:
        """Whether packages are installed."""
        with contextlib.suppress(OSError):
            return bool(os.listdir(self.place))
        return False

    def mounts(self, index: PackageIndex, policy: Policy, *, writable: bool = False) -> tuple[Step, ...]:
        """Return the mounts that show a sandbox the packages, and the index if that is a directory.

        Args:
            index: The package index.
            policy: The session's policy.
            writable: Whether the packages can be changed, which only pip may.
        """
        # If everything is readable, only /tmp needs mounts, and mount points cannot be created elsewhere.
        everything = policy.filesystem.everything
        local = [
            Bind(path, path, "ro", optional=True)
            for path in index.directories
            if (path.startswith("/tmp/") if everything else not path.startswith(("/usr/", "/etc/ssl/")))
        ]
        return (Bind(self.place, self.inside, _mode(writable=writable)), *local)

    async def install(
        self, kernel: RunningKernel, arguments: tuple[str, ...], index: PackageIndex, facts: Facts, launch: Launch
    ) -> int:
        """Run pip to install packages for the session, and return its wait status.

        Args:
            kernel: The session's kernel.
            arguments: pip's arguments after ``install``.
            index: The package index.
            facts: Facts about this machine.
            launch: Starts kernels.

        Raises:
            InvalidInputError: The policy forbids it, the arguments name no package, or another index or target, or the
                packages exceed their limit.
            SandboxError, LaunchError: The sandbox for pip could not be created, or was killed.
        """
        from cellblock.walls.packages.mirror import PackageMirror  # loads an HTTP client, which few sessions need

        limit = kernel.wanted.policy.resources.packages
        _check_allowed(limit)
        _check(arguments)
        if (packages := kernel.packages) is not None:
            self._kept.path = os.path.join(packages, self.inside)
            os.makedirs(self.place, 0o700, exist_ok=True)
            self._kept.made = True
        self._kept.make()
        await self._check_size(limit)
        prefix = self.place if self._tier.wrapped else self.inside
        async with self._sandbox(kernel, index, facts, launch) as control:
            listener, port = await control.listen()
            async with PackageMirror(listener, index, limit) as mirror:
                command = [self._interpreter, "-I", _RUN_PIP, "install", *_OPTIONS, *mirror.options(port)]
                changes = {**self._changes(), "NETRC": os.path.join(prefix, _CREDENTIALS)}
                with self._credentials(mirror.credentials):
                    control.begin([*command, "--prefix", prefix, *arguments], self._cwd, changes=changes)
                    watching = asyncio.create_task(self._watch(control, limit))
                    try:
                        status = await control.finish()
                    finally:
                        watching.cancel()
        await self._check_size(limit)
        return status

    @contextlib.contextmanager
    def _credentials(self, content: str) -> Iterator[None]:
        """Create a credentials file for pip's access to the index. It is removed with the packages if we are killed."""
        path = os.path.join(self.place, _CREDENTIALS)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(file.fileno(), 0o600)  # a default ACL of the directory could allow more
                file.write(content)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @contextlib.asynccontextmanager
    async def _sandbox(
        self, kernel: RunningKernel, index: PackageIndex, facts: Facts, launch: Launch
    ) -> AsyncIterator[Control]:
        """Create a sandbox for pip. It sees what the session sees, but the session's code has no access to it."""
        wanted = kernel.wanted
        if not self._tier.sandboxed:
            yield kernel.control
            return
        if self._tier.wrapped:
            policy = srt.for_installing(wanted.policy, self.place, index.directories, ())
            async with sandbox_apart(kernel, policy, facts) as control:
                yield control
            return
        mounts = self.mounts(index, wanted.policy, writable=True)
        if self._scratch is not None:
            self._scratch.make()
            mounts += self._scratch.mounts
        setup = Setup(self._env, self._cwd, None, packages="", mounts=mounts)
        alone = replace(wanted.policy, network=Network())
        apart = await launch(
            replace(
                wanted, policy=alone, setup=setup, takers={}, on_command=None, forbid_programs=False, spill_to=None, kept=None
            )
        )
        try:
            apart.output.elsewhere = kernel.output.insert
            apart.memory.look_soon()
            yield apart.control
        except KernelDiedError as error:
            raise SandboxError(f"pip was stopped, along with its sandbox: {error}") from error
        finally:
            await apart.close()
            if self._scratch is not None:
                await self._scratch.remove()

    def _changes(self) -> dict[str, str | None]:
        """Return environment changes that make pip and Python ignore the session's settings and files."""
        places: dict[str, str | None] = {}
        if self._tier.ours:
            # The session's home and temporary directory may be in its workspace, so pip gets others.
            own = {"HOME": "/tmp", "TMPDIR": None} if self._scratch is None else self._scratch.environment
            places = {**own, "TEMP": None, "TMP": None}
        return {**_steering(self._env), **places, "PIP_CONFIG_FILE": os.devnull}

    async def _watch(self, control: Control, limit: int) -> None:
        """Stop pip when the packages exceed their limit."""
        while True:
            if await asyncio.to_thread(excess, self.place, limit) is not None:
                await control.command(Stop())
                return
            await asyncio.sleep(_LOOK)

    async def _check_size(self, limit: int) -> None:
        if (reason := await asyncio.to_thread(excess, self.place, limit)) is not None:
            raise InvalidInputError(
                f"this session has {reason} of packages, over its limit (resources.packages): nothing more can be "
                "installed; start a new session, or raise the limit"
            )

    async def remove(self, patience: float = _PATIENCE) -> None:
        """Remove all packages. A slow removal continues in a thread, which the program waits for at its exit.

        Args:
            patience: Seconds to wait.
        """
        if self._scratch is not None:
            await self._scratch.remove(patience)
        await self._kept.remove(patience)


# pip reads no configuration and no variables, asks no questions and caches nothing. Retries of the local mirror are useless.
_OPTIONS = (
    "--isolated",
    "--no-input",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--retries=0",
    "--timeout=60",
)
_ELSEWHERE = (
    "--target",
    "--prefix",
    "--root",
    "--user",
    "--index-url",
    "--pypi-url",
    "--extra-index-url",
    "--find-links",
    "--python",
    "--proxy",
    "--cert",
    "--client-cert",
    "--trusted-host",
    "--keyring-provider",
)
_WHOLE = ("--pre",)
"""Options that are complete, although forbidden ones begin like them."""
_ELSEWHERE_SHORT = "tif"
_WITH_VALUE = "rceC"
"""Short options that take the rest of the argument as their value."""


def _mode(*, writable: bool) -> Literal["ro", "rw"]:
    return "rw" if writable else "ro"


def _check_allowed(limit: int) -> None:
    if limit == 0:
        raise InvalidInputError("this session's policy forbids installing packages (resources.packages is 0)")


def _steering(env: Mapping[str, str]) -> dict[str, None]:
    """Return the variables to remove from an environment because pip or Python would obey them."""
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    steering = [name for name in env if name.startswith(("PYTHON", "PIP_"))]
    names = (*steering, *proxies, *(name.lower() for name in proxies), "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "NETRC")
    return dict.fromkeys(names)


def _check(arguments: tuple[str, ...]) -> None:
    if sum(map(len, arguments)) + len(arguments) > _MAX_ARGUMENTS:
        raise InvalidInputError(
            f"pip accepts {_MAX_ARGUMENTS} characters of arguments: put the requirements in a file, for -r"
        )
    if not any(not argument.startswith("-") for argument in arguments):
        raise InvalidInputError("name the packages to install: install('package>=1')")
    for argument in arguments:
        name = argument.partition("=")[0]
        # pip accepts unambiguous prefixes of long options.
        long = name.startswith("--") and name not in _WHOLE and any(option.startswith(name) for option in _ELSEWHERE)
        if long or _goes_elsewhere(argument):
            raise InvalidInputError(
                f"{argument} cannot be chosen by a session: packages come from the host's index, for it alone"
            )
        if "://" in argument and not argument.startswith(("-", "file:", "./", "../", "/")):
            raise InvalidInputError(
                f"{argument} is not in the host's package index, and pip reaches nothing else: download it in a cell, if the "
                "session's network allows it, and install the file"
            )


def _goes_elsewhere(argument: str) -> bool:
    """Return whether an argument has a forbidden short option. pip accepts several after one dash: ``-qt/tmp``."""
    if not argument.startswith("-") or argument.startswith("--"):
        return False
    for letter in argument[1:]:
        if letter in _ELSEWHERE_SHORT:
            return True
        if letter in _WITH_VALUE:
            return False
    return False
