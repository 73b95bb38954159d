"""Fixtures for sessions of a cluster: three Ray nodes on this machine, which all tests of a run share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cellblock.cluster import RayHosts, local
from cluster.nodes import Nodes, ready_hosts


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nodes and what belongs to them outlive tests; what must end says so in its own test."""


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLBLOCK_HOME", str(tmp_path_factory.mktemp("cluster-home")))
        address = local.start_nodes(3)
        try:
            yield Nodes(address, Path(os.environ["CELLBLOCK_HOME"]))
        finally:
            import ray

            ray.shutdown()
            local.stop_nodes()


@pytest.fixture
async def hosts(nodes: Nodes) -> AsyncIterator[RayHosts]:
    """Sessions on these nodes, with a host on each."""
    made = await ready_hosts(nodes)
    yield made
    await made.close()
