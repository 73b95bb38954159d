"""Landlock: the version of this kernel, and restricting this process permanently."""

from __future__ import annotations

import errno
import functools
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable

from cellblock.walls.linux import abi, seccomp
from cellblock.walls.linux.syscall import call
from cellblock.wire.sandbox import Allow

# The version of Landlock that introduced a permission: 2 is of Linux 5.19, 3 of 6.2, 4 (TCP) of 6.7, 5 of 6.10, 6 (signals and
# abstract sockets) of 6.12. What an older version cannot control is left to the system-call filter and init (`undivided`).
_FIRST_IN = {
    2: abi.LANDLOCK_ACCESS_FS_REFER,
    3: abi.LANDLOCK_ACCESS_FS_TRUNCATE,
    5: abi.LANDLOCK_ACCESS_FS_IOCTL_DEV,
}
_READ = abi.LANDLOCK_ACCESS_FS_EXECUTE | abi.LANDLOCK_ACCESS_FS_READ_FILE | abi.LANDLOCK_ACCESS_FS_READ_DIR
_ALL = (abi.LANDLOCK_ACCESS_FS_IOCTL_DEV << 1) - 1
_NEVER = (
    abi.LANDLOCK_ACCESS_FS_MAKE_CHAR
    | abi.LANDLOCK_ACCESS_FS_MAKE_BLOCK
    | abi.LANDLOCK_ACCESS_FS_MAKE_SOCK
    | abi.LANDLOCK_ACCESS_FS_IOCTL_DEV
)
_RIGHTS = {
    "read": _READ,
    "write": _ALL & ~_NEVER,
    "device": abi.LANDLOCK_ACCESS_FS_READ_FILE | abi.LANDLOCK_ACCESS_FS_WRITE_FILE,
}
_OF_FILES = (
    abi.LANDLOCK_ACCESS_FS_EXECUTE
    | abi.LANDLOCK_ACCESS_FS_READ_FILE
    | abi.LANDLOCK_ACCESS_FS_WRITE_FILE
    | abi.LANDLOCK_ACCESS_FS_TRUNCATE
)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
"""An optional path that this user cannot reach counts as absent: the session could not reach it either."""
_RESOLVE = abi.RESOLVE_NO_SYMLINKS | abi.RESOLVE_NO_MAGICLINKS


@functools.cache
def version() -> int:
    """Return the version of this kernel's Landlock; 0 if it is missing or disabled."""
    try:
        return call("landlock_create_ruleset", None, 0, abi.LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def missing() -> tuple[str, ...]:
    """Return what this machine lacks for a Landlock sandbox; empty if it works."""
    if sys.platform != "linux":
        return ("Landlock is a part of Linux",)
    if not seccomp.supported(platform.machine()):
        return (f"there is no system-call policy for {platform.machine()}",)
    if version() == 0:
        return (
            "this kernel has no Landlock, or it is switched off, or a container's own filter refuses it: use Linux 5.13 or "
            "newer, and add landlock to 'lsm=' on the kernel's command line",
        )
    return ()


def restrict(allowed: Iterable[Allow], found: int) -> None:
    """Restrict this process and its children to these parts of the file system, irrevocably.

    From version 4 on, TCP connections are impossible. From 6 on, signals to outside processes and connections to outside
    abstract sockets are impossible.

    Args:
        allowed: The allowed paths and kinds of access. Paths are opened here, without following symbolic links.
        found: The version of Landlock to use; not above this kernel's.

    Raises:
        OSError: It is not possible. No code may run.
    """
    handled = _handled(found)
    network = abi.LANDLOCK_ACCESS_NET_BIND_TCP | abi.LANDLOCK_ACCESS_NET_CONNECT_TCP if found >= 4 else 0
    # An older kernel accepts the longer structure if the unknown part is zero.
    attributes = struct.pack("=QQQ", handled, network, _scopes() if found >= 6 else 0)
    ruleset = call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for item in allowed:
            _add(ruleset, item, handled)
        # Hostile code could fill the audit log with refusals.
        quiet = abi.LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF if found >= 7 else 0
        call("landlock_restrict_self", ruleset, quiet)
    finally:
        os.close(ruleset)


def _handled(found: int) -> int:
    """Return the file permissions in a version of Landlock."""
    return _ALL & ~sum(right for number, right in _FIRST_IN.items() if number > found)


def _scopes() -> int:
    return abi.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | abi.LANDLOCK_SCOPE_SIGNAL


def _add(ruleset: int, item: Allow, handled: int) -> None:
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE)
    try:
        descriptor = call("openat2", abi.AT_FDCWD, os.fsencode(item.path), how, len(how))
    except OSError as error:
        if item.optional and error.errno in _ABSENT:
            return
        raise OSError(error.errno, f"cannot open {item.path}: {error.strerror}") from error
    try:
        rights = _RIGHTS[item.access] & handled
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        call("landlock_add_rule", ruleset, abi.LANDLOCK_RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
