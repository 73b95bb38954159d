"""What the system-call filter changes if no namespaces divide a session from the machine's other processes.

Landlock decides about opening, making, moving and removing files, and about signals. It has no say about the attributes of
files, about memory and queues that have no path, about limits and priorities of other processes, or about which address a
socket is connected to. The filter refuses what a session can do without. The rest it leaves to the session's init
(`cellblock.init.supervisor`), which sees the paths and addresses that no filter sees.
"""

from __future__ import annotations

import errno

from cellblock.sandbox.bpf import ALLOW, ANY, NOTIFY, Comparison, Conditional, error

_SETID = (1 << 11, 1 << 10)
_FASTOPEN = 0x20000000
_PERM = error(errno.EPERM)


def _own(*tests: Comparison) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return ((tests, ALLOW),)


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
    Conditional("utime utimes futimesat chown fchown lchown fchownat", "Landlock does not see them", (), _PERM),
    Conditional(
        "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat getxattr lgetxattr "
        "getxattrat listxattr llistxattr listxattrat",
        "likewise; as if the file system had no such attributes, which programs expect",
        (),
        error(errno.EOPNOTSUPP),
    ),
    Conditional("inotify_add_watch", "names of files outside would show", (), _PERM),
)
SHARED = (
    Conditional(
        "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink",
        "memory and queues of the machine's other programs",
        (),
        _PERM,
    ),
)
OTHERS = (
    Conditional("prlimit64", "limits of other processes of the same user", _own(_zero(0)), _PERM),
    Conditional("setpriority", "priorities of other processes", _own(_zero(0), _zero(1)), _PERM),
    Conditional("ioprio_set", "likewise", _own(Comparison(0, ANY, 1), _zero(1)), _PERM),
    Conditional("sched_setaffinity sched_setparam sched_setscheduler sched_setattr", "likewise", _own(_zero(0)), _PERM),
)
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

INSTEAD = (*ATTRIBUTES, *SHARED, *OTHERS, *SOCKETS)
