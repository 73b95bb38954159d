"""Copies of a worker: what their processes do when another one has ended."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_copy_ends_if_init_has_ended_before_the_copy_was_its_child() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    # The process in between has ended as well, and the parent is somebody else.
    code = f"from cellblock.init import forking; forking._wait_for_parent({gone.pid}, {gone.pid}); print('goes on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_a_copy_goes_on_when_it_is_a_child_of_init() -> None:
    code = f"from cellblock.init import forking; forking._wait_for_parent({os.getpid()}, 1); print('goes on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert ended.stdout == "goes on\n"
