"""Computes the steps that enforce a policy on this machine, from facts alone.

Steps are plain data, which can be shown to people. The trusted side computes them and sends them to the session's init, which
executes them in order before any code runs.
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from cellblock.errors import InvalidInputError
from cellblock.walls.linux import seccomp
from cellblock.walls.sandbox.paths import is_inside, topmost
from cellblock.walls.sandbox.policy import ENV, MAKEABLE, SECRET, Filesystem, Policy, Resources
from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.sandbox import (
    Bind,
    Devpts,
    Directory,
    File,
    Graft,
    Link,
    Mask,
    Plan,
    Proc,
    Protect,
    ReadOnly,
    Restrictions,
    Seal,
    Step,
    Sysctl,
    Tmpfs,
)

HOME = "/home/user"
BASE = "/dev/shm"
"""Where a zygote mounts what its sessions share: it exists on every system."""
ENVIRONMENT_PLACE = f"{BASE}/.environment"
"""The path of an environment of packages, in a session and in a zygote. A zygote cannot mount anything in the host's /tmp."""
USER = 1000
HOSTNAME = "cellblock"
EGRESS_PORT = 3128
"""The port of a session's proxy, on its own loopback interface."""

# If all of the host's directories are visible, read-only, no other directory can be created among them.
_HOME_IN_TMP = "/tmp/home"

_MASKS = "/.masks"
BLANK, EMPTY = f"{_MASKS}/blank", f"{_MASKS}/empty"
STAGE = "/.stage"
"""Where a session's tree is put together, in the zygote's tree."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READABLE_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")

# /proc is complete, because numeric libraries read many parts of it. With a root host, writes to these would have effects.
_PROC_READ_ONLY = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/mtrr", "/proc/pressure")
_PROC_MASKED = (
    "/proc/acpi",
    "/proc/allocinfo",
    "/proc/asound",
    "/proc/dynamic_debug",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/lock_stat",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
)
PROC_OF_ROOT = ("/proc/sys", *_PROC_READ_ONLY, *_PROC_MASKED)
"""Parts of /proc that let their owner, root, change the kernel without any capability."""
# Uncounted kernel memory: watches of a kilobyte each, instances with thousands of events.
_FIRST_PID = 300
_INOTIFY = (("instances", 16), ("watches", 16384))
_SYSTEM = ("/dev", "/proc", "/sys", "/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc")
_TAKEN = ("/", "/tmp", "/run", "/var", "/home", HOME, *_SYSTEM)


def base_steps(facts: Facts, interpreter: Iterable[str]) -> list[Step]:
    """Return the steps for the common part of all sessions of one interpreter. The zygote executes them once.

    Args:
        facts: Facts about this machine.
        interpreter: The directories of the interpreter and its packages, absolute and without symbolic links.
    """
    system = [path for path, target in facts.system if target is None]
    needed = [path for path in topmost(interpreter) if not any(is_inside(path, other) for other in system)]
    steps: list[Step] = [Bind(path, path, "ro") for path in (*system, *needed)]
    steps += [
        Directory(STAGE),
        # The material for masks: empty and inaccessible.
        Tmpfs(_MASKS, 64 * 1024, 0o755),
        File(BLANK, "", 0),
        Tmpfs(EMPTY, 64 * 1024, 0),
        Seal(EMPTY),
        Seal(_MASKS),
        Tmpfs("/etc", 1024 * 1024, 0o755),
        *(Bind(real, path, "ro") for path, real in facts.etc),
        *(File(path, content) for path, content in _files()),
        Seal("/etc"),
        *system_tree(),
        *device_tree(),
    ]
    return steps


def environment_steps(environment: str) -> list[Step]:
    """Return the steps for a trusted environment in a zygote's tree, at `ENVIRONMENT_PLACE`.

    Args:
        environment: Its directory; empty for none.
    """
    return [Bind(environment, ENVIRONMENT_PLACE.removeprefix(BASE), "ro")] if environment else []


def system_tree(more: Iterable[Step] = ()) -> list[Step]:
    """Return the steps for ``/sys``.

    Args:
        more: Further steps in it.
    """
    parts = (Bind(path, path, "ro", optional=True) for path in _READABLE_SYS)
    return [Tmpfs("/sys", 64 * 1024, 0o755), *parts, *more, Seal("/sys")]


def device_tree(more: Iterable[Step] = ()) -> list[Step]:
    """Return the steps for ``/dev``, without what is each session's own.

    Args:
        more: Further steps in it.
    """
    return [
        Tmpfs("/dev", 64 * 1024, 0o755),
        *(Bind(f"/dev/{name}", f"/dev/{name}", "dev") for name in _DEVICES),
        *(Link(f"/dev/{name}", f"/proc/self/fd{tail}") for name, tail in _DEVICE_LINKS),
        Link("/dev/ptmx", "pts/ptmx"),
        Directory("/dev/pts"),
        Directory("/dev/shm"),
        *more,
        Seal("/dev"),
    ]


def own_devices(size: int) -> list[Step]:
    """Return the steps for each session's own parts of ``/dev``.

    Args:
        size: Size of its shared memory, in bytes.
    """
    return [Tmpfs("/dev/shm", size, 0o1777), Devpts("/dev/pts")]


def grafts(steps: list[Step]) -> list[str]:
    """Return the parts of a base's tree that a session takes over, each with all mounts in it."""
    places: list[str] = []
    for step in steps:
        if isinstance(step, Bind | Tmpfs) and not any(is_inside(step.target, place) for place in (_MASKS, *places)):
            places.append(step.target)
    return places


