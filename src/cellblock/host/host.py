"""The host: launchers and sessions of one process and one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, Unpack, cast

from cellblock.common.config import Isolate
from cellblock.common.environments import PackageSet
from cellblock.errors import InvalidInputError, StateError, UnsupportedError
from cellblock.host import environment
from cellblock.host.checks import DEFAULT_TIMEOUT, check_possible, default_tier, find_tier, fit_policy
from cellblock.host.closing import AsyncOnly, Closing, in_thread
from cellblock.host.host_kernels import Launch
from cellblock.host.launch.launchers import LaunchKey
from cellblock.host.options import Defaults, LoadKeywords, SessionHooks, SessionKeywords, SessionOptions, check_names
from cellblock.host.packages import name_places
from cellblock.host.place import SessionPlace
from cellblock.host.session_host import SessionHost
from cellblock.host.survival.keeper import Keeper
from cellblock.launch.leftovers import remove_places
from cellblock.walls.sandbox.policy import Policy

if TYPE_CHECKING:
    from cellblock.common.environments import Environment
    from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
    from cellblock.host.environments.named_environments import NamedEnvironment
    from cellblock.host.kernels.cell import Cell
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.session import Session
    from cellblock.host.survival.keeping import Keeping
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.launch.custody.custodian_client import Custodian

    Recovered: TypeAlias = tuple[Kernel, Cell | None]

_log = logging.getLogger("cellblock.sessions")


class Host(SessionHost, AsyncOnly):
    """Creates sessions and runs their kernels on this machine, within the caller's process and event loop.

    One zygote serves each combination of interpreter and preloaded modules. Sessions run in parallel. A host is an async
    context manager.
    """

    def __init__(
        self,
        *,
        python: str | os.PathLike[str] | None = None,
        preload: Sequence[str] = (),
        launch: Launch | None = None,
        start_timeout: float = 60.0,
        isolate: Isolate | None = None,
        policy: Policy | None = None,
        custodian: Custodian | None = None,
    ) -> None:
        """Configure a host.

        Args:
            python: Interpreter of the kernels: a path, a virtual environment's directory, or a command. It needs Python 3.11
                or newer, and IPython. Default: this program's interpreter.
            preload: Modules to import once, before kernels are forked. Each kernel starts with them at no cost.
            launch: ``zygote`` forks kernels from a warm process (default on Linux); ``spawn`` starts an interpreter for each
                (default elsewhere).
            start_timeout: Time limit for a kernel to become ready, in seconds.
            isolate: ``native`` isolates kernels with Linux namespaces, mounts and system-call filters. ``landlock`` needs
                neither namespaces nor mounts, and guarantees less (docs/landlock.md). ``srt`` uses Anthropic's sandbox-runtime
                (docs/srt.md). ``none`` gives kernels all permissions of this process. Default: ``CELLBLOCK_ISOLATE`` if set,
                else ``native`` on Linux and ``srt`` elsewhere.
            policy: Policy of sandboxed kernels, which sessions can narrow. ``srt`` also accepts an `SrtPolicy`.
            custodian: A process that holds the kernels, so that they outlive this process. The next host with the same
                custodian continues them (`adopt`). Kernels with ``launch="spawn"`` or ``srt`` always end with this process.

        Raises:
            UnsupportedError: The platform is Windows.
            SandboxError: This machine cannot create the sandbox. The message gives advice.
            InterpreterError: The interpreter does not exist.
            InvalidInputError: Another argument is invalid.
        """
        if sys.platform == "win32":
            raise UnsupportedError("cellblock does not run on Windows itself: install it in WSL 2 and run it there")
        if launch not in (None, "zygote", "spawn"):
            raise InvalidInputError(f"launch must be 'zygote' or 'spawn', not {launch!r}")
        if not start_timeout > 0:
            raise InvalidInputError(f"start_timeout must be a positive number of seconds, not {start_timeout!r}")
        interpreter, modules = environment.find_interpreter(python), environment.check_modules(preload)
        check_possible(tier := find_tier(isolate) if isolate else default_tier())
        super().__init__(
            Defaults(interpreter, modules, tier, fit_policy(policy or Policy(), tier), ceiling=policy is not None),
            launch or ("zygote" if sys.platform == "linux" else "spawn"),
            start_timeout,
            _keeper(custodian),
        )
        self._adopted = False
        self._closing = Closing()

    @property
    def warm(self) -> set[tuple[str, ...]]:
        """Sets of imported modules: sessions with such a set as `preload` start at once."""
        return self.kernels.launchers.warm

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Warm up the zygote, so that the first session starts as quickly as later ones. Has no effect under srt.

        Raises:
            LaunchError: The zygote cannot be started. Subclasses: `InterpreterError`, `PreloadError`.
        """
        self.check_usable()
        if self.defaults.tier.wrapped:
            return  # srt starts one per workspace, which only the session names
        key = LaunchKey(self.defaults.interpreter, self.defaults.preload, self.defaults.tier)
        self.kernels.launchers.begin(key)
        # Otherwise the first session loads it. Loading is slow, so it runs in a thread.
        await asyncio.to_thread(import_module, "cellblock.host.session")
        await self.kernels.launchers.started(key)

    def begin(self, options: SessionOptions) -> None:
        """Start warming up a zygote while the caller creates the first session, which loads many modules.

        Args:
            options: The session's options. Has no effect under srt.

        Raises:
            StateError, InvalidInputError, InterpreterError: As for `session`.
        """
        self.check_usable()
        tier = self.defaults.tier_for(options)
        key = LaunchKey(self.defaults.interpreter_for(options), self.defaults.modules_for(options), tier)
        unknown = options.environment is not None and key.preload  # the environment, which is chosen later
        if not tier.wrapped and not unknown and key not in self.kernels.launchers:
            self.kernels.launchers.begin(key)

    @property
    def isolate(self) -> Isolate:
        """The default isolation of sessions."""
        return self.defaults.tier.name

    @property
    def closed(self) -> bool:
        """Whether the host is closed and accepts no new sessions."""
        return self._closed

    async def close(self) -> None:
        """Close every session and end every process of this host.

        The operation is idempotent. Cancelling the caller does not stop it.
        """
        self._closed = True
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        failures: list[BaseException] = []
        # Without a loop, kernels cannot be reached. They end with their launchers.
        if self._owner is None or not self._owner[1].is_closed():
            sessions = cast("list[Session]", [*self._sessions])
            ends = await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
            failures = [end for end in ends if end is not None]
            if "environments" in self.__dict__:
                await self.environments.close()
            await self.kernels.end_all()
            if self._store is not None:
                await in_thread(self._store.close)
                self.keeper.store_gone()
        await self.kernels.close()
        self.keeper.close()
        if self._sessions:  # sessions that could not be closed
            await in_thread(remove_places, self.keeper.places)
        if failures:
            raise failures[0]

    def session(
        self,
        options: SessionOptions | None = None,
        *,
        hooks: SessionHooks | None = None,
        label: str = "",
        remains: SessionRemains | None = None,
        start_from: Checkpoint | Beginning | None = None,
        **keywords: Unpack[SessionKeywords],
    ) -> Session:
        """Create a session. ``async with`` or `Session.start` starts it.

        Args:
            options: The session's options.
            hooks: Hooks of a frontend.
            label: Label of the session for the next host's program. It needs a custodian.
            remains: A result of `adopt` to continue. The options must be unchanged.
            start_from: A checkpoint of any session of this host, open or closed. Options default to that session's.
            keywords: Attributes of `SessionOptions`, which override `options`.

        Raises:
            StateError: The host is closed, or belongs to another process or event loop.
            InvalidInputError, InterpreterError: An option is invalid.
            NotFoundError: There is no environment of this name.
            SandboxError: This machine cannot create the sandbox.
        """
        # They load all modules for cells, hence after `begin`.
        from cellblock.host.checkpoints.checkpoint import Beginning
        from cellblock.host.session import Session

        self.check_usable()
        if start_from is not None and not isinstance(start_from, Beginning):
            start_from = Beginning(start_from)
        default = SessionOptions() if start_from is None else start_from.checkpoint.moment.origin.options
        check_names(keywords, SessionKeywords.__annotations__)
        asked = replace(options or default, **keywords)
        if isinstance(asked.environment, str):
            from cellblock.host.environments.named_environments import packages_of

            # From now on, another environment of this name changes nothing.
            asked = replace(asked, environment=packages_of(asked.environment))
        return Session.create(self, asked, hooks or SessionHooks(), label=label, remains=remains, start_from=start_from)

    async def load(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        *,
        workspace: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
        hooks: SessionHooks | None = None,
        **keywords: Unpack[LoadKeywords],
    ) -> Session:
        """Create a session from a saved one, and start it: ``async with await host.load(path) as session``.

        `Session.loaded` reports what was restored and what was not.

        Args:
            path: A file from `Session.save`.
            options: The session's options. The file does not contain them.
            workspace: As for `Session.load`.
            timeout: As for `Session.load`.
            hooks: As for `session`.
            keywords: As for `session`.

        Raises:
            CellblockError: As for `session`, `Session.start` and `Session.load`. The new session is closed.
        """
        session = self.session(options, hooks=replace(hooks or SessionHooks(), loads=workspace), **keywords)
        try:
            await session.start()
            await session.load(path, workspace=workspace, timeout=timeout)
        except BaseException:  # includes cancellation: nothing else owns the session
            await session.close()
            raise
        return session

    async def create_environment(
        self,
        name: str,
        environment: Environment | PackageSet | None = None,
        *,
        upgrade: bool = False,
        isolate: Isolate | None = None,
    ) -> NamedEnvironment:
        """Create an environment with a name, for ``environment="NAME"``. Sessions keep the environment they started with.

        Args:
            name: Its name.
            environment: Its packages. By default, `base` is ``empty``. None: those that were named before, for `upgrade`.
            upgrade: Whether the name may exist, and gets the newest versions.
            isolate: The isolation of the steps; None for the host's.

        Raises:
            InvalidInputError: The packages cannot be installed, or the arguments are invalid.
            ConflictError: The name exists with other packages.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
            UnsupportedError: The host isolates with srt.
        """
        from cellblock.host.environments.build import Target
        from cellblock.host.environments.named_environments import Names
        from cellblock.host.environments.trust import Trust

        asked = environment if environment is None or isinstance(environment, PackageSet) else environment.read("empty")
        with tempfile.TemporaryDirectory(prefix="cellblock-") as directory:
            options = SessionOptions(working_dir=directory, images_dir=directory, preload=(), isolate=isolate)
            session = self.session(options, environment=asked or PackageSet())
            try:
                names = Names(self.environments.store)
                made = await names.create(name, asked, self.environments, Target(session.wanted), upgrade=upgrade)
                if asked is not None and asked.trusted:
                    await in_thread(Trust().add, made.key)
                return made
            finally:
                await session.close()

    # -- sessions of a killed host ---------------------------------------------------------------------------------------

    async def adopt(self) -> list[SessionRemains]:
        """Return the orphaned sessions of a killed host, each to pass to `session` or `discard`.

        Sessions passed to neither end when this host closes.

        Raises:
            StateError: The host has no custodian, or `adopt` was already called.
        """
        self.check_usable()
        if self._adopted or (keeping := self._keeping) is None:
            raise StateError("only a host with a custodian can adopt sessions, and only once")
        self._adopted = True
        keeping.begin()
        await asyncio.to_thread(import_module, "cellblock.host.session")
        await self.kernels.adopt(keeping)
        if (store := await keeping.take_store()) is not None:
            self._store = store
            self._keep(store)
        await keeping.remove_left_places()
        return [*keeping.sessions]

    async def discard(self, remains: SessionRemains) -> None:
        """End an orphaned session that `adopt` returned."""
        keeping = self._keeping
        assert keeping is not None
        await self.kernels.discard(keeping, remains, self._store)
        keeping.session_gone(remains)
        for path in remains.places:
            await SessionPlace(path, keeping).remove()
        if remains.branch is not None:
            await remains.branch.leave()

    @property
    def _keeping(self) -> Keeping | None:
        """The keeper, if the host has a custodian."""
        from cellblock.host.survival.keeping import Keeping

        return self.keeper if isinstance(self.keeper, Keeping) else None


def _keeper(custodian: Custodian | None) -> Keeper:
    places = name_places()
    if custodian is None:
        return Keeper(places)
    from cellblock.host.survival.keeping import Keeping

    return Keeping(custodian, places)
