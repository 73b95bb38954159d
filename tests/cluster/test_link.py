"""What is asked of a host that is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock.errors import SessionLostError
from cluster.small import hosts_of, small_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def test_nothing_is_sent_to_a_host_that_is_known_to_be_lost(tmp_path: Path) -> None:
    """Nothing was carried out, then, which is not the same as an unknown outcome."""
    async with small_cluster(tmp_path, 1) as cluster:
        hosts = hosts_of(cluster)
        session = await hosts.get_or_create("lost")
        assert (await session.execute("1")).text == "1"
        host = cluster.host_of("lost")
        watching = hosts._made._watching[host.mark]  # type: ignore[union-attr]
        host.kill_all()
        await asyncio.wait_for(watching, 30)
        with pytest.raises(SessionLostError, match="lost"):
            await session.execute("1")
        await hosts.close()
