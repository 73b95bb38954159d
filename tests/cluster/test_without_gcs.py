"""Ray's control service is killed. It is the last test: after it, there is no cluster any more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from cellblock.cluster import RayHosts
from cluster.nodes import Nodes, below, kill, naming

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]


async def test_sessions_go_on_without_rays_control_service(hosts: RayHosts, nodes: Nodes) -> None:
    """It is killed with all that it stores: nothing of the cluster can be found any more, but what is known goes on."""
    session = await hosts.get_or_create("without-gcs")
    await session.execute("n = 0")
    cluster = json.loads((nodes.home / "ray-cluster.json").read_text())["pid"]
    (gcs,) = below(cluster) & {*naming("gcs/gcs_server")}
    kill(gcs)
    for number in range(1, 30):
        assert (await session.execute("n += 1; n")).text == str(number)
        await asyncio.sleep(0.1)
    async with hosts.session("made-without-gcs", patience=10) as other:  # the director lives, and knows the nodes
        assert (await other.execute("1")).text == "1"
    environment = {**os.environ, "CELLBLOCK_RAY_ADDRESS": nodes.address, "CELLBLOCK_HOME": str(nodes.home)}
    command = [sys.executable, "-m", "cellblock", "exec", session.name, "n"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "Ray's control service does not answer" in ended.stderr
    await session.close()
    kill(*(below(cluster) & {*naming("raylet/raylet")}))  # so that nothing waits for the control service when this ends
