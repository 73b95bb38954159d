"""Cells of MCP clients: a call that is cancelled stops what it began, and of long output the end is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cellblock.fronts.mcp_server import asking, cells
from cellblock.fronts.mcp_server.clients import Clients
from cellblock.fronts.mcp_server.server_options import ServerOptions
from cellblock.host import Host
from cellblock.operations.executions import Executions
from iterations import cancelled_after

pytestmark = pytest.mark.slow


@pytest.fixture
async def clients(zygote_host: Host, tmp_path: Path) -> AsyncIterator[Clients]:
    made = Clients(ServerOptions(workspace=tmp_path, sandbox=False), zygote_host)
    yield made
    await made.close()


def call() -> Any:
    """Return what a tool knows of the call that it answers."""

    async def report_progress(*_: Any, **__: Any) -> None:
        """Nobody looks."""

    return SimpleNamespace(input_responses=None, request_state=None, report_progress=report_progress)


async def test_whenever_a_call_is_cancelled_its_cell_ends(clients: Clients) -> None:
    session = await clients.session("")
    begun = 0

    async def run(code: str) -> None:
        nonlocal begun
        cell = await cells.begin(clients, session, code, 60)
        begun += 1
        try:
            await asking.run(clients, cell, 60, call())
        finally:
            await cell.close()

    for iterations in range(30):
        assert not await cancelled_after(iterations, run("import time; time.sleep(50)"))
    assert 5 < begun < 30

    async def all_ended() -> bool:
        return all(one.state == "done" for one in await clients.ask(Executions(session.kernel_id)))

    async with asyncio.timeout(20):
        while not await all_ended():
            await asyncio.sleep(0.02)
