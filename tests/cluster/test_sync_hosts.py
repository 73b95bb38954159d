"""Sessions of a cluster, as plain synchronous programs use them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cellblock.cluster import SyncRayHosts
from cellblock.errors import DaemonError, NotFoundError, StateError
from cluster.nodes import OPTIONS, Nodes

pytestmark = pytest.mark.slow


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_plain_program(nodes: Nodes) -> None:
    with SyncRayHosts(nodes.address, options=OPTIONS) as hosts:
        deadline = time.monotonic() + 60
        while len(hosts.status()["nodes"]) < 2:
            assert time.monotonic() < deadline, "no hosts have started"
            time.sleep(0.1)
        with hosts.session("plain") as session:
            assert session.execute("x = [1]; x").text == "[1]"
            assert [event.kind for event in session.stream("print(1)")] == ["begun", "stream", "result"]
            stream = session.stream("for i in range(1000): print(i)")
            next(stream)
            stream.close()  # the code goes on
            assert session.execute("x.append(2); x").text == "[1, 2]"
            session.undo()
            (branch,) = session.fork(["plain-branch"])
            assert branch.execute("x").text == "[1]"
            branch.close()
            with ThreadPoolExecutor(8) as pool:
                texts = [result.text for result in pool.map(session.execute, map(str, range(20)))]
            assert texts == [str(number) for number in range(20)]
        with pytest.raises(NotFoundError):
            hosts.find("plain")
        kept = hosts.get_or_create("kept")
        kept.write_file("numbers", (b"%d" % number for number in range(3)))
        assert b"".join(kept.read_parts("numbers")) == b"012"
        assert [record.name for record in hosts.list_sessions()] == ["kept"]
    with pytest.raises(DaemonError, match="the link to the cluster is closed"):
        kept.execute("1")
    with pytest.raises(StateError, match="not started"):
        hosts.status()
    with hosts:
        hosts.find("kept").close()
