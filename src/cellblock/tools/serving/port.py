"""The tool port of a session: HTTP on a listener inside the session, for each of its kernels."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.serving.http import App


class ToolPort:
    """A server of one application on one listener after another.

    The HTTP code is imported at the first connection: most sessions call no tool, and the import takes longer than starting
    a session.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._waiting: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def adopt(self, listener: socket.socket) -> None:
        """Serve on a new kernel's listener from now on; connections to the previous one are closed."""
        self._let_go()
        listener.setblocking(False)
        self._waiting = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._begin)

    async def close(self) -> None:
        """Close all connections and the listener."""
        serving = self._serving
        self._let_go()
        if serving is not None:
            await serving

    def _let_go(self) -> None:
        if self._waiting is not None:
            asyncio.get_running_loop().remove_reader(self._waiting.fileno())
            self._waiting.close()
            self._waiting = None
        self._stop.set()
        self._stop = asyncio.Event()

    def _begin(self) -> None:
        """Start to serve, at the first connection."""
        listener, self._waiting = self._waiting, None
        assert listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        before = self._serving
        self._serving = loop.create_task(self._serve(listener, self._stop, before))

    async def _serve(self, listener: socket.socket, stop: asyncio.Event, before: asyncio.Task[None] | None) -> None:
        with listener:
            if before is not None:
                await before
            module = await asyncio.to_thread(import_module, "cellblock.tools.serving.listen")
            listening = module.HttpServer(self._app, [listener])
            await listening.start()
            await stop.wait()
            await listening.stop()
