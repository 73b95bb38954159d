"""What is found out about a machine, and what is said where something is missing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from cellblock import Host, LaunchError, SandboxError
from cellblock.walls.sandbox import mounts, namespaces, probe
from cellblock.walls.sandbox.steps import Failure
from cellblock.wire.sandbox import Sysctl


def test_facts_are_about_this_user_and_machine() -> None:
    facts = probe.look()
    assert (facts.uid, facts.gid, facts.machine) == (os.geteuid(), os.getegid(), os.uname().machine)
    assert ("/usr", None) in facts.system
    assert all(path.startswith("/etc/") and os.path.exists(real) for path, real in facts.etc)


def test_nothing_secret_of_etc_is_seen() -> None:
    names = {path for path, _ in probe.look().etc}
    assert not names & {
        "/etc/shadow",
        "/etc/passwd",
        "/etc/hosts",
        "/etc/ssh",
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc/pki",
        "/etc/sudoers",
    }
    assert all(os.stat(path).st_mode & 0o004 for path in names)


def test_the_interpreters_directories_are_absolute_and_apart() -> None:
    found = probe.interpreter_directories()
    assert all(os.path.realpath(path) == path for path in found)
    assert any(os.path.realpath(sys.executable).startswith(f"{path}/") for path in found)
    assert not [path for path in found for other in found if path != other and path.startswith(f"{other}/")]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_forbidden_here", "not tried")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (errno.EPERM, r"to make a user namespace, .* \(Operation not permitted\)"),
        (errno.ENOSPC, "as many namespaces as"),
        (errno.ENOSYS, "lacks a system call|A system-call filter forbids it"),  # in a container
    ],
)
async def test_a_machine_that_cannot_starts_nothing_and_says_why(
    fresh: None, monkeypatch: pytest.MonkeyPatch, outcome: int, said: str
) -> None:
    failure = Failure("user namespace", outcome, os.strerror(outcome))
    monkeypatch.setattr(probe, "_try_namespaces", lambda: failure)
    with pytest.raises(SandboxError, match=said) as caught:
        Host(isolate="native")
    assert (caught.value.step, caught.value.code) == ("user namespace", outcome)
    assert str(caught.value).endswith("'cellblock doctor' says more")


async def test_a_machine_without_room_for_a_process_is_asked_again(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("os.fork", fork)
        with pytest.raises(LaunchError, match=r"has reached (the|its) limit"):
            Host(isolate="native")
    assert probe.forbidden() is None


async def test_an_unknown_architecture_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="no system-call policy for riscv64"):
        Host(isolate="native")


def test_this_machine_can() -> None:
    assert probe.forbidden() is None


def test_a_library_that_starts_threads_in_each_child_keeps_no_sandbox_from_starting() -> None:
    """OpenTelemetry's exporters do: a process with threads cannot make a user namespace."""
    code = """
import os, threading, time
os.register_at_fork(after_in_child=lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start())
from cellblock.walls.sandbox import probe
print(probe.forbidden())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@pytest.mark.parametrize(
    ("release", "version"), [("6.18.44-generic", (6, 18)), ("5.10.0", (5, 10)), ("6.1-rc3", (6, 1)), ("4.19.0+", (4, 19))]
)
def test_versions_of_the_kernel_are_read(monkeypatch: pytest.MonkeyPatch, release: str, version: tuple[int, int]) -> None:
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", "x", release, "x", "x86_64")))
    assert namespaces.kernel_version.__wrapped__() == version


def test_settings_of_the_whole_machine_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.14 there was one pid_max for all, and a host that runs as root may write it."""
    monkeypatch.setattr(mounts, "kernel_version", lambda: (6, 13))
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("it was written"))
    mounts._Builder([])._do(Sysctl("kernel/pid_max", "512", 6, 14))
