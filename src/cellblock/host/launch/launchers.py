"""The launchers of one host: one for each kind of kernel, replaced when it fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from cellblock.errors import LaunchError, StateError
from cellblock.host.launch.launcher import Launcher
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.tiers import Tier

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import KernelSpec


class LaunchKey(NamedTuple):
    """The kind of kernels that one launcher starts.

    Attributes:
        interpreter: Their interpreter.
        preload: Modules imported before they start.
        tier: Their isolation.
        policy: The policy of their sandbox, if the tier is wrapped.
        workspace: The workspace of their sandbox, if the tier is wrapped.
        environment: The directory of the trusted environment that the modules are from, if any.
    """

    interpreter: str
    preload: tuple[str, ...]
    tier: Tier
    policy: Policy | None = None
    workspace: str | None = None
    environment: str = ""


def key_of(wanted: KernelSpec) -> LaunchKey:
    """Return the key of the launcher for a kernel specification."""
    key = LaunchKey(wanted.interpreter, wanted.preload, wanted.tier, environment=wanted.environment)
    return key._replace(policy=wanted.policy, workspace=wanted.setup.cwd) if wanted.tier.wrapped else key


class Launchers:
    """Starts launchers on demand, and ends unused ones.

    Until its processes have ended, every launcher is in one of three states: in use, retired (its kernels live on, new ones
    come from another), or ending.

    Attributes:
        idle_sandboxes: Number of srt sandboxes kept warm for workspaces without a session, and of zygotes of environments.
    """

    def __init__(
        self, make: Callable[[LaunchKey], Launcher], start_timeout: float, verify: Callable[[str], Awaitable[None]]
    ) -> None:
        """Start without launchers.

        Args:
            make: Creates a launcher, without starting it.
            start_timeout: Time limit for a launcher to become ready, in seconds.
            verify: Checks the files of a trusted environment before a launcher imports them. Raises `LaunchError`.
        """
        self._make = make
        self._verify = verify
        self._start_timeout = start_timeout
        self._in_use: dict[LaunchKey, Launcher] = {}
        self._retired: set[Launcher] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._kernels: Counter[Launcher] = Counter()
        self._sessions: Counter[LaunchKey] = Counter()
        self._closed = False
        self.idle_sandboxes = 2

    def __contains__(self, key: LaunchKey) -> bool:
        return key in self._in_use

    @property
    def in_use(self) -> dict[LaunchKey, Launcher]:
        """The launchers of new kernels."""
        return dict(self._in_use)

    @property
    def warm(self) -> set[tuple[str, ...]]:
        """The sets of imported modules of launchers for new kernels, as far as they are the interpreter's."""
        used = self._in_use.items()
        return {key.preload for key, launcher in used if key.preload and not key.environment and launcher.alive}

    def begin(self, key: LaunchKey) -> Launcher:
        """Return the launcher for some kernels. Start it in the background if it is not running.

        Raises:
            StateError: The host was closed.
        """
        if self._closed:
            raise StateError("the host is closed; make a new one")
        launcher = self._in_use.get(key)
        if launcher is not None and not launcher.alive:
            self.retire(key, launcher)
            launcher = None
        if launcher is None:
            launcher = self._in_use[key] = self._make(key)
            self._end_idle()
        launcher.begin()
        return launcher

    async def started(self, key: LaunchKey) -> Launcher:
        """Return the running launcher for some kernels.

        Raises:
            LaunchError: The launcher could not be started. The next call tries a new one.
            StateError: The host was closed.
        """
        launcher = await self._start(key)
        # If it is not alive, it was killed while idle, unnoticed until now.
        return launcher if launcher.alive else await self._start(key)

    async def _start(self, key: LaunchKey) -> Launcher:
        running = self._in_use.get(key)
        if key.environment and (running is None or not running.alive):
            await self._verify(key.environment)
        launcher = self.begin(key)
        try:
            await launcher.start(self._start_timeout)
        except LaunchError:
            self.retire(key, launcher)
            raise
        return launcher

    def retire(self, key: LaunchKey, launcher: Launcher) -> None:
        """Stop taking kernels from a launcher that has ended, or does not answer."""
        if self._in_use.get(key) is launcher:
            del self._in_use[key]
            self._retired.add(launcher)
        self._end_retired(launcher)

    def adopt(self, launcher: Launcher, kernels: int) -> None:
        """Take over another host's launcher, which creates no more kernels.

        Args:
            launcher: The launcher.
            kernels: Number of its kernels. It ends after the last of them.
        """
        launcher.begin()
        self._retired.add(launcher)
        self._kernels[launcher] += kernels
        self._end_retired(launcher)

    # -- reference counts ----------------------------------------------------------------------------------------------

    def kernel_made(self, launcher: Launcher) -> None:
        self._kernels[launcher] += 1

    def kernel_closed(self, launcher: Launcher) -> None:
        """Uncount a kernel that has ended. An unused launcher may end."""
        self._kernels[launcher] -= 1
        if self._kernels[launcher] <= 0:
            del self._kernels[launcher]
            self._end_retired(launcher)
            self._end_idle()

    def session_made(self, key: LaunchKey) -> None:
        """Count a session whose kernels a launcher will start."""
        self._sessions[key] += 1

    def session_closed(self, key: LaunchKey) -> None:
        """Uncount a closed session. An idle sandbox may end."""
        self._sessions[key] -= 1
        if self._sessions[key] <= 0:
            del self._sessions[key]
            self._end_idle()

    # -- end -----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End every process of every launcher. Idempotent."""
        self._closed = True
        for launcher in (*self._in_use.values(), *self._retired):
            self._end(launcher)
        self._in_use.clear()
        self._retired.clear()
        while self._ending:
            await asyncio.wait(self._ending)

    def _end_retired(self, launcher: Launcher) -> None:
        if launcher in self._retired and not self._kernels[launcher]:
            self._retired.discard(launcher)
            self._end(launcher)

    def _end_idle(self) -> None:
        """End the oldest idle sandboxes of srt and zygotes of environments, except for a few.

        A sandbox with checkpoints or branches of closed sessions is not idle, because these count as kernels.
        """
        unused = [key for key, launcher in self._in_use.items() if not self._kernels[launcher]]
        idle = [key for key in unused if (key.workspace is not None or key.environment) and key not in self._sessions]
        for key in idle[: max(len(idle) - self.idle_sandboxes, 0)]:
            self._end(self._in_use.pop(key))

    def _end(self, launcher: Launcher) -> None:
        task = asyncio.get_running_loop().create_task(launcher.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
