"""What the system tells, and how it is asked who can write to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock.host.snapshots import watch
from cellblock.host.snapshots.watch import Inotify, LostError, has_writer


def test_whoever_can_write_to_a_file_is_noticed(workspace: Path) -> None:
    (workspace / "file").write_text("1")
    opened = os.open(workspace / "file", os.O_RDONLY)
    writer = os.open(workspace / "file", os.O_WRONLY)
    try:
        assert has_writer(opened) is True
        os.close(writer)
        assert has_writer(opened) is False
        reader = os.open(workspace / "file", os.O_RDONLY)
        assert has_writer(opened) is False
        os.close(reader)
        (workspace / "file").write_text("nobody waits for a lease that is left")
    finally:
        os.close(opened)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_who_writes_to_a_file_of_somebody_else_cannot_be_known(workspace: Path) -> None:
    (workspace / "file").touch()
    code = (
        "import os, sys; sys.path[:] = eval(sys.argv[1]); from cellblock.host.snapshots.watch import has_writer; "
        "fd = os.open(sys.argv[2], os.O_RDONLY); os.setresuid(65534, 65534, 65534); print(has_writer(fd))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path), workspace / "file"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "None\n"


def test_names_are_told_as_they_are(workspace: Path) -> None:
    watching = Inotify()
    top = os.open(workspace, os.O_RDONLY)
    try:
        number = watching.add(top, watch.CREATE | watch.ONLYDIR)
        names = ["\udcff", "new\nline", "a" * 255, "b" * 16]
        for name in names:
            (workspace / name).touch()
        assert [*watching.read()] == [(number, watch.CREATE, name) for name in names]
        watching.remove(number)
        (workspace / "later").touch()
        assert not [event for event in watching.read() if event[2]]
    finally:
        os.close(top)
        watching.close()
        watching.close()


def test_what_is_refused_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Inotify._open
    monkeypatch.setattr(watch, "_limit", lambda _: 0)
    with pytest.raises(LostError, match="too many sessions"):
        Inotify()
    assert Inotify._open == before


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    with Inotify._lock:
        if (child := os.fork()) == 0:
            signal.alarm(20)  # ends it, if it waits
            Inotify().close()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
