"""The system calls of a worker: the policy as data, and the BPF program that enforces it.

An allowlist, close to the default of the Open Container Initiative, which container runtimes share. It excludes calls that a
data science kernel does not need but exploits do. Unlisted calls do not exist (ENOSYS), so that the C library falls back to
older ones. Known dangerous calls are refused (EPERM), so that the code gets an accurate answer.
"""

from __future__ import annotations

import errno
import functools

from cellblock.walls.linux import abi
from cellblock.walls.linux.bpf import ALLOW, ANY, JEQ, LOAD, RET, Assembler, Comparison, Conditional, compiled, error
from cellblock.walls.linux.syscall_numbers import BY_MACHINE

ALLOWED: tuple[tuple[str, str], ...] = (
    (
        "files: all below is checked by the mounts",
        "access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate fchdir "
        "fchown fchownat fdatasync fgetxattr flistxattr flock fstat fstatfs fsync ftruncate "
        "futimesat getcwd getdents getdents64 getxattr lchown lgetxattr link linkat listxattr llistxattr lseek "
        "lstat newfstatat pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv "
        "rename renameat renameat2 rmdir stat statfs statx symlink symlinkat sync sync_file_range syncfs "
        "truncate umask unlink unlinkat utime utimensat utimes write writev cachestat getxattrat listxattrat "
        "inotify_add_watch inotify_init inotify_init1 inotify_rm_watch fstatat64",
    ),
    (
        "memory of its own",
        "brk madvise mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap mseal "
        "map_shadow_stack membarrier pkey_alloc pkey_free pkey_mprotect get_mempolicy remap_file_pages",
    ),
    (
        "processes and threads, within the namespace",
        "execve execveat exit exit_group fork vfork wait4 waitid kill tkill tgkill rt_sigaction rt_sigpending rt_sigprocmask "
        "rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack restart_syscall pause "
        "pidfd_open pidfd_send_signal set_tid_address set_robust_list get_robust_list rseq arch_prctl set_thread_area "
        "get_thread_area getpid getppid gettid getpgid getpgrp getsid setpgid setsid getpriority ioprio_get "
        "sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam "
        "sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam "
        "sched_yield getcpu getrlimit setrlimit getrusage times capget capset signalfd signalfd4",
    ),
    (
        "identity: the user namespace has one user, so that there is nothing to become",
        "getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid setresgid "
        "setfsuid setfsgid setgroups",
    ),
    (
        "time",
        "alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create "
        "timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime",
    ),
    (
        "waiting, pipes, locks and queues",
        "epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_requeue "
        "futex_wait futex_waitv futex_wake mq_getsetattr "
        "mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 poll ppoll pselect6 "
        "select semctl semop semtimedop shmat shmctl shmdt shmget",
    ),
    (
        "sockets that `socket` let through",
        "accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg "
        "sendto shutdown",
    ),
    ("facts about the machine", "getrandom sysinfo uname"),
)
"""Reason and names. A call that is in none of the tables gives ENOSYS."""

REFUSED: tuple[tuple[str, str], ...] = (
    ("namespaces: each is a way to more capabilities", "unshare setns"),
    (
        "mounts: the view of the file system is the sandbox",
        "mount umount2 mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick pivot_root chroot "
        "statmount listmount",
    ),
    ("file handles: they open what no path leads to", "open_by_handle_at name_to_handle_at"),
    (
        "other processes' memory and descriptors",
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd",
    ),
    ("keys: not divided by namespaces", "keyctl add_key request_key"),
    ("exploit primitives", "bpf perf_event_open userfaultfd modify_ldt iopl ioperm vm86 vm86old"),
    (
        "page cache: read-only mounts share the host's, and these have written to it before (2022 to 2026)",
        "splice tee vmsplice",
    ),
    ("filters: nothing may stand between us and the kernel", "seccomp"),
    (
        "placement of memory: a history of bugs, and no use here",
        "mbind set_mempolicy set_mempolicy_home_node move_pages migrate_pages",
    ),
    (
        "the machine's own affairs",
        "acct adjtimex clock_adjtime clock_settime create_module delete_module fanotify_init fanotify_mark finit_module "
        "get_kernel_syms init_module kexec_file_load kexec_load lookup_dcookie nfsservctl query_module quotactl quotactl_fd "
        "reboot setdomainname sethostname settimeofday stime swapoff swapon sysfs syslog uselib ustat vhangup _sysctl",
    ),
)
"""Reason and names of calls that give EPERM. Other dangerous calls are absent: clone3 (its flags are behind a pointer),
openat2 (likewise), io_uring (bypasses the rules for sockets), sendfile (as splice), memfd_create (memory that is not counted),
landlock (unlimited rules, in kernel memory), io_setup (one maximum for the machine, fs.aio-max-nr): libraries have fallbacks
for all of these."""

