"""Named sessions in this process alone: ``CELLBLOCK_STORE_BACKEND=memory``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from cellblock import NotFoundError
from cellblock.common import loop_thread
from cellblock.service.daemon import in_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sessions of this module live in this process, and end with the module."""
    home = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLBLOCK_HOME", str(home))
        patch.setenv("KERNELBOX_STORE_BACKEND", "memory")
        patch.chdir(tmp_path_factory.mktemp("workspace"))
        warm = cellblock.get_or_create("warm")
        cellblock.checkpoint(warm, files="copy")  # what the host keeps files with, it keeps until its end
        cellblock.destroy(warm)
        yield home
        in_process.shared().close()
        loop_thread.shared().close()


@pytest.fixture(autouse=True)
def wiped(nothing_left_behind: None) -> Iterator[None]:
    """Each test's sessions end before it is looked at what it leaves behind."""
    yield
    cellblock.wipe()


def test_sessions_live_in_this_process_without_a_daemon(memory: Path) -> None:
    kernel = cellblock.get_or_create("here")
    assert cellblock.execute(kernel, "x = 40\nx + 2").return_value == "42"
    assert cellblock.execute("here", "x").return_value == "40"
    assert not (memory / "daemon.sock").exists()
    assert cellblock.destroy("here") is True


def test_another_process_has_sessions_of_its_own_which_end_with_it() -> None:
    cellblock.execute(cellblock.get_or_create("mine"), "x = 1")
    program = "import cellblock; print(cellblock.list_kernels()); cellblock.get_or_create('mine'); print('made')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert (done.stdout, done.stderr) == ("[]\nmade\n", "")
    assert cellblock.execute("mine", "x").return_value == "1"


def test_a_child_process_finds_none_of_them() -> None:
    cellblock.get_or_create("parents")
    if (child := os.fork()) == 0:
        try:
            cellblock.status("parents")
        except NotFoundError:
            cellblock.get_or_create("childs")
            in_process.shared().close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "childs" not in {record.name for record in cellblock.list_kernels()}


async def test_inside_a_running_event_loop() -> None:
    assert cellblock.execute(cellblock.get_or_create("looped"), "1 + 1").return_value == "2"