def check_workspace(workspace: str) -> None:
    """Check that a directory can be a workspace.

    Raises:
        InvalidInputError: It belongs to the system, or is private in every session.
    """
    if workspace in _TAKEN or any(is_inside(workspace, path) for path in _SYSTEM):
        raise InvalidInputError(
            f"a sandbox cannot have {workspace} as its workspace: name a directory of your own (working_dir=, or --workspace; "
            "for an MCP server: cwd, or allowWrite)"
        )


def check_unnamed_workspace(workspace: str, home: str) -> None:
    """Check that an implicit workspace, the program's current directory, is acceptable.

    Args:
        workspace: The directory.
        home: The user's home directory.

    Raises:
        InvalidInputError: It cannot be a workspace, or contains the whole home directory.
    """
    check_workspace(workspace)
    if is_inside(home, workspace) or is_inside(os.path.realpath(home), workspace):
        raise InvalidInputError(
            f"{workspace}, where this program runs, contains your home directory, and a session can read and change its "
            "whole workspace: change to the directory of a project, or name one (working_dir=, or --workspace)"
        )


@functools.lru_cache(maxsize=256)
def make_plan(policy: Policy, facts: Facts, workspace: str | None, interpreter: tuple[str, ...]) -> Plan:
    """Return the plan for one session, cached for later sessions with the same arguments.

    Args:
        policy: The policy.
        facts: Facts about this machine.
        workspace: The directory that ``.`` stands for, absolute and without symbolic links. None: the home directory in the
            sandbox.
        interpreter: As for `base_steps`.

    Raises:
        InvalidInputError: The workspace is not acceptable.
    """
    if workspace is None:
        workspace, files = HOME, policy.filesystem
        policy = replace(policy, filesystem=replace(files, write=tuple(path for path in files.write if path != ".")))
    else:
        check_workspace(workspace)
    everything, named = policy.filesystem.everything, policy.filesystem.home_is_workspace
    resources = policy.resources
    mounts = _mounts(policy, facts, workspace, interpreter)
    if named and (everything or any(is_inside(path, HOME) for path in (*interpreter, *(step.target for step in mounts)))):
        raise InvalidInputError(
            f"home_is_workspace makes {HOME} a name of the workspace, and this sandbox already uses that path: "
            "its policy shows all of the file system, or the workspace, the interpreter or a path of the policy is below it"
        )
    # If something is mounted in /proc or on it, the seals of /proc must be on top.
    again = any(is_inside(step.target, "/proc") for step in mounts)
    return Plan(
        everything=everything,
        home=_HOME_IN_TMP if everything or named else HOME,
        steps=(
            *_own(facts, resources.tmp, interpreter, everything, _HOME_IN_TMP if everything or named else HOME),
            *([Link(HOME, workspace)] if named else []),
            *_proc(),
            # Settings, before they are sealed. Since Linux 6.14 each pid namespace has its own highest pid, which also applies
            # to root, unlike RLIMIT_NPROC. Linux never reuses a pid below 300: all sessions start there.
            Sysctl("kernel/pid_max", str(resources.processes + _FIRST_PID), 6, 14),
            Sysctl("kernel/ns_last_pid", str(_FIRST_PID - 1), 6, 14, optional=True),
            *(Sysctl(f"user/max_inotify_{name}", str(most), 5, 12) for name, most in _INOTIFY),
            ReadOnly("/proc/sys"),
            *mounts,
            *((*_proc(), ReadOnly("/proc/sys")) if again else ()),
        ),
        reserve=_reserved(policy, facts, workspace),
        restrictions=restrictions(policy, facts),
        weaker_proc=policy.weaker_proc,
    )


