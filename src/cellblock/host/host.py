"""The host: owns the launchers and sessions of one process and one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, Unpack

from cellblock.common import config
from cellblock.common.config import Isolate
from cellblock.errors import InvalidInputError, StateError, UnsupportedError
from cellblock.host import environment
from cellblock.host.checkpoints.branches import Beginning
from cellblock.host.checkpoints.budget import Budget
from cellblock.host.checks import DEFAULT_TIMEOUT, check_possible, default_tier, find_tier, fit_policy
from cellblock.host.closing import AsyncOnly, Closing, in_thread
from cellblock.host.host_kernels import Kernels, Launch
from cellblock.host.launch.launchers import LaunchKey, key_of
from cellblock.host.options import Defaults, SessionHooks, SessionKeywords, SessionOptions, check_names
from cellblock.host.packages import name_places
from cellblock.host.place import SessionPlace
from cellblock.host.survival.keeper import Keeper
from cellblock.launch.leftovers import remove_places
from cellblock.walls.packages.index import PackageIndex, configuration_files
from cellblock.walls.sandbox import probe
from cellblock.walls.sandbox.policy import Policy

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.kernels.cell import Cell
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.session import Session
    from cellblock.host.snapshots import Store
    from cellblock.host.survival.keeping import Keeping
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.launch.custody.client import Custodian

    Recovered: TypeAlias = tuple[Kernel, Cell | None]

_log = logging.getLogger("cellblock.sessions")


class Host(AsyncOnly):
    """Runs sessions on this machine, in the caller's process and event loop.

    One zygote serves each combination of interpreter and preloaded modules; sessions run in parallel. An async context
    manager.

    Attributes:
        defaults: The defaults of its sessions' options.
        facts: The facts of this machine.
        index: The package index for sessions.
        keeper: Keeps for the next host what outlives this process.
        kernels: The kernels of its sessions.
        checkpoint_budget: The limits on automatic checkpoints of all its sessions.
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
            python: The interpreter that kernels run in: a path, a virtual environment's directory, a command, or None for
                this program's own. It needs Python 3.11 or newer, and IPython.
            preload: Modules to import once, before kernels are forked; each kernel then has them at no cost.
            launch: ``zygote`` forks kernels from a warm process, ``spawn`` starts an interpreter for each. By default
                ``zygote`` on Linux and ``spawn`` elsewhere.
            start_timeout: Seconds until a kernel must be ready.
            isolate: ``native`` puts kernels in sandboxes made of Linux namespaces, mounts and system-call filters;
                ``landlock`` does without namespaces and mounts, and promises less (docs/landlock.md); ``srt`` runs them under
                 that command of Anthropic's sandbox-runtime (docs/srt.md); ``none`` runs them with all rights of this process.
                 By default the value of ``CELLBLOCK_ISOLATE``, or else ``native`` on Linux and ``srt`` elsewhere.
            policy: The policy of sandboxed kernels; sessions can narrow it. For ``srt`` also an `SrtPolicy`: its own settings.
            custodian: Holds the kernels, so that they outlive this process: the next host with the same custodian continues
                them (`adopt`). Kernels that are spawned or under ``srt`` end with this process all the same.

        Raises:
            UnsupportedError: On Windows.
            SandboxError: This machine cannot make the sandbox; the message gives advice.
            InterpreterError: There is no such interpreter.
            InvalidInputError: Another argument is not valid.
        """
        if sys.platform == "win32":
            raise UnsupportedError("cellblock does not run on Windows itself: install it in WSL 2 and run it there")
        if launch not in (None, "zygote", "spawn"):
            raise InvalidInputError(f"launch must be 'zygote' or 'spawn', not {launch!r}")
        if not start_timeout > 0:
            raise InvalidInputError(f"start_timeout must be a positive number of seconds, not {start_timeout!r}")
        interpreter, modules = environment.find_interpreter(python), environment.check_modules(preload)
        check_possible(tier := find_tier(isolate) if isolate else default_tier())
        self.defaults = Defaults(interpreter, modules, tier, fit_policy(policy or Policy(), tier), ceiling=policy is not None)
        self.facts = probe.look()
        own = config.environment()
        self.index = PackageIndex.configured(own, configuration_files(own, os.path.expanduser("~")))
        self.keeper = _keeper(custodian)
        self.kernels = Kernels(
            launch or ("zygote" if sys.platform == "linux" else "spawn"),
            start_timeout,
            self.facts,
            self.keeper,
            self.check_usable,
            lambda: len(self._sessions),
        )
        self.checkpoint_budget = Budget()
        self._store: Store | None = None
        self._sessions: set[Session] = set()
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._adopted = False
        self._closed = False
        self._closing = Closing()

    @property
    def warm(self) -> set[tuple[str, ...]]:
        """Sets of modules that are imported already, so that sessions with these in `preload` start at once."""
        return self.kernels.launchers.warm

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Warm up the zygote, so that the first session starts as quickly as the others. Under srt, this does nothing.

        Raises:
            LaunchError: It cannot be started; `InterpreterError` and `PreloadError` are kinds of it.
        """
        self.check_usable()
        if self.defaults.tier.wrapped:
            return  # it is made for a workspace, and a session will name it
        key = LaunchKey(self.defaults.interpreter, self.defaults.preload, self.defaults.tier)
        self.kernels.launchers.begin(key)
        # The first session would load it otherwise. It takes long, so the loop keeps running meanwhile.
        await asyncio.to_thread(import_module, "cellblock.host.session")
        await self.kernels.launchers.started(key)

    def begin(self, options: SessionOptions) -> None:
        """Warm up a zygote while the caller makes a session of this kind; making the first one loads many modules.

        Args:
            options: The session's options. Under srt, this does nothing.

        Raises:
            StateError, InvalidInputError, InterpreterError: As for `session`.
        """
        self.check_usable()
        tier = self.defaults.tier_for(options)
        key = LaunchKey(self.defaults.interpreter_for(options), self.defaults.modules_for(options), tier)
        if not tier.wrapped and key not in self.kernels.launchers:
            self.kernels.launchers.begin(key)

    @property
    def isolate(self) -> Isolate:
        """How kernels are isolated, unless a session says otherwise."""
        return self.defaults.tier.name

    @property
    def closed(self) -> bool:
        """Whether it was closed, and so takes no more sessions."""
        return self._closed

    async def close(self) -> None:
        """Close every session and end every process of this host.

        It can be repeated. Cancelling the caller does not stop it.
        """
        self._closed = True
        await self._closing.finish(self._close)

    async def _close(self) -> None:
        failures: list[BaseException] = []
        # Without a loop, the kernels cannot be reached any more; they end with their launchers.
        if self._owner is None or not self._owner[1].is_closed():
            ends = await asyncio.gather(*(session.close() for session in [*self._sessions]), return_exceptions=True)
            failures = [end for end in ends if end is not None]
            await self.kernels.end_all()
            if self._store is not None:
                await in_thread(self._store.close)
                self.keeper.store_gone()
        await self.kernels.close()
        self.keeper.close()
        if self._sessions:  # of those that could not be closed
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
        """Make a session; ``async with`` or `Session.start` starts it.

        Args:
            options: Its options.
            hooks: Hooks of a front.
            label: The session's label for the next host's program, if the host has a custodian.
            remains: A result of `adopt`, for a session that continues it. Its options must be the same as before.
            start_from: A checkpoint to start from, of any session of this host, even a closed one. The options are that
                session's by default.
            keywords: Attributes of `SessionOptions`; they override `options`.

        Raises:
            StateError: The host is closed, or belongs to another process or event loop.
            InvalidInputError, InterpreterError: An option is not valid.
            SandboxError: This machine cannot make the sandbox.
        """
        from cellblock.host.session import Session  # with all that a cell needs, and so after `begin`

        self.check_usable()
        if start_from is not None and not isinstance(start_from, Beginning):
            start_from = Beginning(start_from)
        default = SessionOptions() if start_from is None else start_from.checkpoint.moment.options
        check_names(keywords, SessionKeywords.__annotations__)
        asked = replace(options or default, **keywords)
        number = self.kernels.next_number() if remains is None else remains.number
        session = Session(self, number, asked, hooks or SessionHooks(), label=label, remains=remains, start_from=start_from)
        self._sessions.add(session)
        self.kernels.launchers.session_made(key_of(session.wanted))
        return session

    async def load(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        *,
        workspace: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
        hooks: SessionHooks | None = None,
        **keywords: Unpack[SessionKeywords],
    ) -> Session:
        """Make a session that continues a saved one, and start it: ``async with await host.load(path) as session``.

        Its attribute `loaded` says what was restored, and what could not be.

        Args:
            path: The file that `Session.save` has written.
            options: The session's options: those of the saved one are not in the file.
            workspace: As for `Session.load`.
            timeout: As for `Session.load`.
            hooks: As for `session`.
            keywords: As for `session`.

        Raises:
            CellblockError: As for `session`, `Session.start` and `Session.load`. Then no session remains.
        """
        session = self.session(options, hooks=hooks, **keywords)
        try:
            await session.start()
            await session.load(path, workspace=workspace, timeout=timeout)
        except BaseException:  # also a cancellation: nothing else owns the session
            await session.close()
            raise
        return session

    # -- sessions of a killed host ---------------------------------------------------------------------------------------

    async def adopt(self) -> list[SessionRemains]:
        """Return the remains of a killed host's sessions, each for `session` or `discard`.

        Those passed to neither end when this host is closed.

        Raises:
            StateError: The host has no custodian, or has adopted already.
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
        """End the remains of a session.

        Args:
            remains: A result of `adopt`.
        """
        keeping = self._keeping
        assert keeping is not None
        await self.kernels.discard(keeping, remains, self._store)
        keeping.session_gone(remains.number)
        for path in remains.places:
            await SessionPlace(path, keeping).remove()
        if remains.branch is not None:
            await remains.branch.leave()

    @property
    def _keeping(self) -> Keeping | None:
        """The keeper, if it is one with a custodian."""
        from cellblock.host.survival.keeping import Keeping

        return self.keeper if isinstance(self.keeper, Keeping) else None

    # -- for sessions --------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Check that the host can be used here and now.

        Raises:
            StateError: It is closed, or belongs to another process or event loop.
        """
        if self._closed:
            raise StateError("the host is closed; make a new one")
        # First the process: in a fork there is no running loop, although there seems to be one.
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

    def forget(self, session: Session) -> None:
        """Remove a closed session."""
        if session in self._sessions:
            self._sessions.remove(session)
            self.kernels.launchers.session_closed(key_of(session.wanted))

    def store(self) -> Store:
        """Return the store for checkpoint files: a directory that is created on first use.

        Raises:
            SnapshotError: It cannot be created.
        """
        if self._store is None:
            from cellblock.host.checkpoints.files import make_store

            self._store = make_store(lasting=self.keeper.lasting)
            self._keep(self._store)
        return self._store

    def _keep(self, store: Store) -> None:
        """Keep a store for the next host, also when its directory had to be made again."""
        self.keeper.store_made(store)
        store.on_renewed = partial(asyncio.get_running_loop().call_soon_threadsafe, self.keeper.store_made, store)


def _keeper(custodian: Custodian | None) -> Keeper:
    places = name_places()
    if custodian is None:
        return Keeper(places)
    from cellblock.host.survival.keeping import Keeping

    return Keeping(custodian, places)
