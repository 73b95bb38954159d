"""Executes a plan with the mount API of Linux 5.12 and later, in a zygote and in a session's init. It fails closed.

Standard library only. Everything raises: a sandbox that cannot be enforced does not start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from cellblock.walls.linux import abi
from cellblock.walls.linux.mount_api import (
    READ_ONLY,
    WRITABLE,
    clone_tree,
    move,
    move_onto,
    new_filesystem,
    open_without_links,
    set_attributes,
    set_read_only,
)
from cellblock.walls.linux.syscall import call, umount, write
from cellblock.walls.linux.targets import is_directory, make_file, make_read_only, make_target, mount_new
from cellblock.walls.sandbox.covers import Covers
from cellblock.walls.sandbox.namespaces import kernel_version
from cellblock.walls.sandbox.plan import BASE, PROC_OF_ROOT, STAGE
from cellblock.walls.sandbox.steps import StepError
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
    Seal,
    Step,
    Sysctl,
    Tmpfs,
)

# A session's tree is built here. It hides paths only from these processes.
_STAGE = f"{BASE}{STAGE}"

_DEVICES = abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NOEXEC
_TERMINALS = 64
"""The most terminals of a session. All sandboxes of a machine share some 3,000 (kernel.pty.max less kernel.pty.reserve)."""

_BIND_ATTRIBUTES = {"ro": READ_ONLY, "rw": WRITABLE, "dev": _DEVICES}


def cut_ties() -> None:
    """Isolate this mount namespace from mounts in others."""
    set_attributes(abi.AT_FDCWD, b"/", 0, propagation=abi.MS_PRIVATE)


def cover_interpreter() -> None:
    """Put a read-only mount on the interpreter, as a zygote that is about to be restarted.

    /proc/self/exe of every kernel bypasses the kernel's own mounts, and leads to the mount from which this interpreter was
    started. There the owner of the file could change its mode, and on Linux 6.11 and 6.12 its bytes.
    """
    own = os.path.realpath("/proc/self/exe")
    descriptor = clone_tree(own)
    set_read_only(descriptor)
    move(descriptor, own)


def make_base(steps: Sequence[Step]) -> None:
    """Build the base of trees in our own mount namespace.

    Args:
        steps: From `base_steps`.
    """
    builder = _Builder(steps)
    builder.take_sources()
    move(_new_root(), BASE)
    before = os.getcwd()
    os.chdir(BASE)
    builder.do_steps()
    os.chdir(before)


def prepare(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Build the first steps of most plans in advance, as a session's init that is still a spare.

    Args:
        steps: From `usual_beginning`.

    Returns:
        The steps that `build` can skip: these, or none if one failed. `build` then tries again, and reports the error.
    """
    try:
        builder = _Builder(steps)
        builder.take_sources()
        move(_new_root(), _STAGE)
        os.chdir(_STAGE)
        builder.do_steps()
    except OSError:
        return ()
    finally:
        os.chdir("/")
    return steps


def _new_root() -> int:
    return new_filesystem("tmpfs", {"size": "8m", "mode": "755"}, WRITABLE)


def build(plan: Plan, prepared: tuple[Step, ...]) -> None:
    """Build the session's file system view, and enter it with all processes of the mount namespace.

    Args:
        plan: From `make_plan`.
        prepared: From `prepare`.
    """
    begun = bool(prepared) and not plan.everything and plan.steps[: len(prepared)] == prepared
    if not begun:
        umount(_STAGE, missing_ok=True)  # discard the useless beginning
    builder = _Builder(plan.steps[len(prepared) :] if begun else plan.steps, weaker_proc=plan.weaker_proc)
    builder.take_sources()
    if plan.everything:
        root = clone_tree("/")
        set_read_only(root)
        move(root, _STAGE)
    elif not begun:
        move(_new_root(), _STAGE)
    os.chdir(_STAGE)
    builder.do_steps()
    call("pivot_root", b".", b".")
    _detach_old_root()
    os.chdir("/")
    if not plan.everything:
        _seal_root()


def _detach_old_root() -> None:
    umount(".")


def _seal_root() -> None:
    set_attributes(abi.AT_FDCWD, b"/", abi.MOUNT_ATTR_RDONLY, recursive=False)