def restrictions(policy: Policy, facts: Facts) -> Restrictions:
    """Return what each process of a session applies to itself.

    Args:
        policy: The policy.
        facts: Facts about this machine.
    """
    unix_sockets = policy.unix_sockets or not policy.filesystem.everything
    return restrictions_with(seccomp.program(facts.machine, unix_sockets=unix_sockets), policy.resources)


def restrictions_with(filtered: bytes, resources: Resources) -> Restrictions:
    """Return limits together with a system-call filter.

    Args:
        filtered: The filter.
        resources: The resources of a session.
    """
    return Restrictions(
        limits=_limits(resources),
        # The scheduler's own scale of weights; a session cannot undo a nice value.
        nice=round(19 * (100 - resources.cpu) / 100),
        seccomp=base64.b64encode(filtered).decode("ascii"),
    )


def _limits(resources: Resources) -> dict[str, int]:
    return {
        "NOFILE": resources.open_files,
        "FSIZE": resources.file_size,
        "DATA": resources.memory,
        "NPROC": resources.processes,
        "CORE": 0,
        "MEMLOCK": 8 * 1024 * 1024,
        "MSGQUEUE": 128 * 1024,  # room for a queue of the usual size
        "SIGPENDING": 4096,  # timers use queued signals
    }


def usual_beginning(facts: Facts, interpreter: tuple[str, ...]) -> tuple[Step, ...]:
    """Return the first steps of a plan for an ordinary policy. They need no workspace.

    All of them affect only the tree, so nothing of them remains if another tree is built instead.
    """
    return (*_own(facts, Policy().resources.tmp, interpreter, everything=False, home=HOME), *_proc())


@functools.lru_cache(maxsize=16)
def _own(facts: Facts, size: int, interpreter: tuple[str, ...], everything: bool, home: str) -> tuple[Step, ...]:
    """Return the steps for private mounts of every session: the same for all workspaces, so computed once."""
    steps: list[Step] = [
        Tmpfs("/tmp", size, 0o1777),  # the session's own; first, because the interpreter may be in it
        Tmpfs(home, size, 0o755),
    ]
    if everything:
        # Sockets of the host's services are here; a read-only mount does not prevent connecting.
        steps += [Tmpfs("/run", 64 * 1024, 0o755), Graft("/dev")]
    else:
        steps += [Graft(place) for place in grafts(base_steps(facts, interpreter))]
        steps += [Link(path, target) for path, target in facts.system if target is not None]
    return (
        *steps,
        *own_devices(size),
        Proc("/proc"),
    )


_Placed: TypeAlias = Bind | Mask | ReadOnly | Protect


def _mounts(policy: Policy, facts: Facts, workspace: str, interpreter: tuple[str, ...]) -> list[_Placed]:
    """Return the steps for the paths in the policy: parents before their contents."""
    mounts: dict[str, list[_Placed]] = {}

    def add(path: str, step: _Placed) -> None:
        mounts.setdefault(path, []).append(step)

    writable = resolve_paths(policy.filesystem.write, workspace, facts)
    own = () if workspace == HOME else (workspace,)
    for path in (*own, *resolve_paths(policy.filesystem.read, workspace, facts)):
        if path != "/" and not any(is_inside(path, top) for top in writable):
            add(path, Bind(path, path, "ro"))
    for pattern, path in zip(policy.filesystem.write, writable, strict=True):
        check_workspace(path)
        # Home directories differ between machines, and one policy serves many.
        add(path, Bind(path, path, "rw", optional=pattern.startswith("~/")))
    masked = masked_paths(policy.filesystem, workspace, facts)
    for path in masked:
        add(path, Mask(path, max((top for top in writable if path != top and is_inside(path, top)), key=len, default=None)))
    # An interpreter in a denied home directory, or in a private directory, is needed anyway.
    hidden = [*masked, *(("/tmp", "/run") if policy.filesystem.everything else ())]
    for path in interpreter:
        if path not in masked and any(is_inside(path, above) for above in hidden):
            add(path, Bind(path, path, "ro"))
    # These override writable paths: even a project's own virtual environment must not be changed by the session.
    kept = denied_paths(policy.filesystem.deny_write, policy.filesystem.write, facts, workspace)
    denied = [*interpreter, *kept]
    # Including paths in denied ones: a denial wins, however long the allowed path is.
    unwritable = {top for top in writable if top in denied or any(is_inside(top, path) for path in kept)}
    protect = {(top, path) for top in writable for path in denied if path != top and is_inside(path, top)}
    return [
        *(step for path in _by_depth(mounts) for step in mounts[path]),
        *(ReadOnly(path) for path in _by_depth(unwritable)),
        *(Protect(top, path) for top, path in sorted(protect, key=lambda item: (item[1].count("/"), item))),
    ]


