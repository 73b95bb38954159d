"""Forks turnkeys, in the template process."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  # of names in certificates: no module can be loaded in a turnkey
import gc
import os
import signal
import socket
import ssl
from typing import NoReturn

import cellblock.walls.keys.scan  # noqa: F401
from cellblock.walls.keys.turnkey import Turnkey, client_settings, server_settings
from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import prctl


def run(descriptor: int) -> None:
    """Fork a turnkey for each socket that arrives, until the host ends.

    Args:
        descriptor: The socket to the host.
    """
    prctl(abi.PR_SET_NAME, b"turnkey")
    prctl(abi.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave no zombies
    control = socket.socket(fileno=descriptor)
    settings = client_settings()
    # Once, so that forks share what it loads.
    asyncio.run(asyncio.sleep(0))
    server_settings(bytes(32), {"warm.test:443"})
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _become(descriptors[0], settings)
        os.close(descriptors[0])


def _become(descriptor: int, settings: ssl.SSLContext) -> NoReturn:
    """Become a turnkey. Nothing is printed: a trace could show values."""
    try:
        control = socket.socket(fileno=descriptor)
        control.setblocking(False)

        async def serve() -> None:
            await Turnkey(control, settings).run()

        asyncio.run(serve())
    finally:
        os._exit(0)
