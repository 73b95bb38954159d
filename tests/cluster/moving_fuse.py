"""Kills the daemon of a node at a point of a move. Imported by the daemons of `test_moving_kills`, before they begin.

The point is in a file of the node's directory, which is removed when the move begins: the next daemon is not killed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from cellblock.common.database import Database
from cellblock.operations.executions import Submit
from cellblock.service.daemon import moving
from cellblock.service.daemon.client_connection import Client
from cellblock.service.daemon.codec import decode_request
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.store.writer import Writer
from cellblock.wire.frames import Frame
from exact_kills import MOVES
from fuses import Fuse

FILE, PASSED = "fuse", "passed"


def install(directory: Path) -> None:
    """Let the daemon of a node's directory be killed."""
    calls = ((os, "fsync"), (os, "link"), (os, "mkdir"), (Database, "transaction"), (Writer, "_commit"), (Client, "_send"))
    fuse = Fuse(0, *MOVES, *calls)
    place = moving._place

    def begin(server: Server) -> tempfile.TemporaryDirectory[str]:
        """Arm the fuse: both nodes make a place for the save first."""
        if (file := directory / FILE).exists():
            fuse.point = int(file.read_text())
            file.unlink()
            fuse.armed = True
        return place(server)

    take = Client._take

    def end(this: Client, frame: Frame) -> None:
        """Disarm the fuse, and write how many points there were: the test asks for the outcome."""
        if fuse.armed and isinstance(decode_request(frame)[1], Submit):
            fuse.armed = False
            (directory / PASSED).write_text(str(fuse.passed))
        take(this, frame)

    setattr(moving, "_place", begin)  # noqa: B010  # mypy knows no functions that are replaced
    setattr(Client, "_take", end)  # noqa: B010


install(Path(sys.orig_argv[3]).parent)
