"""The host that goes on after one was killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import processes
from cellblock.host import Host
from cellblock.host.survival.remains import SessionRemains
from cellblock.launch.custody.custodian_client import Custodian


@asynccontextmanager
async def next_host(state: Path, isolate: str) -> AsyncIterator[tuple[Host, list[SessionRemains]]]:
    """Run the next host of a custodian's directory; afterwards, nothing is left."""
    custodian = Custodian.connect(state)
    pid = custodian.pid
    host = Host(isolate=isolate, custodian=custodian)  # type: ignore[arg-type]
    try:
        yield host, await host.adopt()
    finally:
        await host.close()
        custodian.close()
    left = Custodian.connect(state)
    try:
        assert left.pid == pid
        assert set(left.entries) <= {"host"}
        await processes.eventually(lambda: not processes.below(pid))
    finally:
        left.end()
