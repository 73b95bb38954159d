"""Programs beside the kernel of a session."""

from __future__ import annotations

from fastapi import APIRouter

from cellblock.fronts.gateway.routes import add
from cellblock.operations.programs import (
    Exec,
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WriteProcess,
)

router = APIRouter(tags=["Programs"])

for operation in (Exec, Spawn, Processes, ReadProcess, WriteProcess, SignalProcess, ResizeProcess, StopProcess):
    add(router, operation)
