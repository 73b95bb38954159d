"""How kernels die, in words."""

from __future__ import annotations

import pytest

from cellblock.host.kernels import exit_status


@pytest.mark.parametrize(
    ("status", "words", "exited"),
    [
        (11, "SIGSEGV, a segmentation fault in C code", -11),
        (9, "SIGKILL, killed, for example", -9),
        (3 << 8, "exited with status 3", 3),
        (11 | 0x80, "SIGSEGV", -11),
        (0, "exited with status 0 (os._exit(), or exit() in C code, or the code shut the kernel's channel down)", 0),
        (70 << 8, "broke the kernel's channel", 70),
        (40, "signal 40", -40),
        (0x137F, "its processes were killed", None),
        (64, "SIGRTMAX", -64),
        (None, "its processes were killed", None),
        (-1, "its processes were killed", None),
        (1 << 40, "its processes were killed", None),
    ],
)
def test_a_status_is_told_in_words(status: int | None, words: str, exited: int | None) -> None:
    assert words in exit_status.describe_status(status)
    assert exit_status.exit_status(status) == exited


def test_a_kill_for_want_of_memory_is_told_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4
    monkeypatch.setattr(exit_status._OutOfMemory, "_count", staticmethod(lambda: count))
    monkeypatch.setattr(exit_status, "_out_of_memory", exit_status._OutOfMemory())
    assert "killed, for example" in exit_status.describe_status(9)
    count = 5
    assert "out of memory" in exit_status.describe_status(9)
    assert "killed, for example" in exit_status.describe_status(9)
