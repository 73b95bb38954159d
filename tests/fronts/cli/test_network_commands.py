"""`cellblock network`: the hosts of a running session, from a terminal and in Python."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

import cellblock
from cellblock import InvalidInputError, SessionNetwork, StateError, UnsupportedError
from cellblock.fronts.cli import main
from cellblock.service.daemon import control
from cellblock.tools.registry.approvals import Approvals
from processes import alive, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["network", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_lists_are_shown_and_changed(capsys: pytest.CaptureFixture[str]) -> None:
    record = cellblock.get_or_create("one", allow_hosts=["a.invalid"])
    assert shown(capsys, "one") == SessionNetwork(("a.invalid",)).to_dict()
    changed = shown(capsys, "one", "--allow", "b.invalid", "--allow", "c.invalid:8443", "--deny", "d.invalid")
    assert changed["allow"] == ["a.invalid", "b.invalid", "c.invalid:8443"]
    assert main(["network", "one", "--remove", "a.invalid", "--expect", "1"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["revision"] == 2
    assert main(["network", "one", "--deny", "x.invalid", "--expect", "1"]) != 0
    assert "has revision 2, not 1" in capsys.readouterr().err
    assert main(["network", "one", "--remove", "b.invalid:1"]) != 0
    assert "no line 'b.invalid:1' is in the network's lists" in capsys.readouterr().err
    assert cellblock.network(record) == SessionNetwork(("b.invalid", "c.invalid:8443"), ("d.invalid",), False, 2)
    with Approvals() as trail:
        last = trail.last(1)[0]
    assert (last.kind, last.tool, last.by, last.session) == ("network", "change", "person: terminal", record.kernel_id)
    assert last.arguments == {"remove": ["a.invalid"], "revision": 2}


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "nobody"]) != 0
    assert "there is no session 'nobody'" in capsys.readouterr().err
    cellblock.get_or_create("offline")
    assert cellblock.network("offline") == SessionNetwork()
    with pytest.raises(StateError, match="was made without a network"):
        cellblock.change_network("offline", allow=["a.invalid"])
    with pytest.raises(InvalidInputError, match="a list of patterns"):
        cellblock.change_network("offline", allow="a.invalid")
    with pytest.raises(UnsupportedError, match="without a sandbox"):
        cellblock.network(cellblock.get_or_create("free", sandbox=False))


ASKS = """
import os, socket
def status(host):
    with socket.create_connection(("127.0.0.1", int(os.environ["CELLBLOCK_EGRESS_PORT"]))) as proxy:
        proxy.sendall(f"CONNECT {host}:443 HTTP/1.1\\r\\nHost: {host}:443\\r\\n\\r\\n".encode())
        return proxy.recv(12)[-3:]
print(status("a.invalid"), status("b.invalid"))
"""


async def test_a_kernel_that_undo_has_made_reaches_the_proxy_after_the_daemon_was_killed() -> None:
    cellblock.get_or_create("undone", allow_hosts=["b.invalid"])
    cellblock.execute("undone", "x = 1")
    cellblock.execute("undone", "y = 1")
    for _ in range(2):
        cellblock.undo("undone")
        about = control.status()
        assert about is not None
        os.kill(about["pid"], signal.SIGKILL)
        await eventually(lambda pid=about["pid"]: not alive(pid))
        assert cellblock.execute("undone", ASKS).output == "b'403' b'502'\n"


async def test_a_changed_network_outlives_restarts_and_a_killed_daemon_also_for_branches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cellblock.get_or_create("lasting", allow_hosts=["a.invalid"])
    cellblock.execute("lasting", "x = 1")
    (branch,) = cellblock.fork("lasting", ["twig"])
    cellblock.change_network(branch, allow=["b.invalid"], remove=["a.invalid"])
    cellblock.undo("lasting")
    cellblock.restart("lasting")
    expected = SessionNetwork(("b.invalid",), (), False, 1)
    assert cellblock.network("lasting") == expected
    about = control.status()
    assert about is not None
    os.kill(about["pid"], signal.SIGKILL)
    await eventually(lambda: not alive(about["pid"]))
    assert cellblock.network("lasting") == expected
    assert cellblock.network("twig") == expected
    assert cellblock.change_network("lasting", deny=["c.invalid"]).revision == 2
    assert cellblock.network("twig").deny == ("c.invalid",)  # they still share it
    for name in ("lasting", "twig"):
        assert cellblock.execute(name, ASKS).output == "b'403' b'502'\n", name
    control.stop(keep=True)
    assert cellblock.network("lasting").revision == 2
