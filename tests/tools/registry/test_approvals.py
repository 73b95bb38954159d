"""The audit trail: what was decided is on disk before anything comes of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock.errors import StateError, StoreError
from cellblock.model.decisions import Decision
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.rules import Rule, Rules
from cellblock.tools.registry import approvals as module
from cellblock.tools.registry.approvals import MAX_PAYLOAD, Approvals

NOW = time.time()


def decision(number: int = 0, session: str = "s") -> Decision:
    return Decision("allow", "person", session, "tool", "files", f"read{number}", b'{"a":1}', NOW + number)


async def test_decisions_are_kept(tmp_path: Path) -> None:
    with Approvals(tmp_path) as approvals:
        await approvals.add(decision(1))
        await approvals.add(decision(2, "other"))
        assert approvals.last() == [decision(2, "other"), decision(1)]
    with Approvals(tmp_path) as approvals:
        assert approvals.last(session="s") == [decision(1)]
        assert approvals.last(1) == [decision(2, "other")]
    row = sqlite3.connect(tmp_path / "approvals.db")
    assert row.execute("SELECT sha256 FROM approvals").fetchall() == [(hashlib.sha256(b'{"a":1}').hexdigest(),)] * 2
    row.close()
    assert (tmp_path / "approvals.db").stat().st_mode & 0o777 == 0o600


async def test_the_last_calls_of_a_tool_that_were_allowed_are_found_quickly(tmp_path: Path) -> None:
    with Approvals(tmp_path) as approvals:
        for one in (decision(1), decision(1, "other"), replace(decision(1), outcome="deny"), decision(2)):
            await approvals.add(one)
        assert approvals.allowed("tool", "files", "read1", 5) == [decision(1, "other"), decision(1)]
        assert approvals.allowed("tool", "files", "read1", 1, session="s") == [decision(1)]
        assert approvals.allowed("shell", "files", "read1", 5) == []
    file = sqlite3.connect(tmp_path / "approvals.db")
    query = "SELECT * FROM approvals WHERE outcome = 'allow' AND server = ? AND tool = ? AND kind = ? ORDER BY id DESC LIMIT 1"
    (plan,) = file.execute(f"EXPLAIN QUERY PLAN {query}", ("a", "b", "c")).fetchall()
    assert "approvals_allowed" in plan[3]
    file.close()


async def test_of_a_large_payload_the_beginning_is_kept_and_what_it_was(tmp_path: Path) -> None:
    large = b'{"a":"' + b"x" * 4_000_000 + b'"}'
    with Approvals(tmp_path) as approvals:
        await approvals.add(replace(decision(), payload=large))
        assert approvals.last()[0].payload == large[:MAX_PAYLOAD]
    row = sqlite3.connect(tmp_path / "approvals.db")
    assert row.execute("SELECT size, sha256 FROM approvals").fetchall() == [(len(large), hashlib.sha256(large).hexdigest())]
    row.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000


async def test_denials_that_come_by_the_thousand_are_counted(tmp_path: Path) -> None:
    with Approvals(tmp_path) as approvals:
        for number in range(5000):
            await approvals.add(replace(decision(), outcome="deny", payload=b'"%d"' % number, reason="no"))
        await approvals.add(decision())  # what is allowed has a row in any case
        assert len(approvals.last(10_000)) == module.MAX_DENIALS + 1
        await approvals.add(replace(decision(60), outcome="deny", reason="no"))
        _, summary, allowed, *_ = approvals.last(10_000)
        assert allowed.allowed
        assert summary.reason.startswith(f"{5000 - module.MAX_DENIALS} more requests were denied")
        assert summary.payload == b'"4999"'
        for _ in range(200):
            await approvals.add(replace(decision(61), outcome="deny", reason="no"))
    with Approvals(tmp_path) as approvals:
        assert approvals.last(1)[0].reason.startswith("101 more")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000


async def test_payloads_of_a_session_have_a_limit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAYLOADS", 100_000)
    with Approvals(tmp_path) as approvals:
        for _ in range(10):
            await approvals.add(replace(decision(), payload=b"x" * 60_000))
        assert [len(kept.payload) for kept in approvals.last()] == [0] * 8 + [40_000, 60_000]
    row = sqlite3.connect(tmp_path / "approvals.db")
    assert row.execute("SELECT DISTINCT size FROM approvals").fetchall() == [(60_000,)]
    row.close()


@pytest.mark.slow
async def test_old_rows_and_those_of_a_session_with_too_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 300)
    with Approvals(tmp_path) as approvals:
        await approvals.add(replace(decision(), session="long ago", at=NOW - module.MAX_AGE - 60))
        await approvals.add(decision(0, "quiet"))
    with Approvals(tmp_path) as approvals:
        for number in range(1025):
            await approvals.add(decision(number))
        kept = approvals.last(10_000)
    assert "long ago" not in {one.session for one in kept}
    assert sum(one.session == "quiet" for one in kept) == 1
    assert [one.tool for one in kept if one.session == "s"] == [f"read{1024 - number}" for number in range(300)]


@pytest.mark.slow
async def test_the_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE", 1_000_000)
    with Approvals(tmp_path) as approvals:
        for number in range(600):
            await approvals.add(replace(decision(number), payload=b"x" * 20_000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 30_000_000
    with Approvals(tmp_path) as approvals:
        assert approvals.last(1)[0].tool == "read599"
        assert len(approvals.last(10_000)) < 600


async def test_a_brokers_decisions_say_who_decided_what(tmp_path: Path) -> None:
    rules = Rules((Rule("allow", tool="read"),))
    with Approvals(tmp_path) as approvals:
        broker = Broker(rules, lambda request: False, record=approvals.add, session="mine")
        await broker.decide("tool", "files", "read", {"b": 1, "a": "ü"})
        await broker.decide("shell", "shell", "shell", {"command": "rm -rf /"})
        rejected, allowed = approvals.last(session="mine")
    assert (allowed.outcome, allowed.by, allowed.payload) == ("allow", "allow *.read", b'{"a":"\\u00fc","b":1}')
    assert (rejected.outcome, rejected.by, rejected.kind, rejected.reason) == ("deny", "caller", "shell", "rejected")
    assert abs(allowed.at - time.time()) < 60


async def test_a_thousand_at_once_and_from_two_processes_writers(tmp_path: Path) -> None:
    with Approvals(tmp_path) as first, Approvals(tmp_path) as second:
        await asyncio.gather(*((first, second)[n % 2].add(decision(n)) for n in range(1000)))
        assert {kept.tool for kept in first.last(2000)} == {f"read{n}" for n in range(1000)}


async def test_a_locked_file_holds_up_the_call_and_not_the_loop(tmp_path: Path) -> None:
    with Approvals(tmp_path) as approvals:
        other = sqlite3.connect(tmp_path / "approvals.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        adding = asyncio.create_task(approvals.add(decision()))
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not adding.done()
        other.execute("ROLLBACK")
        other.close()
        await adding
        assert approvals.last() == [decision()]


async def test_a_closed_or_broken_trail_is_an_error(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    other = sqlite3.connect(tmp_path / "approvals.db")
    other.execute("DROP TABLE approvals")
    other.close()
    with pytest.raises(StoreError, match="could not be recorded"):
        await approvals.add(decision())
    approvals.close()
    approvals.close()
    with pytest.raises(StateError, match="closed"):
        await approvals.add(decision())


DIES = """
import asyncio, os, pathlib, signal, sys, time
from cellblock.model.decisions import Decision
from cellblock.tools.registry.approvals import Approvals

async def main():
    approvals = Approvals(pathlib.Path(sys.argv[1]))
    await approvals.add(Decision("allow", "person", "s", "tool", "files", "last", b"{}", time.time()))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_is_recorded_survives_the_death_of_the_process(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES, str(tmp_path), env=os.environ)
    assert await process.wait() == -signal.SIGKILL
    with Approvals(tmp_path) as approvals:
        assert [kept.tool for kept in approvals.last()] == ["last"]