_SETID = 0o6000
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000
_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = 1024, 1026, 1031
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOL_SOCKET, _SO_LINGER = 1, 13
_SCHED_OTHER = 0
_PERM = error(errno.EPERM)


def _same(argument: int, value: int) -> Comparison:
    return Comparison(argument, ANY, value)


def _has(argument: int, bits: int) -> tuple[tuple[Comparison, ...], ...]:
    """Return the cases in which an argument has at least one of some bits."""
    return tuple((Comparison(argument, 1 << bit, 1 << bit),) for bit in range(32) if bits >> bit & 1)


def _deny(cases: tuple[tuple[Comparison, ...], ...]) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return tuple((tests, _PERM) for tests in cases)


def _mode(argument: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return _deny(_has(argument, _SETID))


def _node(argument: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    devices = tuple((Comparison(argument, 0o170000, kind),) for kind in (0o020000, 0o060000))
    return _deny((*devices, *_has(argument, _SETID)))


def creating(flags: int, mode: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the cases in which a call that opens files would create one with set-id bits.

    Args:
        flags: The index of the argument with the flags.
        mode: The index of the argument with the mode.
    """
    return _deny(
        tuple((Comparison(flags, making, making), *tests) for making in (_O_CREAT, _O_TMPFILE) for tests in _has(mode, _SETID))
    )


def leases() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the refused cases of ``fcntl``: opening a file with a lease on it blocks for up to 45 seconds."""
    return _deny(((_same(1, _F_SETLEASE),), (_same(1, _F_NOTIFY),)))


def of_itself(*values: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the allowed case of a call that changes a process: only its caller, by these first arguments."""
    return ((tuple(_same(argument, value) for argument, value in enumerate(values)), ALLOW),)


def large_pipes() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the cases of ``fcntl`` about the size of a pipe: larger pipes are refused, as for a user with many pipes."""
    usual = (
        ((_same(1, _F_SETPIPE_SZ), Comparison(2, 0xFFFF0000, 0)), ALLOW),
        ((_same(1, _F_SETPIPE_SZ), _same(2, 1 << 16)), ALLOW),
    )
    return (*usual, ((_same(1, _F_SETPIPE_SZ),), _PERM))


def lingering() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the case of ``setsockopt`` that pretends to succeed and does nothing: SO_LINGER.

    The last close of such a connection blocks until its data has arrived. That can happen in another process: a descriptor in
    a message is closed by the process that reads the message, even if it does not want it.
    """
    return (((_same(1, _SOL_SOCKET), _same(2, _SO_LINGER)), error(0)),)


def commands() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Return the cases of ``ioctl``: refused ones, and allowed exceptions."""
    return (*_deny(tuple((_same(1, command),) for command in (0x5412, 0x541C, 0x5423))), *_file_commands())


def _internet(family: int) -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return tuple(
        ((_same(0, family), Comparison(1, 0xF, kind), _same(2, protocol)), ALLOW)
        for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17))
    )


# Allowed commands for files (their numbers have the types f, v, X, and types of file systems): reading attributes, cloning.
_FILE_COMMANDS = (
    *(0x80086601, 0x80046601, 0xC020660B, 0x80087601, 0x80047601, 0x801C581F),  # attributes, extents, versions
    *(0x40049409, 0x4020940D, 0xC0189436),  # FICLONE, FICLONERANGE, FIDEDUPERANGE
)
_FILE_COMMAND_TYPES = (0x66, 0x76, 0x58, 0x94, 0xF5)

# Options that programs use on themselves (linux/prctl.h): the parent-death signal, dumpable, unaligned access, capabilities,
# names, endianness, seccomp's state, the time-stamp counter, securebits, timer slack, machine checks, subreaper, no_new_privs,
# the thread's address, huge pages, vector lengths, speculation, tagged addresses, pointer authentication, memory that is
# written or executed, merging, shadow stacks; names of mappings, and the auxiliary vector.
_PRCTL_OPTIONS = (
    *range(1, 9),
    *(15, 16, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30, 33, 34),
    *(36, 37, 38, 39, 40, 41, 42, 47),
    *(50, 51, 52, 53, 54, 55, 56, 60, 61, 63, 64, 65, 66, 67, 68, 74, 75, 76),
    *(0x53564D41, 0x41555856),
)


def _file_commands() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    """Refuse changes of attributes of workspace files, which outlive the session, such as an unwritable directory."""
    return (
        *(((_same(1, command),), ALLOW) for command in _FILE_COMMANDS),
        *(((Comparison(1, 0xFF00, kind << 8),), _PERM) for kind in _FILE_COMMAND_TYPES),
    )


def _prctl_options() -> tuple[tuple[tuple[Comparison, ...], int], ...]:
    return tuple(((_same(0, option),), ALLOW) for option in _PRCTL_OPTIONS)


def conditionals(unix_sockets: bool) -> tuple[Conditional, ...]:
    """Return the calls whose outcome depends on their arguments.

    Args:
        unix_sockets: Whether sockets of the AF_UNIX family may be created, other than in pairs.
    """
    return (*_for_processes(), *_for_sockets(unix_sockets), *_for_files())


def _for_processes() -> tuple[Conditional, ...]:
    return (
        Conditional("clone", "threads and forks, but no new namespace", _deny(_has(0, abi.CLONE_NEW_ALL)), ALLOW),
        Conditional(
            "prctl",
            "by list, because new options come with power, and with memory of the kernel's (PR_FUTEX_HASH); no filters, "
            "tracers, memory maps, core scheduling or dispatch of one's own",
            _prctl_options(),
            _PERM,
        ),
        Conditional(
            "personality",
            "Linux as it is, without address randomization at most",
            tuple(((_same(0, value),), ALLOW) for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)),
            _PERM,
        ),
        Conditional("prlimit64", "a copy that waits for an undo has the same user", of_itself(0), _PERM),
        Conditional("setpriority", "likewise", of_itself(0, 0), _PERM),
        Conditional("sched_setattr", "likewise", of_itself(0), _PERM),
        Conditional(
            "sched_setscheduler",
            "likewise, or to the usual policy, which changes nothing: ZeroMQ sets it for its threads, or aborts",
            (*of_itself(0), ((_same(1, _SCHED_OTHER),), ALLOW)),
            _PERM,
        ),
        Conditional("ioprio_set", "likewise", of_itself(1, 0), _PERM),
        Conditional(
            "semget",
            "at most 15 semaphores in a set: the kernel lets a session have 32,000 sets, and counts them nowhere",
            (((Comparison(1, 0xFFFFFFF0, 0),), ALLOW),),
            error(errno.EINVAL),
        ),
    )


def _for_sockets(unix_sockets: bool) -> tuple[Conditional, ...]:
    unix = (((_same(0, _AF_UNIX),), ALLOW),) if unix_sockets else (((_same(0, _AF_UNIX),), _PERM),)
    unsupported = error(errno.EAFNOSUPPORT)
    return (
        Conditional(
            "socket",
            "TCP, UDP and local: other families have most of the bugs. Netlink gets EOPNOTSUPP, as on a kernel without "
            "it, because ZeroMQ aborts its process after any other error",
            (*unix, *_internet(2), *_internet(10), ((_same(0, _AF_NETLINK),), error(errno.EOPNOTSUPP))),
            unsupported,
        ),
        Conditional(
            "socketpair",
            "local only; one for datagrams can be sent to any socket in the file system",
            (
                *(((_same(0, _AF_UNIX), Comparison(1, 0xF, kind)), ALLOW) for kind in ((1, 2, 5) if unix_sockets else (1, 5))),
                ((_same(0, _AF_UNIX),), _PERM),
            ),
            unsupported,
        ),
        Conditional(
            "setsockopt",
            "no protocol layered on TCP, no repair mode, no filters, no waiting when a connection is closed",
            (
                *_deny(
                    tuple(
                        (_same(1, level), _same(2, option))
                        for level, option in ((6, 31), (6, 19), (17, 100), (1, 26), (1, 50), (1, 51), (1, 52))
                    )
                ),
                *lingering(),
            ),
            ALLOW,
        ),
    )


ATTRIBUTES = (
    Conditional(
        "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat",
        "no attributes either: the names are behind pointers, and a default access list of the workspace would open files "
        "that the user makes there later; as if the file system had none, which programs expect",
        (),
        error(errno.EOPNOTSUPP),
    ),
)


def _for_files() -> tuple[Conditional, ...]:
    return (
        Conditional(
            "ioctl",
            "no typing into a terminal, no attributes of files that outlive the session; the low half only, as that is all "
            "that the kernel looks at (CVE-2019-10063)",
            commands(),
            ALLOW,
        ),
        *ATTRIBUTES,
        Conditional(
            "fcntl",
            "no leases: the host would wait for them when it opens a file; no large pipes, because a user's total is limited",
            (*leases(), *large_pipes()),
            ALLOW,
        ),
        Conditional("chmod fchmod mkdir creat", "set-id files would land in the host's workspace", _mode(1), ALLOW),
        Conditional("fchmodat fchmodat2 mkdirat", "likewise", _mode(2), ALLOW),
        Conditional("open", "likewise", creating(1, 2), ALLOW),
        Conditional("openat", "likewise", creating(2, 3), ALLOW),
        Conditional("mknod", "likewise, and devices", _node(1), ALLOW),
        Conditional("mknodat", "likewise, and devices", _node(2), ALLOW),
    )


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000


def supported(machine: str) -> bool:
    """Return whether there is a table for this architecture, as named by `platform.machine`."""
    return machine in ARCHITECTURES


@functools.cache
def program(
    machine: str,
    unix_sockets: bool = True,
    without: frozenset[str] = frozenset(),
    instead: tuple[Conditional, ...] = (),
) -> bytes:
    """Return the BPF program, ready for ``prctl(PR_SET_SECCOMP)``.

    Args:
        machine: The architecture, as named by `platform.machine`.
        unix_sockets: Whether local sockets may be created, other than in pairs.
        without: Names of calls to allow anyway, for tests that show what each rule prevents.
        instead: Rules that override those here.
    """
    table = BY_MACHINE[machine]
    outcomes: dict[int, int | Conditional] = {}
    for _reason, names in ALLOWED:
        outcomes |= {table[name]: ALLOW for name in names.split() if name in table}
    for _reason, names in REFUSED:
        outcomes |= {table[name]: _PERM for name in names.split() if name in table}
    for rule in (*conditionals(unix_sockets), *instead):
        outcomes |= {table[name]: rule for name in rule.names.split() if name in table}
    outcomes |= {table[name]: ALLOW for name in without if name in table}
    return compiled(ARCHITECTURES[machine], outcomes, kill_from=X32 if machine == "x86_64" else None)


def no_programs(machine: str) -> bytes:
    """Return a BPF program that refuses to execute programs and to limit other processes, for use with the main program.

    With two programs, the stricter result counts. The main program kills calls of other architectures.

    Args:
        machine: The architecture, as named by `platform.machine`.
    """
    table = BY_MACHINE[machine]
    code = Assembler()
    code.add(LOAD, 0)
    for name in ("execve", "execveat"):
        code.add(JEQ, table[name], 0, 1)
        code.add(RET, _PERM)
    # Approved programs, and init, have the same user: a process may only limit itself.
    code.add(JEQ, table["prlimit64"], 1, 0)
    code.add(RET, ALLOW)
    for half in (16, 20):
        code.add(LOAD, half)
        code.add(JEQ, 0, 1, 0)
        code.add(RET, _PERM)
    code.add(RET, ALLOW)
    return code.bytes()
