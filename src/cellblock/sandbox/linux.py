"""Does what a plan says, with the mount API of Linux 5.12 and later. Runs in a zygote and in a session's init; fails closed.

Standard library only. Everything raises: a sandbox that cannot be enforced does not start.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cellblock.sandbox.placeholders import is_placeholder
from cellblock.sandbox.plan import BLANK, EMPTY, HOSTNAME, STAGE, USER, Step
from cellblock.sandbox.syscall import call, libc, map_user, write

_CLONE_NEW_ALL = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
_CLONE_NEWUSER, _CLONE_NEWNS = 0x10000000, 0x00020000
_CLONE_NEWCGROUP = 0x02000000
_CLONE_INTO_CGROUP = 0x200000000
_SIGCHLD = 17

# Where a zygote keeps what its sessions have in common, and in it the place where a session's tree is put together: it exists
# on every system, and what it hides is hidden from these processes only.
BASE = "/dev/shm"
_STAGE = f"{BASE}{STAGE}"

# The same numbers on every architecture, but for the first two.
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 437, 442
_CLONE3 = 435

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_F_EMPTY, _MOVE_T_EMPTY = 0x04, 0x40
_FSCONFIG_SET_STRING, _FSCONFIG_CREATE = 1, 6
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_BIND_ATTRIBUTES = {"ro": _RDONLY | _NOSUID | _NODEV, "rw": _NOSUID | _NODEV, "dev": _RDONLY | _NOSUID | _NOEXEC}
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 2, 4


def fork_into_namespaces(group: int | None = None) -> int:
    """Fork, with the child as process 1 of namespaces of its own. Returns as `os.fork` does.

    One clone, where unshare and fork would be two forks: only children of an unshare are in the new pid namespace. Python's
    own fork hooks run, as `os.fork` has them run. The C library's do not, which a process with one thread can do without.

    Args:
        group: A descriptor of the control group that the child is to be in. To be moved later would take ten milliseconds.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int
    if group is None:
        pid = libc.syscall(ctypes.c_long(_CLONE[os.uname().machine]), ctypes.c_long(_CLONE_NEW_ALL | _SIGCHLD), 0, 0, 0, 0, 0)
    else:
        # flags, then what is not used, the signal at the child's end, again what is not used, and the group.
        arguments = struct.pack("11Q", _CLONE_NEW_ALL | _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, group)
        pid = libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_long(len(arguments)))
    code = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return pid


def enter_namespaces(uid: int, gid: int) -> None:
    """As process 1 of new namespaces: become an ordinary user in them, cut the ties of mounts, and bring loopback up.

    Args:
        uid: The user outside.
        gid: The group outside.
    """
    if os.getpid() != 1:
        raise OSError(errno.EINVAL, "this process is not the first of a pid namespace of its own")
    map_user(USER, uid, USER, gid)
    # Another one, whose root is the group that this process is in; that of the clone has the zygote's, and shows the way.
    if libc.unshare(_CLONE_NEWCGROUP) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare of the cgroup namespace: {os.strerror(code)}")
    _set_attributes(_AT_FDCWD, b"/", 0, propagation=_MS_PRIVATE)
    socket.sethostname(HOSTNAME)
    _bring_loopback_up()


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(any_socket, 0x8913, request))[1]
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", flags | 1, b""))


def enter_base(uid: int, gid: int, steps: list[Step]) -> None:
    """As a zygote, before anything is loaded: go into namespaces in which mounts can be made, and make the common ones.

    Args:
        uid: The user outside, and inside.
        gid: The group outside, and inside.
        steps: From `base_steps`.
    """
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    map_user(uid, uid, gid, gid)
    _set_attributes(_AT_FDCWD, b"/", 0, propagation=_MS_PRIVATE)
    make_base(steps)
    # /proc/self/exe of every kernel leads past the kernel's own mounts, to the mount that this interpreter was started from:
    # whoever owns the file could change its mode there, and on Linux 6.11 and 6.12 its bytes. So start it again, from here.
    own = os.path.realpath("/proc/self/exe")
    descriptor = _clone_tree(own)
    _set_read_only(descriptor)
    _move(descriptor, own)


