"""What the log tells of sessions, kernels, cells, servers and decisions."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from cellblock import CodeExecutionError, CodeExecutor, Host
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.rules import Rules


async def test_the_log_tells_the_life_of_a_session(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "cellblock")
    async with CodeExecutor(host=host, sandbox=False, log_level="DEBUG") as executor:
        await executor.execute("secret = 1")
        await executor.reset()
        with pytest.raises(CodeExecutionError):
            await executor.execute("import os; os._exit(3)")
    told = re.sub(r"\d+(\.\d+)?", "N", "\n".join(record.getMessage() for record in caplog.records))
    for line in (
        "session N has the id",
        "session N: kernel N ready in N ms",
        "session N started in N ms, isolate=none, in ",
        "session N: cell begun, timeout N s",
        "session N: cell ended: success in N ms",
        "session N was reset",
        "session N: cell ended: died in N ms, recovery restarted",
        "session N: kernel N ended: 'its process exited with status N ",
        "session N closed",
    ):
        assert line in told
    assert "secret" not in told


async def test_at_the_default_level_nothing_is_told(host: Host, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    logging.getLogger("cellblock").setLevel(logging.NOTSET)
    async with CodeExecutor(host=host, sandbox=False) as executor:
        await executor.execute("1")
    assert [record for record in caplog.records if record.name.startswith("cellblock")] == []


async def test_the_log_tells_decisions_and_who_made_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cellblock")
    broker = Broker(Rules(), None, 1, None, session="abc")
    await broker.decide("tool", "files", "read\nforged line", {"path": "/private"})
    (record,) = caplog.records
    assert record.getMessage().startswith(r"decision in session abc: deny tool 'read\nforged line' of 'files' by nobody")
    assert "/private" not in record.getMessage()
