"""New files replace what code in the session has put in their place, and never write through it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock import FilesError
from cellblock.host.files import Files


async def test_a_hard_link_is_never_written_through(files: Files, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"kept")
    os.link(tmp_path / "other", workspace / "x")
    (tmp_path / "local").write_bytes(b"mine")
    await files.write("x", b"new", mode=0o777)
    assert ((tmp_path / "other").read_bytes(), (tmp_path / "other").stat().st_mode & 0o111) == (b"kept", 0)
    os.unlink(workspace / "x")
    os.link(tmp_path / "other", workspace / "x")
    await files.upload(tmp_path / "local", "x")
    await files.remove("x")
    assert (tmp_path / "other").read_bytes() == b"kept"


async def test_a_file_under_a_lease_is_an_error_at_once(files: Files, workspace: Path) -> None:
    (workspace / "x").write_bytes(b"1")
    program = (
        "import fcntl, os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); fd = os.open('x', os.O_RDWR)\n"
        f"fcntl.fcntl(fd, {fcntl.F_SETLEASE}, fcntl.F_WRLCK); print(flush=True); signal.pause()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], cwd=workspace, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        # An open() that waits breaks the lease after 45 seconds, and succeeds.
        with pytest.raises(FilesError, match="holds a lease") as caught:
            await files.read("x")
        assert caught.value.errno == errno.EAGAIN
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