def make_base(steps: list[Step]) -> None:
    """In a mount namespace of our own: make what trees are put together from.

    Args:
        steps: From `base_steps`.
    """
    builder = _Builder(steps)
    builder.take_sources()
    _move(_new_root(), BASE)
    before = os.getcwd()
    os.chdir(BASE)
    builder.do_steps()
    os.chdir(before)


def prepare(steps: list[Step]) -> list[Step]:
    """As a session's init that nobody waits for yet: begin the tree with what most plans begin with.

    Args:
        steps: From `usual_beginning`.

    Returns:
        What `build` need not do any more: these steps, or none where one has failed. It will try again then, and say why.
    """
    try:
        builder = _Builder(steps)
        builder.take_sources()
        _move(_new_root(), _STAGE)
        os.chdir(_STAGE)
        builder.do_steps()
    except OSError:
        return []
    finally:
        os.chdir("/")
    return steps


def _new_root() -> int:
    return _new_filesystem("tmpfs", {"size": "8m", "mode": "755"}, _NOSUID | _NODEV)


def build(plan: dict[str, Any], prepared: list[Step]) -> None:
    """Make the session's view of the file system, and the only one there is. Processes of the mount namespace all get it.

    Args:
        plan: From `make_plan`.
        prepared: From `prepare`.
    """
    steps: list[Step] = plan["steps"]
    begun = bool(prepared) and not plan["everything"] and steps[: len(prepared)] == prepared
    if not begun:
        libc.umount2(_STAGE.encode(), _MNT_DETACH)  # what was begun in vain; it fails where there is nothing
    builder = _Builder(steps[len(prepared) :] if begun else steps)
    builder.take_sources()
    if plan["everything"]:
        root = _clone_tree("/")
        _set_read_only(root)
        _move(root, _STAGE)
    elif not begun:
        _move(_new_root(), _STAGE)
    os.chdir(_STAGE)
    builder.do_steps()
    call("pivot_root", _PIVOT_ROOT[os.uname().machine], b".", b".")
    _detach_old_root()
    os.chdir("/")
    if not plan["everything"]:
        _seal_root()


def _detach_old_root() -> None:
    if libc.umount2(b".", _MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"umount of the old root: {os.strerror(code)}")


def _seal_root() -> None:
    _set_attributes(_AT_FDCWD, b"/", _RDONLY, recursive=False)


