"""`KernelGateway`: serves IPython kernels on a port, for Jupyter clients of this user."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cellblock.common.extras import require_extra
from cellblock.common.loop_thread import LoopThread
from cellblock.errors import StateError
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.fronts.kernel_mgr import token_files
from cellblock.host import Host
from cellblock.host.requested_policy import as_in_ipybox
from cellblock.service.named.json_options import Options
from cellblock.service.session.running import RunningSession

if TYPE_CHECKING:
    from cellblock.fronts.gateway.embedded import EmbeddedGateway

_log = logging.getLogger("cellblock")


class KernelGateway:
    """A Jupyter kernel gateway in this process, whose kernels are sandboxed.

    It runs in its own thread. It therefore answers even while the caller's event loop is blocked or has ended, and can be
    started in one event loop and stopped in another.

    `KernelClient` and every other Jupyter client can start kernels there and run code in them::

        async with KernelGateway(host="localhost", port=8888) as gateway:
            await gateway.join()

    Clients need its `token`. `KernelClient` finds it on the same machine as the same user.

    Attributes:
        token: The token. It changes with each start, unless one was given.
        port: The port; after a start with port 0, the assigned one.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        working_dir: str | os.PathLike[str] | None = None,
        sandbox: bool = True,
        sandbox_config: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
        log_to_stderr: bool = False,
        env: Mapping[str, str] | None = None,
        *,
        token: str = "",
    ) -> None:
        """Configure a gateway without starting it.

        Args:
            host: Host name or IP address to listen on.
            port: The port.
            working_dir: The directory of the kernels, to which they return after each cell that left it. By default, they
                start in the current one, and stay where their code goes.
            sandbox: Whether kernels run in a sandbox. Otherwise, they have all rights of this process.
            sandbox_config: A JSON file with the sandbox's configuration (docs/sandbox.md). A complete sandbox-runtime
                configuration has its meaning there, and a `UserWarning` names what becomes readable.
            log_level: Level of the ``cellblock`` logger, with `log_to_stderr`.
            log_to_stderr: Whether the ``cellblock`` logger writes to standard error.
            env: Environment variables of the kernels, which inherit none.
            token: The token that clients need; by default a random one.
        """
        self.host = host
        self.port = port
        self.token = token
        self._given_token = token
        self._wanted_port = port
        self._log_level = log_level if log_to_stderr else None
        self._handler: logging.Handler | None = None
        self._options: dict[str, Any] = {"sandbox": sandbox}
        if sandbox_config is not None:
            self._options["sandbox_config"] = os.fspath(sandbox_config)
        if env:
            self._options["kernel_env"] = dict(env)
        if working_dir is not None:
            self._options["working_dir"] = os.fspath(working_dir)
        self._serving: _Serving | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the gateway.

        Raises:
            StateError: It is already running. This is a `RuntimeError`.
            InvalidInputError: The address cannot be used.
            UnsupportedError: The extra serve is not installed.
        """
        if self._serving is not None:
            raise StateError("the gateway is already running")
        options = dict(self._options)
        if (path := options.get("sandbox_config")) is not None and options["sandbox"]:
            config, warning = as_in_ipybox(path)
            if warning:
                options["sandbox_config"] = config
                warnings.warn(warning, stacklevel=2)
        serving = self._serving = _Serving(GatewayOptions(token=self._given_token, session_options=options))
        try:
            self.port, self.token = await asyncio.shield(serving.begin(self.host, self._wanted_port))
            token_files.keep(self.port, self.token)
        except BaseException:
            await self.stop()
            raise
        atexit.register(serving.end_now)
        self._begin_logging()

    def _begin_logging(self) -> None:
        if self._log_level is not None and self._handler is None:
            self._handler = logging.StreamHandler(sys.stderr)
            _log.addHandler(self._handler)
            _log.setLevel(self._log_level)

    async def stop(self, timeout: float = 10) -> None:
        """Stop the gateway and its kernels. The operation is idempotent, and cancelling the caller does not stop it.

        Args:
            timeout: Seconds that running requests may still take.
        """
        if (serving := self._serving) is None:
            return
        atexit.unregister(serving.end_now)
        await asyncio.shield(serving.end(timeout))
        if self._serving is serving:
            self._serving = None
        if self._handler is not None:
            _log.removeHandler(self._handler)
            self._handler = None

    async def join(self) -> None:
        """Wait until the gateway stops."""
        if self._serving is not None:
            await asyncio.shield(self._serving.wait())


class _Serving:
    """A running gateway in its own thread, awaitable from any event loop.

    Attributes:
        port: The port on which it listens.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self.port = 0
        self._options = options
        self._thread = LoopThread()
        self._engine: Host | None = None
        self._gateway: EmbeddedGateway | None = None
        self._begun: concurrent.futures.Future[tuple[int, str]] | None = None

    def begin(self, host: str, port: int) -> asyncio.Future[tuple[int, str]]:
        """Start to listen; return the port and the token."""
        self._begun = asyncio.run_coroutine_threadsafe(self._begin(host, port), self._thread.loop)
        return asyncio.wrap_future(self._begun)

    async def _begin(self, host: str, port: int) -> tuple[int, str]:
        self._engine = Host(isolate="none")  # each session sets its own isolation
        self._gateway = _embedded(self._engine, self._options)
        await self._gateway.start(host, port)
        self.port = self._gateway.port
        return self._gateway.port, self._gateway.token

    def wait(self) -> asyncio.Future[None]:
        """Wait until the gateway has ended."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._wait(), self._thread.loop))

    async def _wait(self) -> None:
        if self._gateway is not None:
            await self._gateway.wait()

    def end(self, timeout: float) -> asyncio.Future[None]:
        """Start to end the gateway and its kernels; all callers wait for the same end."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._end, timeout)

    def end_now(self) -> None:
        """End the gateway at once, because the program exits without having stopped it."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # errors about aborted requests
        self._end(0)

    def _end(self, timeout: float) -> None:
        if self.port:
            token_files.forget(self.port)
        if not self._thread.usable:
            return
        with contextlib.suppress(StateError):  # another caller has ended it meanwhile
            self._thread.run(self._close(timeout))
        self._thread.close()

    async def _close(self, timeout: float) -> None:
        if self._begun is not None and not self._begun.done():
            with contextlib.suppress(Exception):
                await asyncio.wrap_future(self._begun)
        try:
            if self._gateway is not None:
                await self._gateway.close(timeout)
        finally:
            if self._engine is not None:
                await self._engine.close()


async def serve_session(running: RunningSession, options: Options, name: str, address: tuple[str, int]) -> EmbeddedGateway:
    """Serve a session to Jupyter clients of this user, who can create similar ones. These end with the gateway.

    Args:
        running: The session. It is closed with the gateway, or when a client ends it.
        options: The session's options, also for new ones.
        name: The session's name for clients.
        address: Host and port to listen on.

    Raises:
        InvalidInputError: The address cannot be used.
        UnsupportedError: The extra serve is not installed.
    """
    gateway = _embedded(running.host, GatewayOptions(), fixed=options)
    try:
        gateway.sessions.lend(name, running, options)
        await gateway.start(*address)
        token_files.keep(gateway.port, gateway.token)
    except BaseException:
        await gateway.close()
        raise
    return gateway


def _embedded(host: Host, options: GatewayOptions, fixed: Options | None = None) -> EmbeddedGateway:
    require_extra("serve", "kernel gateways")
    from cellblock.fronts.gateway.embedded import EmbeddedGateway

    return EmbeddedGateway(host, options, fixed)
