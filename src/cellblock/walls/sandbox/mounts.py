"""Executes a plan with the mount API of Linux 5.12 and later. Runs in a zygote and in a session's init; fails closed.

Standard library only. Everything raises: a sandbox that cannot be enforced does not start.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from cellblock.walls.linux import abi
from cellblock.walls.linux.mount_api import (
    READ_ONLY,
    WRITABLE,
    clone,
    clone_tree,
    move,
    move_onto,
    new_filesystem,
    open_without_links,
    pin,
    set_attributes,
    set_read_only,
    without_links,
)
from cellblock.walls.linux.syscall import call, umount, write
from cellblock.walls.linux.targets import is_directory, make_file, make_read_only, make_target, make_way, mount_new, taken
from cellblock.walls.sandbox.namespaces import kernel_version
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.placeholders import is_placeholder
from cellblock.walls.sandbox.plan import BLANK, EMPTY, PROC_OF_ROOT, STAGE
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

# Where a zygote keeps what its sessions share, and in it the place where a session's tree is put together: it exists on every
# system, and what it hides is hidden only from these processes.
BASE = "/dev/shm"
_STAGE = f"{BASE}{STAGE}"

_DEVICES = abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NOEXEC
_TERMINALS = 64
"""The most terminals of a session. All sandboxes of a machine share some 3,000 (kernel.pty.max less kernel.pty.reserve)."""

_BIND_ATTRIBUTES = {"ro": READ_ONLY, "rw": WRITABLE, "dev": _DEVICES}


def cut_ties() -> None:
    """Isolate this mount namespace: mounts made here do not appear in others, nor those of others here."""
    set_attributes(abi.AT_FDCWD, b"/", 0, propagation=abi.MS_PRIVATE)


def cover_interpreter() -> None:
    """As a zygote that is about to be restarted: put a read-only mount on the interpreter.

    /proc/self/exe of every kernel leads past the kernel's own mounts, to the mount that this interpreter was started from: the
    owner of the file could change its mode there, and on Linux 6.11 and 6.12 its bytes.
    """
    own = os.path.realpath("/proc/self/exe")
    descriptor = clone_tree(own)
    set_read_only(descriptor)
    move(descriptor, own)


def make_base(steps: Sequence[Step]) -> None:
    """In our own mount namespace: make the base from which trees are put together.

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
    """As a session's init that is still a spare: build the first steps of most plans in advance.

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
    """Build the session's view of the file system, and enter it. All processes of the mount namespace get it.

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
    """As root in a sandbox that was not built here: make the parts of /proc that root may write read-only for that sandbox.

    Writing there needs no capability, and with ``kernel.core_pattern`` the kernel runs a program on the host.

    Raises:
        OSError: It cannot be done; no code may run.
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
    """Executes steps, relative to the current directory, which becomes the root.

    It opens all sources first, because the new tree is built on top of one of them.
    """

    def __init__(self, steps: Sequence[Step], *, weaker_proc: bool = False) -> None:
        self._steps = steps
        self._weaker_proc = weaker_proc
        self._proc_is_ours = True
        self._sources: dict[Step, int] = {}
        self._resolved: dict[str, str] = {}
        self._missing: set[str] = set()
        self._pinned: set[str] = set()

    def take_sources(self) -> None:
        for step in self._steps:
            match step:
                case Bind():
                    self._take(step)
                case Graft(target):
                    self._sources[step] = clone_tree(f"{BASE}{target}")
                case Protect(target=target) | Mask(target=target):
                    # Now, because the new tree is built on top of some of it. Later the links lead elsewhere, or nowhere.
                    if (resolved := without_links(target)) is None:
                        self._missing.add(target)
                    else:
                        self._resolved[target] = resolved
        self._missing -= self._made_by_binds()

    def _made_by_binds(self) -> set[str]:
        """Return the paths that will exist only because something is bound at them, or below."""
        moved = [step.target for step in self._sources if isinstance(step, Bind) and step.source != step.target]
        return {target[:end] for target in moved for end in (*_ends_of_parts(target), len(target))}

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
            case Mask(target=target) if target in self._missing:
                pass  # most names are missing
            case Protect(top, target) if target in self._missing and os.path.dirname(target) == top:
                pass  # further down, a folder on the way may be a placeholder, and so be protected
            case Protect(top, target):
                self._protect(top, target)
            case Mask(target, top):
                self._mask(target, top)
            case Sysctl() if not self._proc_is_ours:
                pass  # its settings are read-only, and may be those of the machine
            case Sysctl(name, value, major, minor, optional):
                # In older kernels there is one for the whole machine, which a host that runs as root would change.
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

    def _protect(self, top: str, target: str) -> None:
        """Protect a path below a writable directory from changes, including renames of its parents."""
        path = top
        for part in os.path.relpath(target, top).split("/"):
            path = f"{path}/{part}"
            with taken(path) as (place, mode):
                if place is None:
                    return
                if stat.S_ISLNK(mode):
                    move_onto(clone_tree(f"{BASE}{BLANK}"), place)  # a link cannot be made read-only, only hidden
                    break
                if path == target or not stat.S_ISDIR(mode) or is_placeholder(mode):
                    descriptor = clone(place)
                    set_read_only(descriptor)
                    move_onto(descriptor, place)
                    return
                if path not in self._pinned:
                    self._pinned.add(path)
                    pin(place)
        self._protect_end_of_link(top, target)

    def _protect_end_of_link(self, top: str, target: str) -> None:
        resolved = self._resolved.get(target, target)
        if resolved != target and is_inside(resolved, top):
            self._protect(top, resolved)

    def _mask(self, target: str, top: str | None) -> None:
        for path in dict.fromkeys((target, self._end_of_masked_link(target, top))):
            if target != path and is_inside(target, path):
                continue  # a link to a directory above itself: another session would lose its workspace
            with taken(path) as (place, mode):
                if place is not None:
                    move_onto(self._cover(path, mode), place)

    def _end_of_masked_link(self, target: str, top: str | None) -> str:
        """Return the target of a masked path, if it is a link whose target should be masked as well.

        An earlier session may have made the link, if it lies in a writable directory. Such a link must not let that session
        hide from the next one what it could not have destroyed itself: files elsewhere, or protected ones.
        """
        resolved = self._resolved.get(target, target)
        if top is None or resolved == target:
            return resolved
        kept = [step.target for step in self._steps if isinstance(step, Protect)]
        apart = not any(is_inside(resolved, path) or is_inside(path, resolved) for path in kept)
        return resolved if is_inside(resolved, top) and apart else target

    def _cover(self, path: str, mode: int) -> int:
        """Return a cover for a path: something that cannot be opened, or a directory with only the paths to shown parts."""
        binds = [(step.target, held) for step, held in self._sources.items() if isinstance(step, Bind)]
        shown = {target: held for target, held in binds if target != path and is_inside(target, path)}
        if not stat.S_ISDIR(mode) or not shown:
            return clone_tree(f"{BASE}{EMPTY if stat.S_ISDIR(mode) else BLANK}")
        made = new_filesystem("tmpfs", {"size": "1m", "mode": "755"}, WRITABLE)
        for target, held in shown.items():
            make_way(made, target[len(path) + 1 :].split("/"), directory=is_directory(held))
        set_read_only(made)
        return made


def _show_outer_proc(target: str) -> None:
    """Show the /proc around this sandbox, read-only: otherwise its owner could change settings of processes in it."""
    descriptor = clone_tree("/proc")
    set_read_only(descriptor)
    move(descriptor, f".{target}")


def detach(path: str) -> None:
    """As init, at the very end: unmount everything at a path and below, which could not be removed otherwise."""
    while umount(path, missing_ok=True):
        continue  # there may be another below


def _ends_of_parts(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/" and place > 0]
