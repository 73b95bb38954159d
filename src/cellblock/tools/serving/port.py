"""The tool port of a session: HTTP on listeners inside the session, one for each sandbox of its kernels."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellblock.tools.serving.http import App


class ToolPort:
    """A server of one application on any number of listeners."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._served: set[_Listener] = set()

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        """Serve on a listener. Return a function that closes the listener and its connections."""
        served = _Listener(self._app, listener)
        self._served.add(served)

        def stop() -> None:
            served.stop()
            if served.serving is None:
                self._served.discard(served)
            else:
                served.serving.add_done_callback(lambda _: self._served.discard(served))

        return stop

    async def close(self) -> None:
        """Close all connections and listeners."""
        for served in self._served:
            served.stop()
        if serving := [served.serving for served in self._served if served.serving is not None]:
            await asyncio.gather(*serving)
        self._served.clear()


class _Listener:
    """A listener of the port.

    The HTTP code is imported at the first connection: most sessions call no tool, and the import takes longer than starting
    a session.

    Attributes:
        serving: Serves its connections, from the first one on.
    """

    def __init__(self, app: App, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._stop = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._begin)

    def stop(self) -> None:
        """Close it and its connections. Idempotent."""
        if self.serving is None and not self._stop.is_set():
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        self._stop.set()

    def _begin(self) -> None:
        """Start to serve, at the first connection."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self.serving = loop.create_task(self._serve())

    async def _serve(self) -> None:
        with self._listener:
            module = await asyncio.to_thread(import_module, "cellblock.tools.serving.listen")
            listening = module.HttpServer(self._app, [self._listener])
            await listening.start()
            await self._stop.wait()
            await listening.stop()
