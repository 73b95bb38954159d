"""A daemon whose user may have no more processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import cellblock
from cellblock import CellblockError
from daemons import about, own_daemon
from processes import below

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="the system does not count the processes of root")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[None]:
    with own_daemon(tmp_path):
        yield


def own() -> Iterator[Path]:
    """Yield the directories in /proc of this user's processes: what cannot be traced belongs to root there."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and f"\nUid:\t{os.geteuid()}\t" in (process / "status").read_text():
                yield process


def limit(more: int) -> None:
    """Let the daemon, and all that it has started, have so many more, together with all other processes of this user."""
    most = more + sum(len([*(process / "task").iterdir()]) for process in own())
    found = about()
    for pid in {found["pid"], found["custodian"], *below(found["pid"]), *below(found["custodian"])}:
        with suppress(ProcessLookupError):
            hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, hard))


def make_many() -> None:
    for number in range(50):
        cellblock.get_or_create(f"more-{number}", sandbox=False)
        assert cellblock.execute(f"more-{number}", "1").ok


def test_new_sessions_are_refused_and_those_there_are_go_on(daemon: None) -> None:
    cellblock.get_or_create("one", sandbox=False)
    assert cellblock.execute("one", "x = 41").ok
    limit(12)
    with pytest.raises(CellblockError, match=r"This user has reached the limit of [\d,]+ on processes and threads"):
        make_many()
    assert cellblock.execute("one", "x + 1").return_value == "42"
    limit(1000)
    assert cellblock.execute(cellblock.get_or_create("another", sandbox=False), "1").return_value == "1"
