"""Translates a policy to a Landlock sandbox, and rejects what Landlock cannot enforce.

Landlock only grants permissions, each for a path and everything in it. A denied path in an allowed directory becomes
permissions for everything around it. That is impossible in a directory that the session can write, because new files would
have no permission: such a policy is rejected.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cellblock.errors import InvalidInputError
from cellblock.walls.linux import landlock, seccomp, undivided
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import denied_paths, masked_paths, resolve_paths, restrictions_with
from cellblock.walls.sandbox.policy import PROTECTED, Policy
from cellblock.walls.sandbox.probe import Facts, interpreter_directories, look
from cellblock.wire.sandbox import Allow, Bind, Confinement, Restrictions, Step

_MOST = 5000

# Programs look up their user, and the name of this machine's loopback address.
_ETC = ("/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd")
_DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_READABLE = (
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *(f"/proc/{name}" for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version")),
)
_NOT_THE_SYSTEMS = ("/dev", "/proc", "/run", "/sys", "/tmp")
"""Not readable even if everything is: devices, other processes, sockets, other programs' temporary files."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The common part of all sandboxes of one zygote.

    Attributes:
        facts: Facts about this machine.
        interpreter: The directories of the interpreter and its packages.
        filter: The system-call filter.
    """

    facts: Facts
    interpreter: tuple[str, ...]
    filter: bytes


@functools.cache
def surroundings(found: int) -> Surroundings:
    """Compute the common part, once for all sessions of a zygote.

    Args:
        found: The version of Landlock for the sandboxes.
    """
    facts = look()
    program = seccomp.program(facts.machine, unix_sockets=False, instead=undivided.instead(found))
    return Surroundings(facts, interpreter_directories(), program)


_prepared = 0
"""The version of Landlock for the sandboxes of this process's forks; 0: they do not use Landlock."""


def prepare() -> None:
    """Compute the common part of all sessions, as a zygote, so that they inherit it."""
    global _prepared
    _prepared = landlock.version()
    surroundings(_prepared)


def example() -> Confinement | None:
    """Return the confinement of a hypothetical session; None in a process without Landlock sandboxes.

    Computing it touches the same memory as for a real session. In a fork, that copies pages, best before anything waits.
    """
    if not _prepared:
        return None
    return confinement(Policy.from_dict(Policy().to_dict()), "/nowhere", (0, 0), _prepared)


def confinement(policy: Policy, workspace: str, root: tuple[int, int], found: int, binds: Iterable[Step] = ()) -> Confinement:
    """Return what each process of a session applies to itself.

    Args:
        policy: The policy.
        workspace: The directory that ``.`` stands for, absolute and without symbolic links.
        root: The identity of the root directory.
        found: The version of Landlock to use.
        binds: More paths of the session: their sources are allowed at their original paths.

    Raises:
        InvalidInputError: Landlock cannot enforce the policy.
    """
    around = surroundings(found)
    own = [
        Allow(step.source, "write" if step.access == "rw" else "read", step.optional)
        for step in binds
        if isinstance(step, Bind)
    ]
    allowed = (*rules(policy, around.facts, workspace, around.interpreter), *own)
    return Confinement(root, _restrictions(policy, around), allowed=allowed, landlock=found)


def writable(confinement: Confinement) -> list[str]:
    """Return the directories that a session can write."""
    return [item.path for item in confinement.allowed or () if item.access == "write"]


def rules(policy: Policy, facts: Facts, workspace: str, interpreter: tuple[str, ...]) -> tuple[Allow, ...]:
    """Return the permitted parts of the file system, except the session's own.

    Args:
        policy: The policy.
        facts: Facts about this machine.
        workspace: The directory that ``.`` stands for.
        interpreter: The directories of the interpreter and its packages, absolute and without symbolic links.

    Raises:
        InvalidInputError: Landlock cannot enforce the policy.
    """
    files = policy.filesystem
    tops = resolve_paths(files.write, workspace, facts)
    there = [
        path for path in masked_paths(files, workspace, facts) if os.path.lexists(path)
    ]  # most do not exist, so nothing needs protection
    denied = tuple(dict.fromkeys((*there, *map(os.path.realpath, there))))
    _check_writable(policy, facts, workspace, tops, denied, interpreter)
    system = [path for path, target in facts.system if target is None]
    etc = [real for _, real in facts.etc]
    asked = ["/"] if files.everything else []
    asked += [path for path in (workspace, *resolve_paths(files.read, workspace, facts)) if path != "/"]
    read = [path for top in asked for path in _around(top, (*denied, *_NOT_THE_SYSTEMS) if top == "/" else denied)]
    read += [path for top in system for path in _around(top, denied)]
    found = [Allow(path, "read") for path in dict.fromkeys((*read, *interpreter))]
    found += [Allow(path, "read", optional=True) for path in (*etc, *_ETC, *_READABLE) if path not in denied]
    found += [Allow(path, "device", optional=True) for path in _DEVICES]
    found += [Allow(top, "write", optional=pattern.startswith("~/")) for pattern, top in zip(files.write, tops, strict=True)]
    if len(found) > _MOST:
        raise InvalidInputError(
            f"Landlock would need {len(found)} rules to allow everything around what deny_read names, and the limit is "
            f"{_MOST}: name the paths that may be read instead"
        )
    return tuple(found)


def _check_writable(
    policy: Policy, facts: Facts, workspace: str, tops: Sequence[str], denied: Sequence[str], interpreter: Sequence[str]
) -> None:
    """Check that writable directories contain nothing that the session must not read, or that the host runs."""
    for path in denied:
        _check_apart(tops, path, "deny_read names it, and it exists: move it elsewhere, or remove it from deny_read")
    for path in interpreter:
        _check_apart(tops, path, "this program or its kernels run files from there: give the session another working_dir")
        for top in tops:
            if is_inside(top, path):
                raise InvalidInputError(f"Landlock cannot let a session write {top}: it is part of the interpreter in {path}")
    own = [name for name in policy.filesystem.deny_write if name not in PROTECTED]
    for path in denied_paths(own, policy.filesystem.write, facts, workspace):
        _check_apart(tops, path, "deny_write names it: remove it from deny_write, or from the writable paths")


def _check_apart(tops: Sequence[str], path: str, why: str) -> None:
    for top in tops:
        if is_inside(path, top):
            raise InvalidInputError(f"Landlock cannot protect {path} from a session that writes {top}, and {why}")


def _around(top: str, denied: Sequence[str]) -> Iterator[str]:
    """Yield `top` and its contents, without denied paths. A directory with a denied part is split."""
    if top in denied:
        return
    inner = [path for path in denied if is_inside(path, top)]
    if not inner:
        yield top
        return
    for name in sorted(os.listdir(top)):
        path = os.path.join(top, name)
        if not os.path.islink(path):  # its target is subject to other rules
            yield from _around(path, inner)


def _restrictions(policy: Policy, around: Surroundings) -> Restrictions:
    """Return limits and filter. The process limit is per user, who may already run an unknown number of others."""
    found = restrictions_with(around.filter, policy.resources)
    return replace(found, limits={**found.limits, "NPROC": found.limits["NPROC"] + _tasks()})


def _tasks() -> int:
    """Return the number of processes and threads of this machine."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[3].partition(b"/")[2])
    except (OSError, ValueError, IndexError):
        return 0
