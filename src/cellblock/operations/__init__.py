"""All operations on sessions, each declared once. docs/daemon.md describes the protocol.

An operation is a class in a module of this package. The daemon's messages and their dispatch follow from its declaration,
which `base` describes.

A request is a frame (`wire.frames`). Its header has the request's ``type``, an ``id`` chosen by the client, and ``fields``;
its body is code, or the bytes of a file. The daemon answers with one frame of the type ``reply``. The reply's body is JSON
data (`wire.packed`), or raw bytes for a file. An answer in many parts has one reply for each, marked with ``more``, and an
empty reply at the end. An ``error`` can replace any of them, and is the last frame. A daemon that is ending answers
``refused``: it has not accepted the request, which can be sent again to the next daemon.
"""

from __future__ import annotations

from cellblock.operations import (  # noqa: F401  # each declares its operations
    approvals,
    checkpoints,
    clones,
    environments,
    executions,
    files,
    moving,
    network,
    overview,
    programs,
    saving,
    secrets,
    sessions,
    tools,
)
from cellblock.operations.base import OPERATIONS as OPERATIONS
