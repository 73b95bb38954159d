"""What the sessions of one host share."""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import StateError
from cellblock.host.checkpoints.budget import Budget
from cellblock.host.host_kernels import Kernels, Launch
from cellblock.host.launch.launchers import key_of
from cellblock.walls.packages.index import PackageIndex, configuration_files
from cellblock.walls.sandbox import probe

if TYPE_CHECKING:
    from cellblock.host.closing import AsyncOnly
    from cellblock.host.environments.build import Environments
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.launch.launchers import LaunchKey
    from cellblock.host.options import Defaults
    from cellblock.host.snapshots import Store
    from cellblock.host.survival.keeper import Keeper


class SessionHost:
    """The part of a host that its sessions use.

    Attributes:
        defaults: Defaults for the options of sessions.
        facts: Facts about this machine.
        index: The package index for sessions.
        keeper: Preserves sessions for the next host.
        kernels: Kernels of the host's sessions.
        checkpoint_budget: Limits on automatic checkpoints of all sessions.
    """

    def __init__(self, defaults: Defaults, launch: Launch, start_timeout: float, keeper: Keeper) -> None:
        """Start without sessions.

        Args:
            defaults: As for the attribute.
            launch: How to start kernels.
            start_timeout: Time limit for a kernel to become ready, in seconds.
            keeper: As for the attribute.
        """
        self.defaults = defaults
        self.facts = probe.look()
        own = config.environment()
        self.index = PackageIndex.configured(own, configuration_files(own, os.path.expanduser("~")))
        self.keeper = keeper
        self._sessions: dict[AsyncOnly, LaunchKey] = {}
        self.kernels = Kernels(launch, start_timeout, self.facts, keeper, self.check_usable, self._sessions)
        self.checkpoint_budget = Budget()
        self._store: Store | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._closed = False

    @functools.cached_property
    def environments(self) -> Environments:
        """The environments of packages, in the user's store."""
        from cellblock.host.environments.build import Environments
        from cellblock.host.environments.sandbox import Sandboxes
        from cellblock.host.environments.store import Store

        store = Store(config.environment_limit())
        index = replace(self.index, age=config.environment_newest())
        return Environments(store, Sandboxes(store, index, self.facts, self.kernels.launch, self.kernels.launchers.begin))

    def check_usable(self) -> None:
        """Check that the host is open and belongs to this process and event loop.

        Raises:
            StateError: The host is closed, or belongs to another process or event loop.
        """
        if self._closed:
            raise StateError("the host is closed; make a new one")
        # Check the process first: after a fork, a running loop only seems to exist.
        if self._owner is not None and self._owner[0] != os.getpid():
            raise StateError("the host belongs to the process that made it; after a fork, make a new one in the child")
        here = (os.getpid(), asyncio.get_running_loop())
        if self._owner is None:
            self._owner = here
        elif self._owner[1] is not here[1]:
            raise StateError(
                "this host, or the executor that uses it, belongs to another event loop: make one for each asyncio.run(); "
                "from other threads, use asyncio.run_coroutine_threadsafe() with its own loop"
            )

    def add(self, session: AsyncOnly, wanted: KernelSpec) -> None:
        """Add a new session, with the specification of its kernels."""
        self._sessions[session] = key_of(wanted)
        self.kernels.launchers.session_made(self._sessions[session])

    def forget(self, session: AsyncOnly) -> None:
        """Remove a closed session. Idempotent."""
        if (key := self._sessions.pop(session, None)) is not None:
            self.kernels.launchers.session_closed(key)

    def store(self) -> Store:
        """Return the store for checkpoint files, created on first use.

        Raises:
            SnapshotError: The store cannot be created.
        """
        if self._store is None:
            from cellblock.host.checkpoints.workspace_snapshots import make_store

            self._store = make_store(lasting=self.keeper.lasting)
            self._keep(self._store)
        return self._store

    def _keep(self, store: Store) -> None:
        """Preserve a store for the next host, even if its directory was created again."""
        self.keeper.store_made(store)
        store.on_renewed = partial(asyncio.get_running_loop().call_soon_threadsafe, self.keeper.store_made, store)