def keep_kernel_settings() -> None:
    """Make the root-writable parts of /proc read-only, as root in a sandbox that was not built here.

    Writing there needs no capability, and with ``kernel.core_pattern`` Linux runs a program on the host.

    Raises:
        OSError: It is not possible. No code may run.
    """
    if os.geteuid() != 0:
        return
    for path in PROC_OF_ROOT:
        if not os.path.exists(path) or os.statvfs(path).f_flag & os.ST_RDONLY:
            continue
        descriptor = clone_tree(path)
        set_read_only(descriptor)
        place = open_without_links(path, 0)
        try:
            move_onto(descriptor, place)
        finally:
            os.close(place)


class _Builder:
    """An executor of steps, relative to the current directory, which becomes the root.

    It opens all sources first, because the new tree is built on top of one of them.
    """

    def __init__(self, steps: Sequence[Step], *, weaker_proc: bool = False) -> None:
        self._steps = steps
        self._weaker_proc = weaker_proc
        self._proc_is_ours = True
        self._sources: dict[Step, int] = {}
        self._covers = Covers(steps, self._sources)

    def take_sources(self) -> None:
        for step in self._steps:
            match step:
                case Bind():
                    self._take(step)
                case Graft(target):
                    self._sources[step] = clone_tree(f"{BASE}{target}")
        self._covers.look()

    def _take(self, step: Bind) -> None:
        try:
            descriptor = clone_tree(step.source)
        except OSError as error:
            if step.optional and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                return
            raise OSError(error.errno, f"cannot open {step.source}: {error.strerror}") from error
        set_attributes(descriptor, b"", _BIND_ATTRIBUTES[step.access])
        self._sources[step] = descriptor

    def do_steps(self) -> None:
        for step in self._steps:
            try:
                self._do(step)
            except OSError as error:
                if isinstance(step, Proc):
                    raise StepError("proc", error) from error
                raise OSError(error.errno, f"sandbox step {step}: {error.strerror}") from error

    def _do(self, step: Step) -> None:
        match step:
            case Bind() | Graft():
                self._attach(step)
            case Tmpfs(target, size, mode):
                options = {"size": str(size), "nr_inodes": str(max(size // 4096, 1024)), "mode": f"{mode:o}"}
                mount_new("tmpfs", target, options, WRITABLE)
            case Devpts(target):
                attributes = abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NOEXEC
                mount_new("devpts", target, {"ptmxmode": "666", "mode": "620", "max": str(_TERMINALS)}, attributes)
            case Proc(target):
                self._mount_proc(target)
            case Directory(target):
                make_target(target, directory=True)
            case Link(target, value):
                os.makedirs(os.path.dirname(f".{target}"), exist_ok=True)
                os.symlink(value, f".{target}")
            case File(target, content, mode):
                make_file(target, content, mode)
            case ReadOnly(target):
                make_read_only(target)
            case Seal(target):
                set_attributes(abi.AT_FDCWD, os.fsencode(f".{target}"), abi.MOUNT_ATTR_RDONLY, recursive=False)
            case Protect() | Mask():
                self._covers.cover(step)
            case Sysctl() if not self._proc_is_ours:
                pass  # its settings are read-only, and may be the machine's
            case Sysctl(name, value, major, minor, optional):
                # Older kernels have one for the whole machine, which a host that runs as root would change.
                if kernel_version() >= (major, minor) and not (optional and not os.path.exists(f"./proc/sys/{name}")):
                    write(f"./proc/sys/{name}", value)

    def _attach(self, step: Bind | Graft) -> None:
        descriptor = self._sources.pop(step, None)
        if descriptor is not None:
            make_target(step.target, directory=is_directory(descriptor))
            move(descriptor, f".{step.target}")

    def _mount_proc(self, target: str) -> None:
        try:
            mount_new("proc", target, {}, WRITABLE | abi.MOUNT_ATTR_NOEXEC)
        except PermissionError:
            if not self._weaker_proc:
                raise
            self._proc_is_ours = False
            _show_outer_proc(target)


def _show_outer_proc(target: str) -> None:
    """Show the outer /proc read-only, so that its owner cannot change settings of processes in it."""
    descriptor = clone_tree("/proc")
    set_read_only(descriptor)
    move(descriptor, f".{target}")


def detach(path: str) -> None:
    """Unmount everything at a path and in it, as init at the very end, so that it can be removed."""
    while umount(path, missing_ok=True):
        continue  # there may be another mount under it
