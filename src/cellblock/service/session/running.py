"""Runs a session for an interface: one object owns everything from start to stop."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

from cellblock.errors import LaunchError, StateError
from cellblock.host.closing import Closing

# Few imports: the modules for sessions are imported while the first zygote warms up (`Host.begin`).
if TYPE_CHECKING:
    from cellblock.host import Host, Session, SessionOptions
    from cellblock.host.kernels.cell import OnInput
    from cellblock.service.session.service_options import ServiceOptions, SessionOrigin
    from cellblock.service.session.services import SessionServices

_dropped: set[asyncio.Task[None]] = set()
"""Tasks that close sessions which were not stopped: a loop does not keep its tasks alive."""


class RunningSession:
    """A session, its services and its host, from start to stop. Every interface uses this class for its sessions.

    Everything is recorded here before the next await, so that `close` finds it.

    Attributes:
        loop: The event loop of the session.
        session: The session, once created.
        services: The session's services, once created.
        started: Whether the start has succeeded.
    """

    def __init__(self, given_host: Host | None) -> None:
        """Set up without starting.

        Args:
            given_host: The host, which stays open; None for the shared host of the event loop.
        """
        self.loop = asyncio.get_running_loop()
        self.session: Session | None = None
        self.services: SessionServices | None = None
        self.started = False
        self._host = given_host
        self._shared_host: Host | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing = Closing()

    @property
    def host(self) -> Host:
        """The host of the session, after the start."""
        host = self._host or self._shared_host
        assert host is not None
        return host

    @property
    def closing(self) -> bool:
        """Whether closing has started."""
        return self._closing.begun

    async def start(
        self,
        options: SessionOptions,
        services: ServiceOptions,
        session_id: str,
        tool_server: tuple[str, int] | None,
        timeout: float | None,
        *,
        origin: SessionOrigin | None = None,
        on_input: OnInput | None = None,
    ) -> None:
        """Start the session and its services, in a task that `close` can end.

        Args:
            options: The options of the session.
            services: The options of the services.
            session_id: The session's id in the audit record.
            tool_server: Host and port on which other programs can call the session's tools, if any.
            timeout: Seconds in which the kernel must start; None for the host's limit.
            origin: Its name, and what it starts from.
            on_input: As for `Session.start`.

        Raises:
            StateError: The session was closed meanwhile.
            LaunchError: The kernel did not start, or not in time.
        """

        async def begin() -> None:
            host = await self._find_host()
            host.begin(options)
            await _load("cellblock.host.session", "cellblock.service.session.services")
            from cellblock.service.session.services import open_session

            self.session, self.services = open_session(host, options, services, session_id, origin)
            await _start_within(self.session, timeout, on_input)
            if tool_server is not None:
                await self.services.serve(*tool_server)
            self.started = True

        self._starting = asyncio.create_task(begin())
        await asyncio.wait([self._starting])
        if self._starting.cancelled():
            raise StateError("the session was stopped while it started")
        self._starting.result()

    async def _find_host(self) -> Host:
        if self._host is not None:
            return self._host
        await _load("cellblock.host.shared")
        from cellblock.host import shared

        self._shared_host = await shared.acquire()
        return self._shared_host

    async def close(self) -> None:
        """Close everything, even during the start. The operation is idempotent, and cancelling a caller does not stop it."""
        await self._closing.finish(self._close)

    def drop(self) -> None:
        """Close soon, because the object was garbage collected. Any thread may call this."""
        try:
            self.loop.call_soon_threadsafe(self._begin_close)
        except RuntimeError:
            pass  # the loop is closed, and its shared host with it

    def _begin_close(self) -> None:
        task = self.loop.create_task(self.close())
        _dropped.add(task)
        task.add_done_callback(_dropped.discard)

    async def _close(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        try:
            if self.session is not None:
                await self.session.close()
            if self.services is not None:
                await self.services.close()
        finally:
            if self._shared_host is not None:
                from cellblock.host import shared

                shared.release(self._shared_host)
                self._shared_host = None


async def _load(*names: str) -> None:
    """Import modules in a thread, unless already imported: this takes long, and the loop continues meanwhile."""
    for name in names:
        if name not in sys.modules:
            await _import_in_thread(name)


async def _import_in_thread(name: str) -> None:
    pool = ThreadPoolExecutor(1)  # not the loop's own: `asyncio.run` starts one more thread to end a used pool
    try:
        await asyncio.get_running_loop().run_in_executor(pool, import_module, name)
    except RuntimeError:
        import_module(name)  # no thread can be started; the following start fails for the same reason, and reports it
    finally:
        pool.shutdown(wait=False)


async def _start_within(session: Session, timeout: float | None, on_input: OnInput | None) -> None:
    try:
        async with asyncio.timeout(timeout) as limit:
            await session.start(on_input=on_input)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise LaunchError(f"the kernel was not ready within {timeout:g} s; raise kernel_init_timeout") from error