def denied_paths(patterns: Iterable[str], write: Iterable[str], facts: Facts, workspace: str) -> list[str]:
    """Return the paths that cannot be written. A relative pattern applies in every writable directory.

    Args:
        patterns: The patterns.
        write: The patterns of writable paths.
        facts: Facts about this machine.
        workspace: The directory that ``.`` stands for.
    """
    patterns = [*patterns]
    denied = resolve_paths(patterns, workspace, facts, absolute_only=True)
    for top in dict.fromkeys((workspace, *resolve_paths(write, workspace, facts))):
        denied += [os.path.normpath(os.path.join(top, name)) for name in patterns if name[0] not in "/~"]
    return denied


def masked_paths(files: Filesystem, workspace: str, facts: Facts) -> list[str]:
    """Return the paths that cannot be read.

    The usual names of secrets are masked at the top of every visible directory: in the workspace, in each directory that the
    policy names, and in the home directory. A secret that the policy itself names there stays visible.

    Args:
        files: The files that the session can see and change.
        workspace: The directory that ``.`` stands for.
        facts: Facts about this machine.
    """
    shown = resolve_paths((*files.read, *files.write), workspace, facts)
    named = [path for path in shown if path not in ("/", workspace)]
    all_of_home = files.everything or any(is_inside(facts.home, path) for path in named)
    tops = [*named, *([facts.home] if all_of_home else [])]
    secrets = [name for name in files.deny_read if name in SECRET]
    found = [f"{top}/{name}" for top in tops for name in secrets]
    denied = resolve_paths(files.deny_read, workspace, facts)
    return [path for path in dict.fromkeys((*denied, *(path for path in found if path not in named))) if path != "/"]


def writable_places(policy: Policy, facts: Facts, workspace: str) -> list[str]:
    """Return the real paths of the directories that sessions with this workspace and policy can write."""
    return [os.path.realpath(path) for path in (workspace, *resolve_paths(policy.filesystem.write, workspace, facts))]


def _reserved(policy: Policy, facts: Facts, workspace: str) -> dict[str, tuple[str, ...]]:
    """Return the names in each writable directory that must not be created."""
    patterns = [name for name in policy.filesystem.deny_write if name not in MAKEABLE]
    reserved = {}
    for top in dict.fromkeys(resolve_paths(policy.filesystem.write, workspace, facts)):
        denied = dict.fromkeys(denied_paths(patterns, policy.filesystem.write, facts, workspace))
        if ENV in policy.filesystem.deny_read:  # of a person, whether or not it exists
            denied[f"{top}/{ENV}"] = None
        names = tuple(os.path.relpath(path, top) for path in denied if path != top and is_inside(path, top))
        if names:
            reserved[top] = names
    return reserved


def _by_depth(paths: Iterable[str]) -> list[str]:
    return sorted(paths, key=lambda path: (path.count("/"), path))


def _proc() -> list[Step]:
    return [*(Mask(path) for path in _PROC_MASKED), *(ReadOnly(path) for path in _PROC_READ_ONLY)]


_DEVICE_LINKS = (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2"))


def _files() -> list[tuple[str, str]]:
    return [
        ("/etc/passwd", f"user:x:{USER}:{USER}::{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"),
        ("/etc/group", f"user:x:{USER}:\nnogroup:x:65534:\n"),
        ("/etc/hosts", f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"),
        ("/etc/hostname", f"{HOSTNAME}\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
        ("/etc/resolv.conf", ""),
    ]


def resolve_paths(patterns: Iterable[str], workspace: str, facts: Facts, *, absolute_only: bool = False) -> list[str]:
    """Return the absolute paths for the patterns of a policy.

    Args:
        patterns: The patterns.
        workspace: The directory that ``.`` stands for.
        facts: Facts about this machine.
        absolute_only: Whether to skip patterns that are relative to writable directories.
    """
    paths = []
    for pattern in patterns:
        if pattern.startswith("~"):
            path = facts.home + pattern[1:]
        elif pattern.startswith("/"):
            path = pattern
        elif absolute_only:
            continue
        else:
            path = os.path.join(workspace, pattern)
        paths.append("/" + os.path.normpath(path).lstrip("/"))  # POSIX keeps two slashes at the beginning
    return paths
