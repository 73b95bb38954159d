"""Changes to the system-call filter for sessions that no namespaces separate from the machine's other processes.

Landlock controls opening, creating, moving and removing files, and signals. It does not control attributes of files, memory
and queues without a path, or the address of a socket's peer. Nor does it control limits and priorities of other processes. The
filter refuses what a session can do without. The rest it leaves to the session's init (`launch.init.supervisor`), which sees
the paths and addresses that no filter sees.
"""

from __future__ import annotations

import errno

from cellblock.walls.linux import seccomp
from cellblock.walls.linux.bpf import ALLOW, ANY, NOTIFY, Comparison, Conditional, error

_SETID = (1 << 11, 1 << 10)
_FASTOPEN = 0x20000000
_O_ACCMODE, _O_RDONLY, _O_TRUNC = 3, 0, 0o1000
_F_SETOWN, _F_SETOWN_EX = 8, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_PERM = error(errno.EPERM)


def _zero(argument: int) -> Comparison:
    return Comparison(argument, ANY, 0)


def _mode(argument: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return tuple(((Comparison(argument, bit, bit),), _PERM) for bit in _SETID)


def _streams(family: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return tuple(
        ((Comparison(0, ANY, family), Comparison(1, 0xF, 1), Comparison(2, ANY, protocol)), ALLOW) for protocol in (0, 6)
    )


def _fast_open(argument: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return (((Comparison(argument, _FASTOPEN, _FASTOPEN),), _PERM),)


ATTRIBUTES = (
    Conditional("chmod fchmod", "init looks where the file lies; no set-id bits", _mode(1), NOTIFY),
    Conditional("fchmodat fchmodat2", "likewise", _mode(2), NOTIFY),
    Conditional("utimensat", "likewise", (), NOTIFY),
    Conditional("chown fchown lchown fchownat", "likewise; owners stay what they are", (), NOTIFY),
    Conditional("utime utimes futimesat", "Landlock does not see them", (), _PERM),
    Conditional(
        "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat getxattr lgetxattr "
        "getxattrat listxattr llistxattr listxattrat",
        "likewise; as if the file system had no such attributes, which programs expect",
        (),
        error(errno.EOPNOTSUPP),
    ),
    Conditional(
        "inotify_init inotify_init1 inotify_add_watch",
        "names of files outside would show, and the user's other programs have no more instances than these leave",
        (),
        _PERM,
    ),
)
SHARED = (
    Conditional(
        "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink",
        "memory and queues of the machine's other programs",
        (),
        _PERM,
    ),
)
OTHERS = (Conditional("sched_setaffinity", "processors of other processes of the same user", (((_zero(0),), ALLOW),), _PERM),)
SOCKETS = (
    Conditional(
        "socket",
        "TCP for tools, which init connects; of local sockets, pairs only: others reach what listens in the file system",
        (*_streams(2), *_streams(10)),
        _PERM,
    ),
    Conditional("connect", "init looks at the address", (), NOTIFY),
    Conditional("bind listen", "the machine's network is not the session's", (), _PERM),
    Conditional("sendto sendmmsg", "TCP fast open connects without `connect`", _fast_open(3), ALLOW),
    Conditional("sendmsg", "likewise", _fast_open(2), ALLOW),
)

SIGNALS = (
    Conditional(
        "kill",
        "init looks whose the process is; a process's own group is always the session's",
        (((_zero(0),), ALLOW),),
        NOTIFY,
    ),
    Conditional("tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal", "likewise", (), NOTIFY),
    Conditional(
        "fcntl",
        "no process may be named as a receiver of the kernel's signals",
        (
            *seccomp.leases(),
            *seccomp.large_pipes(),
            *(((Comparison(1, ANY, command),), _PERM) for command in (_F_SETOWN, _F_SETOWN_EX)),
        ),
        ALLOW,
    ),
    Conditional(
        "ioctl",
        "likewise",
        (*(((Comparison(1, ANY, command),), _PERM) for command in (_FIOSETOWN, _SIOCSPGRP)), *seccomp.commands()),
        ALLOW,
    ),
)
"""Before version 6, Landlock does not control signals."""

TRUNCATION = (Conditional("truncate", "init looks where the file lies", (), NOTIFY),)
"""Before version 3, Landlock does not control truncating files. A file that is open for writing may be truncated anyway."""


def instead(found: int) -> tuple[Conditional, ...]:
    """Return the rules that override the native sandbox's rules.

    Args:
        found: The version of Landlock. What it does not control is controlled here.
    """
    rules = (*ATTRIBUTES, *SHARED, *OTHERS, *SOCKETS, *_opening(found))
    if found < 6:
        rules += SIGNALS
    if found < 3:
        rules += TRUNCATION
    return rules


def _opening(found: int) -> tuple[Conditional, ...]:
    return tuple(
        Conditional(
            name,
            "Landlock asks for a right to read or to write only; as for the native sandbox, no set-id files",
            (*_neither(flags), *(_truncating(flags) if found < 3 else ()), *seccomp.creating(flags, flags + 1)),
            ALLOW,
        )
        for name, flags in (("open", 1), ("openat", 2))
    )


def _neither(flags: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Refuse to open a file for ioctl only (neither reading nor writing): it can be a device, or be locked."""
    return (((Comparison(flags, _O_ACCMODE, _O_ACCMODE),), _PERM),)


def _truncating(flags: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Refuse to truncate a file that is opened for reading only."""
    return (((Comparison(flags, _O_ACCMODE | _O_TRUNC, _O_RDONLY | _O_TRUNC),), _PERM),)
