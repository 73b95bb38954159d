"""What is said of a kernel's Landlock, and what a process may do that has put it on itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.walls.linux import landlock
from cellblock.wire.sandbox import Allow

pytestmark = pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))


def test_a_kernel_without_it_is_refused_with_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    (said,) = landlock.missing()
    assert "lsm=" in said


def outcomes(allowed: list[Allow], *actions: Callable[[], object], version: int = 6) -> list[str]:
    """Do things in a child that has restricted itself; return for each the name of its error, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            from cellblock.walls.linux import abi
            from cellblock.walls.linux.syscall import prctl

            prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            for action in (lambda: landlock.restrict(allowed, version), *actions):
                try:
                    action()
                    said.append("")
                except OSError as error:
                    said.append(errno.errorcode[error.errno or 0])
        finally:
            os.write(writer, ",".join(said).encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        restricting, *done = file.read().split(",")
        return [restricting or one for one in done]


def restricted(allowed: list[Allow], action: Callable[[], object], version: int = 6) -> str:
    """Do something in a child that has restricted itself; return the name of the error, or nothing."""
    return outcomes(allowed, action, version=version)[0]


def test_nothing_is_left_but_what_is_allowed(tmp_path: Path) -> None:
    for name in ("seen", "ours", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    allowed = [Allow(str(tmp_path / "seen"), "read"), Allow(str(tmp_path / "ours"), "write")]
    assert outcomes(allowed, (tmp_path / "seen" / "file").read_text, lambda: (tmp_path / "ours" / "new").write_text("x")) == [
        "",
        "",
    ]
    refused = outcomes(
        allowed,
        (tmp_path / "other" / "file").read_text,
        lambda: os.listdir(tmp_path),
        lambda: (tmp_path / "seen" / "file").write_text("x"),
        lambda: os.truncate(tmp_path / "seen" / "file", 0),
        lambda: os.unlink(tmp_path / "seen" / "file"),
        lambda: os.mkdir(tmp_path / "seen" / "new"),
        lambda: os.symlink("x", tmp_path / "seen" / "new"),
        lambda: os.mkfifo(tmp_path / "seen" / "new"),
    )
    assert refused == ["EACCES"] * 8
    moved = outcomes(
        allowed,
        lambda: os.rename(tmp_path / "seen" / "file", tmp_path / "ours" / "moved"),
        lambda: os.link(tmp_path / "seen" / "file", tmp_path / "ours" / "linked"),
    )
    assert {*moved} <= {"EACCES", "EXDEV"}


def test_a_link_is_not_followed_to_what_is_to_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert restricted([Allow(str(tmp_path / "link"), "read")], lambda: None) == "ELOOP"


def test_what_is_missing_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    assert restricted([Allow(str(tmp_path / "none"), "read")], lambda: None) == "ENOENT"
    assert restricted([Allow(str(tmp_path / "none"), "read", optional=True)], lambda: None) == ""


@pytest.mark.slow
def test_a_rule_uses_only_what_a_version_knows(tmp_path: Path) -> None:
    """So that each can be tried on a newer kernel: what it does not decide about is open."""
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "file").write_text("x")
    (tmp_path / "ours" / "deep").mkdir(parents=True)
    (tmp_path / "ours" / "moved").touch()
    allowed = [Allow(str(tmp_path / "seen"), "read"), Allow(str(tmp_path / "ours"), "write")]
    parent = os.getpid()
    tries: dict[int, Callable[[], object]] = {
        3: lambda: os.truncate(tmp_path / "seen" / "file", 0),
        6: lambda: os.kill(parent, 0),
    }
    found = {version: [n for n, attempt in tries.items() if restricted(allowed, attempt, version)] for version in range(1, 7)}
    assert found == {1: [], 2: [], 3: [3], 4: [3], 5: [3], 6: [3, 6]}
    assert restricted(allowed, lambda: os.rename(tmp_path / "ours/moved", tmp_path / "ours/deep/moved"), 1) == "EXDEV"
    assert restricted(allowed, lambda: os.rename(tmp_path / "ours/moved", tmp_path / "ours/deep/moved"), 2) == ""


def test_no_signal_reaches_a_process_outside() -> None:
    parent = os.getpid()
    assert restricted([], lambda: os.kill(parent, 0)) == "EPERM"
    assert restricted([], lambda: os.kill(os.getpid(), 0)) == ""
