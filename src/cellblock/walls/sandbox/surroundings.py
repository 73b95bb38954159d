"""The parts of this program's environment that can prevent a sandbox, examined only after a failure.

Every fact comes from a world-readable file. A missing or unreadable file gives no information.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from typing import Literal

from cellblock.walls.linux import landlock

FORBIDDING = {
    "kernel.apparmor_restrict_unprivileged_userns": "1",
    "kernel.unprivileged_userns_clone": "0",
    "user.max_user_namespaces": "0",
    "user.max_mnt_namespaces": "0",
    "user.max_pid_namespaces": "0",
    "user.max_net_namespaces": "0",
    "user.max_ipc_namespaces": "0",
    "user.max_uts_namespaces": "0",
    "user.max_cgroup_namespaces": "0",
}
"""Kernel settings, each with the value that forbids namespaces to an ordinary user."""

NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of this program.

    Attributes:
        kernel: The kernel's major and minor version.
        platform: The replacement for a real Linux kernel, "gVisor" or "WSL 1"; "" if missing.
        container: The kind of container; "container" if unknown, "" if missing.
        filtered: Whether a system-call filter (seccomp) applies to this process.
        apparmor: The AppArmor profile that confines this process.
        forbidding: The settings of `FORBIDDING` with the forbidding value.
        chroot: Whether the root directory is not a mount point, as after chroot.
        proc: Whether /proc is mounted.
        masked: Paths in /proc that other mounts cover.
        open_files: Maximum number of open files of this process.
        processes: Maximum number of processes of this user.
        group_processes: Maximum number of processes of this control group.
        root: Whether this process runs as root.
        landlock: Whether ``isolate="landlock"`` works here.
    """

    kernel: tuple[int, int] = (6, 0)
    platform: Literal["", "gVisor", "WSL 1"] = ""
    container: str = ""
    filtered: bool = False
    apparmor: str = ""
    forbidding: frozenset[str] = frozenset()
    chroot: bool = False
    proc: bool = True
    masked: tuple[str, ...] = ()
    open_files: int = NO_LIMIT
    processes: int = NO_LIMIT
    group_processes: int = NO_LIMIT
    root: bool = False
    landlock: bool = False


def look_around(top: str = "") -> Surroundings:
    """Return the environment of this program.

    Args:
        top: Prefix of the paths of all files that are read.
    """
    mounts = [point for line in _lines(f"{top}/proc/self/mountinfo") if (point := _mount_point(line))]
    status = dict(line.split(":", 1) for line in _lines(f"{top}/proc/self/status") if ":" in line)
    profile = _first(f"{top}/proc/self/attr/apparmor/current") or _first(f"{top}/proc/self/attr/current")
    return Surroundings(
        kernel=_kernel_version(),
        platform=_platform(_first(f"{top}/proc/version")),
        container=_container(top, mounts),
        filtered=status.get("Seccomp", "").strip() == "2",
        apparmor=profile if profile.endswith(")") and not profile.startswith("unconfined") else "",
        forbidding=frozenset(
            name for name, value in FORBIDDING.items() if _first(f"{top}/proc/sys/{name.replace('.', '/')}") == value
        ),
        chroot=bool(mounts) and "/" not in mounts,
        proc=os.path.exists(f"{top}/proc/self/status"),
        masked=tuple(sorted({point for point in mounts if point.startswith("/proc/") and not _is_harmless(point)})),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        group_processes=_group_limit(top),
        root=os.geteuid() == 0,
        landlock=not landlock.missing(),
    )


def _kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _platform(version: str) -> Literal["", "gVisor", "WSL 1"]:
    if "gvisor" in version.lower() or "Sun Jan 10 15:06:54 PST 2016" in version:  # gVisor's fixed date, in every version
        return "gVisor"
    if "Microsoft" in version and "WSL2" not in version:  # WSL 2 writes it in lower case
        return "WSL 1"
    return ""


def _container(top: str, mounts: list[str]) -> str:
    kubernetes = "/run/secrets/kubernetes.io", "/var/run/secrets/kubernetes.io"
    if any(os.path.exists(f"{top}{path}") for path in kubernetes) or any(path.startswith(kubernetes) for path in mounts):
        return "Kubernetes"
    if os.path.exists(f"{top}/run/.containerenv"):
        return "podman"
    if os.path.exists(f"{top}/.dockerenv"):
        return "Docker"
    groups = "\n".join(_lines(f"{top}/proc/self/cgroup"))
    for sign, kind in (("kubepods", "Kubernetes"), ("libpod", "podman"), ("docker", "Docker")):
        if sign in groups:
            return kind
    return "container" if os.path.exists(f"{top}/run/systemd/container") else ""


def _is_harmless(point: str) -> bool:
    """Return whether a mount in /proc is on a directory that is empty on every machine."""
    return point in ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd")


def _group_limit(top: str) -> int:
    """Return the process limit of this process's control group, of either version."""
    for line in _lines(f"{top}/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" or "pids" in controllers.split(","):
            middle = "" if number == "0" else "/pids"
            for place in (path.rstrip("/"), ""):  # in a container our cgroup is the visible root
                if (limit := _first(f"{top}/sys/fs/cgroup{middle}{place}/pids.max")).isdigit():
                    return int(limit)
    return NO_LIMIT


def _mount_point(line: str) -> str:
    parts = line.split(" ")
    return parts[4] if len(parts) > 4 else ""


def _first(path: str) -> str:
    return next(iter(_lines(path)), "").strip().rstrip("\0")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
