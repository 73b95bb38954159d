"""References that keep the first commits of clones, and what removes those of killed hosts."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock import Host
from cellblock.host.clones.pins import remove_pins_of_the_dead
from git_repositories import Repository
from processes import eventually

KILLED = """
import asyncio, os, signal
from cellblock import Host

async def main():
    async with Host() as host, host.session(working_dir={project!r}, workspace="clone") as session:
        await session.fork()
        await session.execute("1")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_later_host_removes_references_of_a_killed_one(repository: Repository, native_host: Host) -> None:
    async with native_host.session(working_dir=repository.path, workspace="clone"):
        own = repository.git("for-each-ref", "refs/cellblock")
        code = KILLED.format(project=str(repository.path))
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code])
        assert done.returncode == -signal.SIGKILL
        assert repository.git("for-each-ref", "refs/cellblock") != own
        async with Host() as host, host.session():
            await eventually(lambda: repository.git("for-each-ref", "refs/cellblock") == own)  # a clone in use stays


def test_records_that_are_none_and_projects_that_are_gone_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    remove_pins_of_the_dead()
    (tmp_path / "clones").mkdir()
    for name, content in (("1-a-1", "x"), ("1-b-2", json.dumps([str(tmp_path / "gone"), str(tmp_path / "gone"), "refs/x"]))):
        (tmp_path / "clones" / name).write_text(content)
    remove_pins_of_the_dead()
    assert not [*(tmp_path / "clones").iterdir()]
