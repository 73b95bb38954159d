"""The packages of one session: an environment of the store, and what the session's code installs on top."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from cellblock.errors import InvalidInputError, LaunchError, PreloadError
from cellblock.host.files.steps import in_thread
from cellblock.host.kernels.session_state import unused_state
from cellblock.host.place import NO_PLACES, Places, SessionPlace
from cellblock.launch.leftovers import find_places, remove_abandoned
from cellblock.walls.packages.space import excess
from cellblock.wire.fields import MAX_NUMBER
from cellblock.wire.sandbox import Bind

if TYPE_CHECKING:
    from cellblock.common.environments import PackageSet
    from cellblock.host.environments.build import EnvironmentDirectory, Environments
    from cellblock.host.environments.store import Wheel
    from cellblock.host.launch.kernel_spec import KernelSpec, RunningKernel
    from cellblock.walls.sandbox.tiers import Tier
    from cellblock.wire.messages import Install

_PREFIX = "cellblock-packages-"
_MODE: Literal["ro"] = "ro"
_ELSEWHERE = (
    "a branch cannot install packages, because it shares the sandbox of the session that it branched from: install them "
    "there before the fork, or reset the branch first"
)
_PATIENCE = 2.0  # seconds that a caller waits for the removal of packages
CURRENT = "current"
"""The link to the last installation of the current state, for programs and fresh kernels."""

_RECORD = ".installations"


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


class PackageLayers:
    """The installations of one session, numbered from 1. Each directory has all packages that the code sees.

    A kernel has the directory of its last installation on its path. Undo, redo and branches change no files: the path is a
    part of their state. Programs and fresh kernels follow the link `CURRENT`.
    """

    def __init__(self, *, recorded: bool) -> None:
        """Start without installations.

        Args:
            recorded: Whether a later host can believe what is in the directory, because the session cannot write there.
        """
        self._recorded = recorded
        self._wheels: dict[int, list[Wheel]] = {}
        self._states: list[tuple[int, int]] = []
        """From which state on which installation counts, oldest first."""

    def load(self, place: str) -> None:
        """Read what an earlier host has recorded."""
        from cellblock.host.environments.store import Wheel

        if self._wheels or not self._recorded:
            return
        with contextlib.suppress(OSError), open(os.path.join(place, _RECORD), encoding="utf-8") as file:
            data = json.load(file)
            self._wheels = {int(number): [Wheel(*one) for one in wheels] for number, wheels in data["wheels"].items()}
            self._states = [(state, number) for state, number in data["states"]]

    def wheels(self, number: int) -> list[Wheel]:
        """Return the packages of an installation; none for 0."""
        return self._wheels.get(number, [])

    def __contains__(self, number: int) -> bool:
        return number == 0 or number in self._wheels

    def new_directory(self, place: str) -> str:
        """Create the directory of the next installation."""
        path = os.path.join(place, str(len(self._wheels) + 1))
        shutil.rmtree(path, ignore_errors=True)  # of a host that was killed meanwhile
        os.mkdir(path, 0o755)
        return path

    def add(self, place: str, wheels: Sequence[Wheel], state: int) -> int:
        """Record the installation in the new directory, which counts from a state on. Return its number."""
        number = len(self._wheels) + 1
        self._wheels[number] = [*wheels]
        self._begin(place, state, number)
        return number

    def go_to(self, place: str, state: int) -> None:
        """Record that the session returns to a state, with the packages of that state."""
        self.load(place)
        number = next((number for since, number in reversed(self._states) if since <= state), 0)
        if self._states and number != self._states[-1][1]:
            self._begin(place, unused_state(), number)

    def _begin(self, place: str, state: int, number: int) -> None:
        self._states.append((state, number))
        if self._recorded:
            wheels = {str(number): [list(one) for one in wheels] for number, wheels in self._wheels.items()}
            self._replace(place, _RECORD, lambda new: _write(new, json.dumps({"wheels": wheels, "states": self._states})))
        self._replace(place, CURRENT, lambda new: os.symlink(str(number), new))

    @staticmethod
    def _replace(place: str, name: str, make: Callable[[str], None]) -> None:
        new = os.path.join(place, f".{secrets.token_hex(8)}")
        try:
            make(new)
            os.replace(new, os.path.join(place, name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)


def _write(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)


class SessionPackages:
    """The packages of one session.

    Attributes:
        inside: The directory of what its code installs, as seen by the session.
        environment: The environment that it was made with, if any.
    """

    def __init__(self, place: str, *, tier: Tier, places: Places = NO_PLACES) -> None:
        """Set the paths without creating anything.

        Args:
            place: An unused path.
            tier: The session's isolation.
            places: Preserves the directory for the next process, if it should outlive this one.
        """
        self._kept = SessionPlace(place, places)
        self.inside = tier.packages(place)
        self.environment: EnvironmentDirectory | None = None
        self._tier = tier
        self._layers = PackageLayers(recorded=tier.sandboxed and not tier.wrapped)
        self._environments: Environments | None = None

    def prepare(self) -> None:
        """Create what must exist before a kernel.

        In other tiers, that is usually nothing: most sessions install nothing, and what was never created cannot be left
        behind.
        """
        if self._tier.ours or self.environment is not None:
            self._kept.make()
        if self.environment is not None and self._environments is not None:
            self._environments.store.use(self.environment.key, self.place)

    @property
    def place(self) -> str:
        """The directory of what its code installs, outside the sandbox."""
        return self._kept.path

    @property
    def any(self) -> bool:
        """Whether packages are installed."""
        if self.environment is not None:
            return True
        with contextlib.suppress(OSError):
            return bool(os.listdir(self.place))
        return False

    @property
    def mounts(self) -> tuple[Bind, ...]:
        """The mounts that show a sandbox the packages, which its code cannot change."""
        if self.environment is None:
            return (Bind(self.place, self.inside, _MODE),)
        return Bind(self.place, self.inside, _MODE), Bind(self.environment.path, self.environment_inside, _MODE)

    @property
    def environment_inside(self) -> str:
        """The directory of the environment as seen by the session; empty without one."""
        return "" if self.environment is None else self._tier.environment(self.environment.path)

    async def choose(
        self, given: Sequence[str] | PackageSet, environments: Environments, wanted: KernelSpec, *, renew: bool
    ) -> None:
        """Choose the environment with some packages. It is made if it does not exist.

        Args:
            given: The packages.
            environments: The environments of the host.
            wanted: The specification of the session's kernels.
            renew: Whether newer versions than yesterday's count.

        Raises:
            InvalidInputError: The packages cannot be installed, or the policy forbids it.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
        """
        from cellblock.host.environments.build import Target

        _check_allowed(wanted.policy.resources.packages)
        self._environments = environments
        self.environment = await environments.obtain(given, Target(wanted), renew=renew)

    def check_trusted(self, modules: Sequence[str], given: PackageSet) -> None:
        """Check that modules of the environment may be imported before kernels start, outside of the sandbox.

        Args:
            modules: The modules.
            given: The packages.

        Raises:
            PreloadError: The environment is not trusted.
        """
        from cellblock.host.environments.named_environments import Names
        from cellblock.host.environments.trust import Trust

        assert self.environment is not None, "`choose` was called"
        assert self._environments is not None
        key = self.environment.key
        if given.trusted or key in Trust():
            return
        name = next((one.name for one in Names(self._environments.store).all() if one.key == key), None)
        raise PreloadError(
            f"preload={list(modules)} would run packages of {given.title} outside of the sandbox, and they are not trusted as "
            f"they are now, for this interpreter. If you trust them: {_to_trust(name)}; otherwise leave preload out"
        )

    async def install(self, kernel: RunningKernel, request: Install, environments: Environments, state: int) -> int:
        """Install packages on top, and report them in the output of the kernel. Return the number of the installation.

        Args:
            kernel: The session's kernel.
            request: The request of its code.
            environments: The environments of the host.
            state: The state that its code is about to reach.

        Raises:
            InvalidInputError: The policy forbids it, the packages cannot be installed, or they exceed their limit.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
        """
        from cellblock.host.environments.build import Target
        from cellblock.host.environments.requirements import parse

        limit = kernel.wanted.policy.resources.packages
        _check_allowed(limit)
        asked = parse(request.arguments)
        if self.environment is not None and self.environment.alone:
            asked.options.add("alone")
        if (packages := kernel.packages) is not None:
            self._kept.path = os.path.join(packages, self.inside)
            os.makedirs(self.place, 0o700, exist_ok=True)
            self._kept.made = True
        self._check_place(request.place)
        self._kept.make()
        self._layers.load(self.place)
        if request.installation not in self._layers:
            raise InvalidInputError(_ELSEWHERE)
        if (reason := await in_thread(excess, self.place, limit)) is not None:
            raise InvalidInputError(
                f"this session has {reason} of packages, over its limit (resources.packages): nothing more can be "
                "installed; start a new session, or raise the limit"
            )
        layers = [f"{self.place}/{request.installation}"] if request.installation else []
        layers += [] if self.environment is None else [self.environment.path]
        target = Target(kernel.wanted, kernel, tuple(layers))
        wheels = await environments.acquire(asked, target)
        number = request.installation
        if wheels:
            had = self._layers.wheels(number)
            every = [*(old for old in had if all(new.name != old.name for new in wheels)), *wheels]
            await environments.check_size(every, limit)
            directory = self._layers.new_directory(self.place)
            try:
                await environments.link(every, target, directory)
                number = self._layers.add(self.place, every, state)
            except BaseException:  # includes cancellation: no state has it
                shutil.rmtree(directory, ignore_errors=True)
                raise
            environments.compile_soon(every, target, directory)
        if "quiet" not in asked.options:
            names = " ".join(f"{wheel.name}-{wheel.version}" for wheel in wheels)
            said = f"Successfully installed {names}" if wheels else "Requirement already satisfied"
            kernel.show("stdout", f"{said}\n".encode())
        return number

    def _check_place(self, place: int) -> None:
        """Check that the kernel sees this directory.

        Raises:
            InvalidInputError: It sees the directory of the session that it is a branch of.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.place).st_ino % MAX_NUMBER == place:
                return
        if place:
            raise InvalidInputError(_ELSEWHERE)

    def go_to(self, state: int) -> None:
        """Record that the session returns to a state, whose packages programs and fresh kernels get."""
        self._layers.go_to(self.place, state)

    async def remove(self, patience: float = _PATIENCE) -> None:
        """Remove all packages. A slow removal continues in a thread, which the program waits for at its exit.

        Args:
            patience: Seconds to wait.
        """
        if self.environment is not None and self._environments is not None:
            self._environments.store.drop_use(self.environment.key, self.place)
            os.close(self.environment.lock)
            self.environment = None
        await self._kept.remove(patience)


def _to_trust(name: str | None) -> str:
    if name is not None:
        return f"'cellblock env trust {name}'"
    return (
        "give the environment a name ('cellblock env create'), then 'cellblock env trust NAME'; or Environment(trusted=True)"
    )


def _check_allowed(limit: int) -> None:
    if limit == 0:
        raise InvalidInputError("this session's policy forbids installing packages (resources.packages is 0)")
