"""What one session has of the servers of its host: what is registered when a call is made, and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.store.servers import ServerRegistry
from cellblock.tools.lease import Lease, SharedServers
from cellblock.tools.params import StdioServer

SERVER = StdioServer(sys.executable, (str(Path(__file__).with_name("hostile_server.py")), "plain"))


@pytest.mark.slow
async def test_a_call_reaches_the_server_that_is_registered_when_it_is_made(tmp_path: Path) -> None:
    registry, other = ServerRegistry(tmp_path / "state"), ServerRegistry(tmp_path / "state")
    shared = SharedServers(lambda root, name: registry.get(name, root), connect_timeout=60, environment=os.environ)
    lease = Lease(shared, lambda name: registry.root_within(name, str(tmp_path)))
    try:
        assert not lease.known("x")
        with pytest.raises(InvalidInputError, match="no MCP server is registered as 'x' for this workspace"):
            await lease.call("x", "pid", {})
        processes = []
        for root in ("one", "two"):
            other.register("x", SERVER, "", str(tmp_path / root))
            assert lease.known("x")
            processes.append((await lease.call("x", "pid", {})).text)
        assert len(set(processes)) == 2
        other.remove("x")
        assert not lease.known("x")
        with pytest.raises(InvalidInputError, match="no MCP server is registered"):
            await lease.call("x", "pid", {})
    finally:
        await lease.close()
        registry.close()
