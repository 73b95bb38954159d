"""`KernelGateway`: serves IPython kernels at a port, to Jupyter clients of this user."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from cellblock.errors import StateError
from cellblock.gateway.embedded import EmbeddedGateway
from cellblock.gateway.options import GatewayOptions
from cellblock.host import Host
from cellblock.kernel_mgr import token_files
from cellblock.named.options import Options
from cellblock.running import RunningSession

_log = logging.getLogger("cellblock")


class KernelGateway:
    """A Jupyter kernel gateway in this process, whose kernels are sandboxed.

    `KernelClient` and every other Jupyter client can start kernels there and run code in them::

        async with KernelGateway(host="localhost", port=8888) as gateway:
            await gateway.join()

    Clients need its `token`. `KernelClient` finds it by itself if it runs on the same machine as the same user.

    Attributes:
        token: The token. It changes with each start unless one was given.
        port: The port; after a start with port 0, the one that was found.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        sandbox: bool = True,
        sandbox_config: str | os.PathLike[str] | None = None,
        log_level: str = "INFO",
        log_to_stderr: bool = False,
        env: Mapping[str, str] | None = None,
        *,
        working_dir: str | os.PathLike[str] | None = None,
        token: str = "",
    ) -> None:
        """Configure a gateway. Nothing is started.

        Args:
            host: Host name or IP address to listen at.
            port: The port.
            sandbox: Whether kernels run in a sandbox. Without, they have all rights of this process.
            sandbox_config: A JSON file with the sandbox's configuration (docs/sandbox.md).
            log_level: Level of the ``cellblock`` logger, with `log_to_stderr`.
            log_to_stderr: Whether the ``cellblock`` logger writes to standard error.
            env: Environment variables of the kernels, which inherit none.
            working_dir: The directory that kernels work in; the current one by default.
            token: The token that clients need; by default one that cannot be guessed.
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
        self._engine: Host | None = None
        self._gateway: EmbeddedGateway | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it.

        Raises:
            StateError: It is running already. This is a `RuntimeError`.
            InvalidInputError: The address cannot be used.
        """
        if self._gateway is not None:
            raise StateError("the gateway is already running")
        self._engine = Host(isolate="none")  # each session says how it is to be isolated
        options = GatewayOptions(token=self._given_token, session_options=self._options)
        self._gateway = EmbeddedGateway(self._engine, options)
        try:
            await self._gateway.start(self.host, self._wanted_port)
            self.port, self.token = self._gateway.port, self._gateway.token
            token_files.keep(self.port, self.token)
        except BaseException:
            await self.stop()
            raise
        self._begin_logging()

    def _begin_logging(self) -> None:
        if self._log_level is not None and self._handler is None:
            self._handler = logging.StreamHandler(sys.stderr)
            _log.addHandler(self._handler)
            _log.setLevel(self._log_level)

    async def stop(self, timeout: float = 10) -> None:
        """Stop it and end its kernels. Stopping twice is fine.

        Args:
            timeout: Seconds that requests may still take.
        """
        if self._gateway is None or self._engine is None:
            return
        gateway, engine = self._gateway, self._engine
        if gateway.port:
            token_files.forget(gateway.port)
        try:
            await gateway.close(timeout)
        finally:
            await engine.close()
        self._gateway = self._engine = None
        if self._handler is not None:
            _log.removeHandler(self._handler)
            self._handler = None

    async def join(self) -> None:
        """Wait until it stops."""
        if self._gateway is not None:
            await self._gateway.wait()


async def serve_session(running: RunningSession, options: Options, name: str, address: tuple[str, int]) -> EmbeddedGateway:
    """Let Jupyter clients of this user use a session, and make others of its kind. What they make ends with the gateway.

    Args:
        running: The session. It is closed with the gateway, or when a client ends it.
        options: Its options, and those of the others.
        name: The name that clients know it by.
        address: Host and port to listen at.

    Raises:
        InvalidInputError: The address cannot be used.
    """
    gateway = EmbeddedGateway(running.host, GatewayOptions(), fixed=options)
    try:
        gateway.sessions.lend(name, running, options)
        await gateway.start(*address)
        token_files.keep(gateway.port, gateway.token)
    except BaseException:
        await gateway.close()
        raise
    return gateway
