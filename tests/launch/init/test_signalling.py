"""To whom init sends signals for the code of its session."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cellblock.launch.init import signalling

from .test_supervisor import supervised


def test_what_is_below_is_signalled_and_nothing_else() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait $!"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        for pid in (child.pid, grandchild):
            signalling._send(pid, 0)
        for pid in (os.getpid(), os.getppid(), 1):
            with pytest.raises(PermissionError):
                signalling._send(pid, 0)
        with pytest.raises(ProcessLookupError):
            signalling._send(2**22 + 1, 0)
        signalling._send(grandchild, signal.SIGKILL)
    assert child.returncode == 128 + signal.SIGKILL


def test_a_parent_that_changes_while_it_is_looked_at_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the parent's number had gone to a process of the session between two looks."""
    top = os.getpid()
    looks = iter([20, top, 1, 1, 0])
    monkeypatch.setattr(signalling, "_parent", lambda pid: next(looks))
    with pytest.raises(PermissionError):
        signalling._check_below(10)


def test_a_parent_that_never_stays_the_same_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.cycle([20, os.getpid(), 30])
    monkeypatch.setattr(signalling, "_parent", lambda pid: next(looks))
    with pytest.raises(PermissionError):
        signalling._check_below(10)


def test_a_process_whose_parent_ends_meanwhile_is_signalled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a whole group is killed, parents first."""
    top = os.getpid()
    looks: Iterator[int | None] = iter([20, top, top, top, top])  # the second look differs, and the next try agrees
    monkeypatch.setattr(signalling, "_parent", lambda pid: next(looks))
    signalling._check_below(10)
    assert next(looks, None) is None


def test_answers_are_those_of_the_calls_themselves() -> None:
    calls: dict[Callable[[], object], str] = {
        lambda: os.kill(os.getpid(), 0): "",
        lambda: os.kill(0, 0): "",
        lambda: signal.raise_signal(0): "",
        lambda: os.kill(os.getppid(), 0): "EPERM",
        lambda: os.kill(-1, 0): "EPERM",
        lambda: os.kill(1, 0): "EPERM",
        lambda: os.killpg(2**30, 0): "ESRCH",
        lambda: os.kill(os.getpid(), 1000): "EINVAL",
        lambda: signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0): "",
        lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0): "EPERM",
        lambda: signal.pidfd_send_signal(0, 0): "EBADF",
        lambda: signal.pidfd_send_signal(-1, 0): "EBADF",
        lambda: signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0, None, 1): "EINVAL",
    }
    assert supervised(*calls) == [*calls.values()]


def test_a_name_of_a_process_that_is_not_text_and_looks_like_a_field_does_no_harm() -> None:
    def act() -> None:
        with open("/proc/self/comm", "wb") as file:
            file.write(b"\xff) S 1\nTgid: 1")
        os.kill(os.getpid(), 0)
        if (child := os.fork()) == 0:
            signal.pause()
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM

    assert supervised(act) == [""]
