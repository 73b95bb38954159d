"""Every operation of a session or of the set of sessions, each declared once. docs/daemon.md describes how they travel.

An operation is a class in one of the modules of this package. From its declaration come the daemon's messages and their
dispatch; `base` says what a declaration has.

A request is a frame (`wire.frames`): its header has the request's ``type``, an ``id`` that the client chooses, and ``fields``;
its body is code, or the bytes of a file. The daemon answers with one frame of the type ``reply``, whose body is JSON data
(`wire.packed`), or raw bytes for a file. An answer in many parts has one such frame for each, which say that there is ``more``
to come, and an empty one at its end. Instead of any of them an ``error`` can come, which is the last. A daemon that is ending
answers with ``refused``: it has not accepted the request, which can be sent again to the next daemon.
"""

from __future__ import annotations

from cellblock.operations import approvals, checkpoints, executions, files, moving, overview, programs, saving, sessions, tools
from cellblock.operations.base import OPERATIONS

__all__ = [
    "OPERATIONS",
    "approvals",
    "checkpoints",
    "executions",
    "files",
    "moving",
    "overview",
    "programs",
    "saving",
    "sessions",
    "tools",
]
