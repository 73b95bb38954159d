"""What a program runs in is read from files that anybody may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.walls.sandbox.surroundings import look_around


def tree(top: Path, **files: str) -> str:
    """Make files whose paths have two underscores in place of slashes."""
    for name, content in {"proc__self__status": "Name:\tpython\n", **files}.items():
        path = top / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(top)


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    around = look_around(str(tmp_path))
    assert not around.proc
    assert (around.container, around.filtered, around.masked, around.chroot) == ("", False, (), False)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("run__.containerenv", "podman"),
        (".dockerenv", "Docker"),
        ("var__run__secrets__kubernetes.io__serviceaccount__token", "Kubernetes"),
        ("run__systemd__container", "container"),
    ],
)
def test_containers_are_told_apart(tmp_path: Path, file: str, kind: str) -> None:
    assert look_around(tree(tmp_path, **{file: ""})).container == kind


def test_a_container_is_known_by_its_control_group(tmp_path: Path) -> None:
    assert look_around(tree(tmp_path, proc__self__cgroup="0::/kubepods/burstable/x\n")).container == "Kubernetes"


@pytest.mark.parametrize(
    ("version", "platform"),
    [
        ("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", "gVisor"),
        ("Linux version 4.19.0-gvisor (x) #1 SMP", "gVisor"),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", "WSL 1"),
        ("Linux version 5.15.90.1-microsoft-standard-WSL2 (oe-user@oe-host)", ""),
        ("Linux version 6.12.38 (debian-kernel@lists.debian.org)", ""),
    ],
)
def test_what_stands_in_for_linux_is_recognised(tmp_path: Path, version: str, platform: str) -> None:
    assert look_around(tree(tmp_path, proc__version=version)).platform == platform


def test_covered_places_in_proc_are_listed(tmp_path: Path) -> None:
    mounts = "".join(
        f"{number} 1 0:{number} / {point} rw - tmpfs tmpfs rw\n"
        for number, point in enumerate(["/", "/proc", "/proc/keys", "/proc/acpi", "/proc/sys/fs/binfmt_misc"])
    )
    around = look_around(tree(tmp_path, proc__self__mountinfo=mounts))
    assert around.masked == ("/proc/acpi", "/proc/keys")
    assert not around.chroot


def test_a_root_that_is_no_mount_point_is_a_chroot(tmp_path: Path) -> None:
    assert look_around(tree(tmp_path, proc__self__mountinfo="7 1 0:7 / /proc rw - proc proc rw\n")).chroot


def test_filters_profiles_and_settings_are_seen(tmp_path: Path) -> None:
    around = look_around(
        tree(
            tmp_path,
            proc__self__status="Name:\tpython\nSeccomp:\t2\n",
            proc__self__attr__current="docker-default (enforce)\n",
            proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
            proc__sys__user__max_user_namespaces="63432\n",
            proc__sys__user__max_net_namespaces="0\n",
        )
    )
    assert around.filtered
    assert around.apparmor == "docker-default (enforce)"
    assert around.forbidding == {"kernel.apparmor_restrict_unprivileged_userns", "user.max_net_namespaces"}


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/user.slice\n", "sys__fs__cgroup__user.slice__pids.max"),
        ("0::/\n", "sys__fs__cgroup__pids.max"),
        ("8:pids:/docker/x\n", "sys__fs__cgroup__pids__pids.max"),
    ],
)
def test_the_limit_of_the_control_group_is_read(tmp_path: Path, groups: str, file: str) -> None:
    assert look_around(tree(tmp_path, proc__self__cgroup=groups, **{file: "100\n"})).group_processes == 100


def test_this_machine_has_proc() -> None:
    assert look_around().proc