class _Builder:
    """Does steps, relative to the current directory, which becomes the root.

    It takes hold of all sources first, because the new tree is built on top of one of them.
    """

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._sources: dict[tuple[str, ...], int] = {}
        self._resolved: dict[str, str] = {}
        self._pinned: set[str] = set()

    def take_sources(self) -> None:
        for step in self._steps:
            if step[0] in ("bind", "bind?"):
                self._take(step)
            elif step[0] == "graft":
                self._sources["graft", step[1]] = _clone_tree(f"{BASE}{step[1]}")
            elif step[0] in ("protect", "mask"):
                # Now, because the new tree is built on top of some of it. Later the links lead elsewhere, or nowhere.
                self._resolved[step[-1]] = _resolved(step[-1])

    def do_steps(self) -> None:
        for step in self._steps:
            action: Callable[..., None] = getattr(self, f"_do_{step[0].rstrip('?')}")
            try:
                action(*step[1:])
            except OSError as error:
                raise OSError(error.errno, f"sandbox step {step[:3]}: {error.strerror}") from error

    def _take(self, step: Step) -> None:
        source = step[1]
        try:
            descriptor = _clone_tree(source)
        except OSError as error:
            if step[0] == "bind?" and error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            raise OSError(error.errno, f"cannot take hold of {source}: {error.strerror}") from error
        _set_attributes(descriptor, b"", _BIND_ATTRIBUTES[step[3]])
        self._sources["bind", step[2], step[3]] = descriptor

    def _do_bind(self, source: str, target: str, access: str) -> None:
        descriptor = self._sources.pop(("bind", target, access), None)
        if descriptor is None:
            return
        _make_target(target, directory=_is_directory(descriptor))
        _move(descriptor, f".{target}")

    def _do_tmpfs(self, target: str, size: int, mode: int) -> None:
        _make_target(target, directory=True)
        inodes = str(max(size // 4096, 1024))
        made = _new_filesystem("tmpfs", {"size": str(size), "nr_inodes": inodes, "mode": f"{mode:o}"}, _NOSUID | _NODEV)
        _move(made, f".{target}")

    def _do_devpts(self, target: str) -> None:
        _make_target(target, directory=True)
        _move(_new_filesystem("devpts", {"ptmxmode": "666", "mode": "620"}, _NOSUID | _NOEXEC), f".{target}")

    def _do_proc(self, target: str) -> None:
        _make_target(target, directory=True)
        _move(_new_filesystem("proc", {}, _NOSUID | _NODEV | _NOEXEC), f".{target}")

    def _do_link(self, target: str, value: str) -> None:
        os.makedirs(os.path.dirname(f".{target}"), exist_ok=True)
        os.symlink(value, f".{target}")

    def _do_file(self, target: str, content: str, mode: int = 0o644) -> None:
        os.makedirs(os.path.dirname(f".{target}"), exist_ok=True)
        with open(f".{target}", "x") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)

    def _do_read_only(self, target: str) -> None:
        if not os.path.lexists(f".{target}"):
            return
        descriptor = _clone_tree(f".{target}")
        _set_read_only(descriptor)
        _move(descriptor, f".{target}")

    def _do_protect(self, top: str, target: str) -> None:
        """Let nothing at a path below a writable directory be changed, nor the path itself by renaming what leads there."""
        path = top
        for part in os.path.relpath(target, top).split("/"):
            path = f"{path}/{part}"
            with _taken(path) as (place, mode):
                if place is None:
                    return
                if stat.S_ISLNK(mode):
                    _move_onto(_clone_tree(f"{BASE}{BLANK}"), place)  # a link cannot be made read-only, but hidden
                    break
                if path == target or not stat.S_ISDIR(mode) or is_placeholder(mode):
                    descriptor = _clone(place)
                    _set_read_only(descriptor)
                    _move_onto(descriptor, place)
                    return
                if path not in self._pinned:
                    self._pinned.add(path)
                    _pin(place)
        self._protect_end_of_link(top, target)

    def _protect_end_of_link(self, top: str, target: str) -> None:
        resolved = self._resolved.get(target, target)
        if resolved != target and resolved.startswith(f"{top}/"):
            self._do_protect(top, resolved)

    def _do_mask(self, target: str) -> None:
        for path in dict.fromkeys((target, self._resolved.get(target, target))):
            if target.startswith(f"{path.rstrip('/')}/"):
                continue  # a link to where it lies itself: another session would lose its workspace
            with _taken(path) as (place, mode):
                if place is not None:
                    _move_onto(self._mask(path, mode), place)

    def _mask(self, path: str, mode: int) -> int:
        """Return what is to hide a path: something that nobody may open, or nothing but the ways to what is shown in it."""
        shown = {key[1]: held for key, held in self._sources.items() if key[0] == "bind" and key[1].startswith(f"{path}/")}
        if not stat.S_ISDIR(mode) or not shown:
            return _clone_tree(f"{BASE}{EMPTY if stat.S_ISDIR(mode) else BLANK}")
        made = _new_filesystem("tmpfs", {"size": "1m", "mode": "755"}, _NOSUID | _NODEV)
        for target, held in shown.items():
            _make_way(made, target[len(path) + 1 :].split("/"), directory=_is_directory(held))
        _set_read_only(made)
        return made

    def _do_graft(self, target: str) -> None:
        descriptor = self._sources.pop(("graft", target))
        _make_target(target, directory=_is_directory(descriptor))
        _move(descriptor, f".{target}")

    def _do_directory(self, target: str) -> None:
        _make_target(target, directory=True)

    def _do_seal(self, target: str) -> None:
        _set_attributes(_AT_FDCWD, os.fsencode(f".{target}"), _RDONLY, recursive=False)

    def _do_sysctl(self, name: str, value: str, since: list[int]) -> None:
        # Before, there is one for the whole machine, which a host that runs as root would change.
        if kernel_version() < tuple(since):
            return
        write(f"./proc/sys/{name}", value)


def detach(path: str) -> None:
    """As init, at the very end: undo what is mounted at a path and below, which we could not remove otherwise."""
    while libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        continue  # there may be another below


def listen(port: int) -> socket.socket:
    """Return a listener on the session's own loopback interface, for the host to serve.

    Made before there is any code that could take the port, or stand in for what is passed out.
    """
    return socket.create_server(("127.0.0.1", port), backlog=128)


def kernel_version() -> tuple[int, int]:
    """Return the two leading numbers of the running kernel's version."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)))


# -- the mount API -------------------------------------------------------------------------------------------------------


def _clone_tree(path: str) -> int:
    """Return a copy of the mounts at a path, attached nowhere. No symbolic link on the way to it is followed."""
    descriptor = _open_without_links(path, 0)
    try:
        return _clone(descriptor)
    finally:
        os.close(descriptor)


def _open_without_links(path: str, flags: int) -> int:
    """Take hold of a path, on the way to which no symbolic link is followed; with O_NOFOLLOW the last part may be one."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    return call("openat2", _OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))


def _clone(descriptor: int) -> int:
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
    return call("open_tree", _OPEN_TREE, descriptor, b"", flags)


@contextmanager
def _taken(target: str) -> Iterator[tuple[int | None, int]]:
    """Hold what lies at a path of the new tree, and its mode; None where nothing does, or a link is on the way to it."""
    try:
        place = _open_without_links(f".{target}", os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        yield None, 0
        return
    try:
        yield place, os.fstat(place).st_mode
    finally:
        os.close(place)


def _set_attributes(descriptor: int, path: bytes, attributes: int, propagation: int = 0, recursive: bool = True) -> None:
    value = struct.pack("QQQQ", attributes, 0, propagation, 0)
    flags = (_AT_RECURSIVE if recursive else 0) | (0 if path else _AT_EMPTY_PATH)
    call("mount_setattr", _MOUNT_SETATTR, descriptor, path, flags, value, len(value))


def _set_read_only(descriptor: int) -> None:
    _set_attributes(descriptor, b"", _RDONLY | _NOSUID | _NODEV)


def _new_filesystem(kind: str, options: dict[str, str], attributes: int) -> int:
    context = call("fsopen", _FSOPEN, kind.encode(), os.O_CLOEXEC & 0 | 1)
    try:
        for name, value in options.items():
            call("fsconfig", _FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        call("fsconfig", _FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
        return call("fsmount", _FSMOUNT, context, 1, attributes)
    finally:
        os.close(context)


def _move(descriptor: int, target: str) -> None:
    try:
        call("move_mount", _MOVE_MOUNT, descriptor, b"", _AT_FDCWD, os.fsencode(target), _MOVE_F_EMPTY)
    finally:
        os.close(descriptor)


def _move_onto(descriptor: int, place: int) -> None:
    try:
        call("move_mount", _MOVE_MOUNT, descriptor, b"", place, b"", _MOVE_F_EMPTY | _MOVE_T_EMPTY)
    finally:
        os.close(descriptor)


def _pin(place: int) -> None:
    """Mount what lies at a place onto itself: a mount point cannot be renamed."""
    _move_onto(_clone(place), place)


def _resolved(path: str) -> str:
    """Return a path without symbolic links: by one look where there are none, as is usual, instead of one for each part."""
    try:
        os.close(_open_without_links(path, 0))
    except OSError as error:
        if error.errno != errno.ENOENT:
            return os.path.realpath(path)
    return path


def _is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _make_way(top: int, parts: list[str], *, directory: bool) -> None:
    """Make a place for a mount below a file system of our own, and the directories that lead there."""
    for depth in range(1, len(parts) + 1):
        try:
            if depth < len(parts) or directory:
                os.mkdir("/".join(parts[:depth]), dir_fd=top)
            else:
                os.close(os.open("/".join(parts), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top))
        except FileExistsError:
            continue


def _make_target(target: str, *, directory: bool) -> None:
    path = f".{target}"
    if directory:
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o444))


assert sys.byteorder == "little", "the layouts above are for little-endian machines"
