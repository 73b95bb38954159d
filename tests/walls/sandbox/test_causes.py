"""From a failure and what is around it to the cause and the ways out: every row was seen, or is documented elsewhere."""

from __future__ import annotations

import errno
import itertools
import re
from dataclasses import replace

import pytest

from cellblock.walls.sandbox.causes import find_cause, tell
from cellblock.walls.sandbox.steps import STEPS, Failure, StepName
from cellblock.walls.sandbox.surroundings import Surroundings

PODMAN = Surroundings(container="podman", filtered=True, masked=("/proc/acpi", "/proc/keys"))
DOCKER = Surroundings(container="Docker", filtered=True, apparmor="docker-default (enforce)")
UBUNTU = Surroundings(forbidding=frozenset({"kernel.apparmor_restrict_unprivileged_userns"}))


def test_the_cause_and_the_first_way_out() -> None:
    cases: list[tuple[StepName, int, Surroundings, str, str]] = [
        ("user namespace", errno.EPERM, DOCKER, "Docker's default", "systempaths=unconfined --security-opt apparmor=unconf"),
        ("identity", errno.EPERM, PODMAN, "podman's default", "podman run --security-opt seccomp=deploy/seccomp.json"),
        ("process", errno.ENOSYS, PODMAN, "podman's default", "podman run"),
        ("proc", errno.EPERM, PODMAN, r"masks parts of /proc \(/proc/acpi, /proc/keys\)", "unmask=ALL"),
        ("proc", errno.EPERM, Surroundings(), "masks or hides parts of /proc", "systempaths=unconfined"),
        ("confinement", errno.EBUSY, Surroundings(), "handles system calls by its own filter", "incus config unset"),
        ("user namespace", errno.EPERM, Surroundings(container="Kubernetes", filtered=True), "Kubernetes's", "procMount"),
        ("user namespace", errno.EACCES, UBUNTU, r"AppArmor .* Ubuntu", r"apparmor_parser -r /etc/apparmor.d/cellblock"),
        ("shared mounts", errno.EPERM, UBUNTU, r"AppArmor .* Ubuntu", r"userns, }"),
        (
            "user namespace",
            errno.EPERM,
            Surroundings(forbidding=frozenset({"kernel.unprivileged_userns_clone"})),
            "forbids user namespaces to ordinary users",
            "unprivileged_userns_clone=1",
        ),
        (
            "user namespace",
            errno.ENOSPC,
            Surroundings(forbidding=frozenset({"user.max_user_namespaces"})),
            "user.max_user_namespaces is 0",
            r"sysctl -w user.max_user_namespaces=10000",
        ),
        ("user namespace", errno.ENOSPC, Surroundings(), "as many namespaces as", "user.max_user_namespaces=10000"),
        ("user namespace", errno.EUSERS, Surroundings(), "32 levels", "sandbox=False"),
        ("user namespace", errno.EPERM, Surroundings(chroot=True), "This is a chroot", "bwrap --bind"),
        ("user namespace", errno.EPERM, Surroundings(chroot=True, container="Docker"), "This is a chroot", "bwrap --bind"),
        ("user namespace", errno.EPERM, Surroundings(), "probably a chroot", "bwrap --bind"),
        ("python", errno.ENOENT, Surroundings(proc=False), "/proc is not mounted", "mount -t proc proc /proc"),
        ("user namespace", errno.ENOENT, Surroundings(proc=False), "/proc is not mounted", "mount -t proc proc /proc"),
        ("user namespace", errno.EINVAL, Surroundings(platform="gVisor"), "gVisor", "--runtime=runc"),
        ("user namespace", errno.EINVAL, Surroundings(platform="WSL 1"), "WSL 1", "wsl --set-version"),
        ("user namespace", errno.ENOSYS, Surroundings(kernel=(5, 4)), r"Linux 5\.4 is too old", "uname -r"),
        ("user namespace", errno.ENOSYS, Surroundings(), "lacks a system call", "uname -r"),
        ("worker", errno.EINVAL, Surroundings(open_files=64), "limit of 64 open files", r"prlimit --pid \$\$ --nofile"),
        ("shared mounts", errno.EMFILE, Surroundings(open_files=20), "limit of 20 open files", "nofile"),
        ("process", errno.ETOOMANYREFS, Surroundings(open_files=20), "limit of 20 open files", "nofile"),
        ("process", errno.ENFILE, Surroundings(), "whole machine", "fs.file-max"),
        ("worker", errno.EAGAIN, Surroundings(processes=5), "limit of 5 on processes", r"prlimit --pid \$\$ --nproc"),
        ("worker", errno.EAGAIN, Surroundings(processes=5, container="podman"), "limit of 5", "podman run --ulimit nproc"),
        (
            "process",
            errno.EAGAIN,
            Surroundings(group_processes=9, container="Docker"),
            "limit of 9",
            "docker run --pids-limit",
        ),
        ("process", errno.ENOMEM, Surroundings(), "no memory", "free"),
        (
            "shared mounts",
            errno.EACCES,
            Surroundings(root=True, container="Docker"),
            "A directory that leads to /root/py cannot be entered .* root has no more rights",
            "namei -l /root/py",
        ),
        ("files", errno.ENOENT, Surroundings(), "a path that the policy names", "cellblock policy show"),
        ("files", errno.EPERM, Surroundings(), "not known", "docker run"),
        ("cell", 0, Surroundings(), "not known", "doctor --json"),
    ]
    for step, code, around, why, line in cases:
        said = "cannot open /root/py: openat2: Permission denied" if code == errno.EACCES and around.root else "it said so"
        cause = find_cause(Failure(step, code, said), around)
        assert re.search(why, cause.why)
        assert re.search(line, cause.ways[0].line)


@pytest.mark.parametrize("step", STEPS)
def test_there_is_always_a_way_out_in_one_line(step: StepName) -> None:
    cases = itertools.product([0, *errno.errorcode], (Surroundings(), PODMAN, DOCKER, UBUNTU))
    for code, around in cases:
        cause = find_cause(Failure(step, code, "it said so"), around)
        assert cause.why
        assert 1 <= len(cause.ways) <= 4
        assert all(way.what and way.line and "\n" not in way.line for way in cause.ways)


def test_the_weaker_proc_is_named_only_if_proc_is_the_trouble() -> None:
    named = [step for step in STEPS if "enableWeakerNestedSandbox" in tell("no", Failure(step, errno.EPERM, "no"), PODMAN)]
    assert named == ["proc"]


def test_landlock_is_a_way_out_where_it_works() -> None:
    for around in (PODMAN, UBUNTU):
        failure = Failure("user namespace", errno.EPERM, "no")
        assert "landlock" not in tell("no", failure, around)
        ways = find_cause(failure, replace(around, landlock=True)).ways
        (way,) = [way for way in ways if "landlock" in way.line]
        assert "which guarantees less: no network, and protected names" in way.what


def test_the_message_of_an_error_tells_step_cause_ways_and_who_says_more() -> None:
    told = tell("the sandbox cannot be made", Failure("proc", errno.EPERM, "fsmount: Operation not permitted"), PODMAN)
    assert told == (
        "the sandbox cannot be made: it failed to mount /proc (fsmount: Operation not permitted). This container masks parts "
        "of /proc (/proc/acpi, /proc/keys), so the kernel forbids mounting a new one. Solutions: podman run "
        '--security-opt seccomp=deploy/seccomp.json --security-opt unmask=ALL IMAGE; or "enableWeakerNestedSandbox": true in '
        "sandbox_config, or Policy(weaker_proc=True). 'cellblock doctor' says more"
    )
