"""A workspace beside a folder that nobody in it may reach, by either walk, and code that works against the host."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellblock.host.files import Files
from cellblock.host.files.beneath import Walk, openat2_walk, stepwise_walk

SECRET = b"the caller's own secret"
Attacker = Callable[..., contextlib.AbstractContextManager[None]]


# Quick tests walk by openat2, which every current kernel has; the other walk is for older ones.
STEPWISE = pytest.param(stepwise_walk, id="stepwise", marks=[pytest.mark.slow, pytest.mark.sampled(1)])


@pytest.fixture(params=[pytest.param(openat2_walk, id="openat2"), STEPWISE])
def walk(request: pytest.FixtureRequest) -> Walk:
    """Each of the two walks."""
    chosen: Walk = request.param
    return chosen


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def files(workspace: Path, walk: Walk) -> Files:
    return Files(workspace, walk=walk)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of the caller's, of which nothing may be read, and which must be as it was when the test is over."""
    path = tmp_path / "outside"
    (path / "folder").mkdir(parents=True)
    (path / "secret").write_bytes(SECRET)
    (path / "folder" / "secret").write_bytes(SECRET)
    path.chmod(0o751)
    before = _snapshot(path)
    yield path
    assert _snapshot(path) == before


def _snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder: mode, links to it, content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_nlink,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def attacker(workspace: Path) -> Attacker:
    """Run code over and over in the workspace, in a process of its own, for as long as a context lasts."""

    @contextlib.contextmanager
    def run(code: str, *args: object) -> Iterator[None]:
        lines = "\n    ".join(code.strip().splitlines())
        program = (
            "import os, sys, contextlib\nargs = sys.argv[1:]\nprint(flush=True)\n"
            f"while True:\n  with contextlib.suppress(OSError):\n    {lines}\n"
        )
        command = [sys.executable, "-c", program, *map(str, args)]
        process = subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return run
