"""Sessions of a cluster, as plain synchronous programs use them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cellblock.cluster import SyncRayHosts
from cellblock.errors import NotFoundError
from cluster.nodes import OPTIONS, Nodes

pytestmark = pytest.mark.slow


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_plain_program(nodes: Nodes) -> None:
    with SyncRayHosts(nodes.address, options=OPTIONS) as hosts:
        hosts.link.link.director.ask("status_soon", 60.0)
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
        assert len(hosts.status()["nodes"]) >= 2
