"""What is said of a kernel's Landlock, and what a process may do that has put it on itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.sandbox import landlock
from cellblock.wire.sandbox import Allow

pytestmark = pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))


@pytest.mark.parametrize("version", range(1, landlock.LEAST))
def test_an_older_version_is_refused_and_each_missing_piece_is_named(version: int) -> None:
    (said,) = landlock.missing(version)
    assert f"ABI {version}," in said
    for number, (kernel, what) in landlock.PIECES.items():
        assert (f"{what} (ABI {number}, {kernel})" in said) == (number > version)


def test_a_kernel_without_it_is_refused_with_ways_out() -> None:
    (said,) = landlock.missing(0)
    assert "lsm=" in said


def test_what_is_enough_lacks_what_is_newer() -> None:
    assert landlock.missing(6) == ()
    assert landlock.lacking(6) == ("keeping refusals out of the audit log (ABI 7, Linux 6.15)",)
    assert landlock.lacking(7) == ()


def restricted(allowed: list[Allow], action: Callable[[], object]) -> str:
    """Do something in a child that has restricted itself; return the name of the error, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            from cellblock.sandbox import abi
            from cellblock.sandbox.syscall import prctl

            prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict(allowed)
            action()
        except OSError as error:
            said = errno.errorcode[error.errno or 0].encode()
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


def test_nothing_is_left_but_what_is_allowed(tmp_path: Path) -> None:
    for name in ("seen", "ours", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    allowed = [Allow(str(tmp_path / "seen"), "read"), Allow(str(tmp_path / "ours"), "write")]
    assert restricted(allowed, (tmp_path / "seen" / "file").read_text) == ""
    assert restricted(allowed, lambda: (tmp_path / "ours" / "new").write_text("x")) == ""
    assert restricted(allowed, (tmp_path / "other" / "file").read_text) == "EACCES"
    assert restricted(allowed, lambda: os.listdir(tmp_path)) == "EACCES"
    for change in (
        lambda: (tmp_path / "seen" / "file").write_text("x"),
        lambda: os.truncate(tmp_path / "seen" / "file", 0),
        lambda: os.unlink(tmp_path / "seen" / "file"),
        lambda: os.mkdir(tmp_path / "seen" / "new"),
        lambda: os.symlink("x", tmp_path / "seen" / "new"),
        lambda: os.mkfifo(tmp_path / "seen" / "new"),
    ):
        assert restricted(allowed, change) == "EACCES"
    moves = (lambda: os.rename(tmp_path / "seen" / "file", tmp_path / "ours" / "moved"),)
    assert {restricted(allowed, move) for move in moves} <= {"EACCES", "EXDEV"}
    assert restricted(allowed, lambda: os.link(tmp_path / "seen" / "file", tmp_path / "ours" / "linked")) in (
        "EACCES",
        "EXDEV",
    )


def test_a_link_is_not_followed_to_what_is_to_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert restricted([Allow(str(tmp_path / "link"), "read")], lambda: None) == "ELOOP"


def test_what_is_missing_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    assert restricted([Allow(str(tmp_path / "none"), "read")], lambda: None) == "ENOENT"
    assert restricted([Allow(str(tmp_path / "none"), "read", optional=True)], lambda: None) == ""


def test_no_signal_reaches_a_process_outside() -> None:
    parent = os.getpid()
    assert restricted([], lambda: os.kill(parent, 0)) == "EPERM"
    assert restricted([], lambda: os.kill(os.getpid(), 0)) == ""
