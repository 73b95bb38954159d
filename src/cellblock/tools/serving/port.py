"""The tool port of a session: HTTP on a listener inside the session, whichever kernel it has now."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.serving.http import App


class ToolPort:
    """Serves an application on one listener after another.

    What serves HTTP is loaded at the first connection: most sessions call no tool, and it takes longer to load than they do to
    start.
    """

    def __init__(self, app: App) -> None:
        """Take the application that is to be served."""
        self._app = app
        self._waiting: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def adopt(self, listener: socket.socket) -> None:
        """Serve on a new kernel's listener from now on; what was connected to the one before is cut off."""
        self._let_go()
        listener.setblocking(False)
        self._waiting = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._begin)

    async def close(self) -> None:
        """Cut off whatever is connected, and close the listener."""
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
        """Somebody connects for the first time."""
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
