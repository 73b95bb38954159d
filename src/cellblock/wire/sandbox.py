"""The description of a sandbox, computed on the trusted side and built by a session's init."""

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
    """Create a file system in memory of at most ``size`` bytes."""

    kind: ClassVar[str] = "tmpfs"
    target: str
    size: int
    mode: int


@record
class Devpts:
    """Create a file system of pseudo-terminals."""

    kind: ClassVar[str] = "devpts"
    target: str


@record
class Proc:
    """Create a proc file system of the session's own processes."""

    kind: ClassVar[str] = "proc"
    target: str


@record
class Directory:
    """Create a directory."""

    kind: ClassVar[str] = "directory"
    target: str


@record
class Link:
    """Create a symbolic link."""

    kind: ClassVar[str] = "link"
    target: str
    value: str


@record
class File:
    """Create a file with this content."""

    kind: ClassVar[str] = "file"
    target: str
    content: str
    mode: int = 0o644


@record
class ReadOnly:
    """Make this path read-only, if it exists."""

    kind: ClassVar[str] = "read_only"
    target: str


@record
class Seal:
    """Make a file system read-only, but not file systems mounted in it."""

    kind: ClassVar[str] = "seal"
    target: str


@record
class Protect:
    """Prevent changes, moves and replacement of a path in the writable directory ``top``."""

    kind: ClassVar[str] = "protect"
    top: str
    target: str


@record
class Mask:
    """Hide a path, except what is bound in it.

    Links are followed; a link in the writable directory ``top``, only within this directory.
    """

    kind: ClassVar[str] = "mask"
    target: str
    top: str | None = None


@record
class Sysctl:
    """Change a setting that is per namespace since a version of Linux: ``major``, ``minor``.

    An ``optional`` setting does not exist in every kernel.
    """

    kind: ClassVar[str] = "sysctl"
    name: str
    value: str
    major: int
    minor: int
    optional: bool = False


Step: TypeAlias = Bind | Graft | Tmpfs | Devpts | Proc | Directory | Link | File | ReadOnly | Seal | Protect | Mask | Sysctl
"""One step in building a session's file system; `cellblock.walls.sandbox.mounts` carries them out."""


@record
class Restrictions:
    """The restrictions that a process applies to itself.

    Attributes:
        limits: Resource limits, by their names without ``RLIMIT_``.
        nice: Its niceness.
        seccomp: The filter for system calls, a BPF program in base64.
    """

    limits: Mapping[str, int]
    nice: int
    seccomp: str


@record
class Allow:
    """Allow the use of a path and everything in it, in a Landlock sandbox; ``optional``: if it exists."""

    path: str
    access: Literal["read", "write", "device"]
    """``device``: a file that may be read and written, but not removed or replaced."""
    optional: bool = False


@record
class Plan:
    """The plan of one session's sandbox.

    Attributes:
        everything: Whether the session sees the host's tree, read-only, instead of its own tree.
        home: The session's home directory.
        steps: The steps for the file system, in order.
        reserve: Names in each writable directory that must not be created if they do not exist.
        restrictions: Restrictions of the worker and every program in the sandbox.
        weaker_proc: Whether the outer /proc may be shown in the sandbox, read-only, if it cannot have its own.
    """

    everything: bool
    home: str
    steps: tuple[Step, ...]
    reserve: Mapping[str, tuple[str, ...]]
    restrictions: Restrictions
    weaker_proc: bool = False


@record
class Confinement:
    """The confinement that a process applies to itself before it runs any code.

    Attributes:
        root: Device and inode of its expected root directory.
        restrictions: Its restrictions.
        programs: Whether it and its children may execute programs.
        allowed: All allowed parts of the file system, in a Landlock sandbox. None: another sandbox.
        landlock: The version of Landlock for such a sandbox.
    """

    root: tuple[int, int]
    restrictions: Restrictions
    programs: bool = True
    allowed: tuple[Allow, ...] | None = None
    landlock: int = 0
