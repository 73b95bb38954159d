"""What a sandbox is made of, as data: worked out on the trusted side, built by a session's init, applied by its worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from cellblock.wire.record import record


@record
class Bind:
    """Show a file or directory of the host; ``optional``: if it exists."""

    kind: ClassVar[str] = "bind"
    source: str
    target: str
    access: Literal["ro", "rw", "dev"]
    """``dev`` is for devices: read-only like ``ro``, but with devices in it."""
    optional: bool = False


@record
class Graft:
    """Take over a part of the tree that all sessions of one interpreter share."""

    kind: ClassVar[str] = "graft"
    target: str


@record
class Tmpfs:
    """Make a file system in memory of at most ``size`` bytes."""

    kind: ClassVar[str] = "tmpfs"
    target: str
    size: int
    mode: int


@record
class Devpts:
    """Make a file system of pseudo-terminals."""

    kind: ClassVar[str] = "devpts"
    target: str


@record
class Proc:
    """Make a proc file system of the session's own processes."""

    kind: ClassVar[str] = "proc"
    target: str


@record
class Directory:
    """Make a directory."""

    kind: ClassVar[str] = "directory"
    target: str


@record
class Link:
    """Make a symbolic link."""

    kind: ClassVar[str] = "link"
    target: str
    value: str


@record
class File:
    """Make a file with this content."""

    kind: ClassVar[str] = "file"
    target: str
    content: str
    mode: int = 0o644


@record
class ReadOnly:
    """Make what lies there read-only, if it exists."""

    kind: ClassVar[str] = "read_only"
    target: str


@record
class Seal:
    """Make a file system read-only, but not what is mounted in it."""

    kind: ClassVar[str] = "seal"
    target: str


@record
class Protect:
    """Keep what lies at a path below the writable directory ``top`` from being changed, moved or replaced."""

    kind: ClassVar[str] = "protect"
    top: str
    target: str


@record
class Mask:
    """Hide what lies there, except what is bound in it.

    A link is followed. If it lies in the writable directory ``top``, that is only within this directory.
    """

    kind: ClassVar[str] = "mask"
    target: str
    top: str | None = None


@record
class Sysctl:
    """Change a setting of the kernel that each namespace has for itself since a version of Linux: ``major``, ``minor``.

    An ``optional`` one is not there in every kernel.
    """

    kind: ClassVar[str] = "sysctl"
    name: str
    value: str
    major: int
    minor: int
    optional: bool = False


Step: TypeAlias = Bind | Graft | Tmpfs | Devpts | Proc | Directory | Link | File | ReadOnly | Seal | Protect | Mask | Sysctl
"""One step in building a session's file system. What each does is in `cellblock.walls.sandbox.mounts`."""


@record
class Restrictions:
    """What a process puts on itself.

    Attributes:
        limits: Resource limits, by their names without ``RLIMIT_``.
        nice: How far it stands back for other processes.
        seccomp: The filter for system calls, a BPF program in base64.
    """

    limits: Mapping[str, int]
    nice: int
    seccomp: str


@record
class Allow:
    """Let a process use what lies at a path and below, in a sandbox made of Landlock; ``optional``: if it exists."""

    path: str
    access: Literal["read", "write", "device"]
    """``device`` is for a file that is read and written, and neither removed nor replaced."""
    optional: bool = False


@record
class Plan:
    """What to do for one session.

    Attributes:
        everything: Whether the tree is the host's, read-only, instead of one of the session's own.
        home: The session's home directory.
        steps: The steps for the file system, in order.
        reserve: Names below each writable directory that must not come to be if they do not exist.
        restrictions: What the worker and every program in the sandbox put on themselves.
        weaker_proc: Whether the /proc that is around the sandbox may be shown in it, read-only, if it cannot have its own.
    """

    everything: bool
    home: str
    steps: tuple[Step, ...]
    reserve: Mapping[str, tuple[str, ...]]
    restrictions: Restrictions
    weaker_proc: bool = False


@record
class Confinement:
    """What a process applies to itself before it runs anything.

    Attributes:
        root: Device and inode of the root directory that it must have.
        restrictions: What it puts on itself.
        programs: Whether it and its children may execute programs.
        allowed: All that it may use of the file system, in a sandbox made of Landlock. None: another sandbox.
        landlock: The version of Landlock that such a sandbox is made for.
    """

    root: tuple[int, int]
    restrictions: Restrictions
    programs: bool = True
    allowed: tuple[Allow, ...] | None = None
    landlock: int = 0
