"""``python -m cellblock.jupyter -f FILE``: the kernel process that a local Jupyter starts by a kernelspec.

It creates a session in the daemon, relays messages between the session and the sockets of the connection file, and finally
ends the session.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellblock.common.extras import require_extra
from cellblock.errors import CellblockError
from cellblock.fronts.jupyter.kernel import JupyterKernel
from cellblock.fronts.jupyter.kernels import HANDLERS, TAG
from cellblock.model.sessions import SessionRecord
from cellblock.operations.sessions import Create
from cellblock.service.daemon.async_connection import open_connection
from cellblock.service.daemon.place import Place
from cellblock.service.daemon.starting import connect_or_start

_LOOK = 0.5  # seconds between two checks whether Jupyter still runs


def main(arguments: list[str] | None = None) -> int:
    """Serve one kernel until Jupyter ends it, or has ended.

    Args:
        arguments: The command line.
    """
    parser = argparse.ArgumentParser(prog="python -m cellblock.jupyter", description="A sandboxed kernel for Jupyter.")
    parser.add_argument("-f", dest="file", type=Path, required=True, help="the connection file")
    parser.add_argument("--options", default="{}", help="the options of its session, as JSON")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="cellblock: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the server's terminal; interrupts arrive as messages
    try:
        require_extra("jupyter", "kernels for a local Jupyter")
        asyncio.run(_run(given.file, json.loads(given.options)))
    except CellblockError as error:
        sys.stderr.write(f"cellblock: {error}\n")
        return 1
    return 0


async def _run(file: Path, options: Mapping[str, Any]) -> None:
    from cellblock.fronts.jupyter.zeromq import Sockets

    parent = os.getppid()
    sockets = Sockets(file)
    connection = await open_connection(functools.partial(asyncio.to_thread, connect_or_start, Place()))
    try:
        name = f"jupyter-{secrets.token_hex(4)}"
        wanted = {"current_dir": str(Path.cwd()), "python": sys.executable, **options}
        made = await connection.call(Create(name, wanted, TAG, fresh=True, bound=True))
        kernel = JupyterKernel(connection, SessionRecord.from_dict(made), HANDLERS)
        kernel.attach(sockets)
        serving = asyncio.create_task(sockets.serve(kernel))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        kernel.status("starting", {})
        ended = asyncio.create_task(kernel.gone.wait())
        while not (serving.done() or ended.done()) and connection.usable and os.getppid() == parent:
            await asyncio.wait([serving, ended], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        ended.cancel()
        await asyncio.wait([serving, ended])
        await kernel.close()
    finally:
        await sockets.close()
        await connection.close()
