"""Two directors at once, as in a network that is divided: hosts obey the one that was started later, and refuse the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock.cluster.director import pause
from cellblock.cluster.renewal import Renewal
from cellblock.errors import ConflictError, DaemonError, NotPlacedError
from cellblock.operations.sessions import Create
from cellblock.service.daemon.lease import Lease, now
from cluster.nodes import until
from cluster.small import hosts_of, small_cluster


@pytest.mark.slow
async def test_hosts_refuse_the_older_of_two_directors(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 1) as cluster:
        cluster.divided = True
        older, host = cluster.director, cluster.hosts["n0"]
        before = await older.place("x", 1, [], 5.0)
        newer = cluster.new_director()
        cluster.directors.append(newer)
        await until(lambda: host.renewal.epoch == 2)
        assert older._names.epoch == 1
        placed = await newer.place("x", 1, [], 20.0)
        assert placed["mark"] == before["mark"]
        for grant in (before["grant"], older._names.grant(older._names.sites[host.mark])):
            with pytest.raises(NotPlacedError, match="an earlier director"):
                await host.daemon.call(Create("x", grant=grant))
        with pytest.raises(ConflictError, match="director 1 has been replaced by director 2"):
            await older.drain(host.name, True)
        with pytest.raises(ConflictError):
            await host.ask("stop", 1)
        cluster.obeys["n0"] = older  # the network is divided otherwise now: the host reaches the older one alone
        lease = host.lease.until
        await until(lambda: older._successor == 2)
        with pytest.raises(DaemonError, match="replaced"):
            await older.place("y", 1, [], 5.0)
        assert host.renewal.epoch == 2
        assert host.lease.until == lease or host.lease.until - lease < 1e9, "only the newer one renews its lease"
        cluster.obeys.clear()
        assert (await newer.place("x", 1, [], 5.0))["mark"] == host.mark


@pytest.mark.slow
async def test_a_director_that_was_replaced_notices_it(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 1) as cluster:
        older = cluster.director
        cluster.obeys["n0"] = older  # the later one is out of the reach of the host
        newer = cluster.new_director()
        cluster.directors.append(newer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await newer.place("x", 1, [], 5.0)
        await until(lambda: older._successor == 2)
        with pytest.raises(DaemonError, match="replaced"):
            await older.report(cluster.hosts["n0"].mark, 1, {})


@pytest.mark.slow
async def test_sessions_go_to_the_node_that_has_imported_their_modules(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        hosts = hosts_of(cluster)
        first = await hosts.get_or_create(preload=["json.tool", "csv"])
        node = cluster.host_of(first.name)
        site = cluster.director._names.sites[node.mark]
        await until(lambda: site.node.warm == {frozenset({"json.tool", "csv"})})
        others = [await hosts.get_or_create(preload=["csv", "json.tool"]) for _ in range(5)]
        assert {cluster.host_of(session.name).ray_node for session in others} == {node.ray_node}
        await hosts.close()


def test_a_lease_is_renewed_by_the_latest_director_alone(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease")
    renewal = Renewal(lease, 10.0)
    asked = now()
    assert renewal.answered({"epoch": 5, "lost": False}, asked) == "join"
    assert lease.epoch == 5
    assert not lease.valid, "it is told what there is first"
    assert renewal.answered({"epoch": 5, "lost": False}, asked) == "renewed"
    assert lease.until == asked + 10 * 10**9
    assert renewal.answered({"epoch": 4, "lost": False}, asked + 10**9) == "older"
    assert renewal.answered({"epoch": 4, "lost": True}, asked + 10**9) == "older"
    assert (lease.until, lease.epoch) == (asked + 10 * 10**9, 5)
    renewal.check(5)
    renewal.check(6)
    with pytest.raises(ConflictError):
        renewal.check(4)
    assert renewal.answered({"epoch": 7, "lost": False}, asked) == "join"
    assert renewal.answered({"epoch": 7, "lost": True}, asked) == "lost"


def test_many_hosts_report_less_often() -> None:
    assert [pause(hosts, 30.0) for hosts in (1, 100, 200, 400, 1000, 10_000)] == [1.0, 1.0, 1.0, 2.0, 5.0, 5.0]
    assert pause(3, 2.0) == 0.2, "several reports fit into a lease"
