"""Facts about processes, and control of them, beyond the standard library."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from cellblock.launch.init import sockets, system_v
from cellblock.walls.linux import abi
from cellblock.walls.linux.syscall import prctl

# The C function, and numbers: the one in `signal` looks for members of enumerations, which copies 40 pages in a fork.
_set_handler: Callable[[int, Any], Any] = importlib.import_module("_signal").signal
_SIGCHLD, _SIGTERM, _SIGINT = map(int, (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))
_DEFAULT, _IGNORE = int(signal.SIG_DFL), int(signal.SIG_IGN)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_OF_FILE = 1024  # tmpfs takes an inode for each kilobyte of attributes (Linux 6.6)
_OF_DESCRIPTOR = 4096  # half the pipe size that the kernel falls back to for users with many pipes

_STOPPED = frozenset((b"T", b"t", b"Z", b"X"))
"""States of threads in /proc (proc_pid_stat(5)) that run nothing, or not until a signal"""

_WAITING = _STOPPED | {b"S"}
"""States of a thread that does not run: sleeping, stopped or ended"""

_STUCK = frozenset((b"D", b"Z", b"X"))
"""States in which a thread stays that was killed: it has ended, or waits for a device"""

_PATIENCE = 0.002  # seconds for a process to stop; its init serves nothing else meanwhile
_MOMENT = 0.0002  # between two checks
_HIDDEN = 0.01  # seconds for a fork of this process to execute a program: until then it hides like this process

OOM_WORKER, OOM_CHILD = 300, 600
"""Scores for the system's choice when memory is full (proc_pid_oom_score_adj(5)): of workers, and what their code starts"""

HIGH = 64
"""Above every descriptor with a fixed place."""


def become_subreaper() -> None:
    """Adopt orphaned descendants instead of the machine's init. Linux only; elsewhere a no-op."""
    if sys.platform == "linux":
        prctl(abi.PR_SET_CHILD_SUBREAPER, 1)


def offer_to_oom_killer(score: int, pid: int | None = None) -> None:
    """Make the OOM killer prefer a process: what is least trusted first.

    An ordinary user can only raise a score. So the host, the custodian, zygotes and inits keep theirs.

    Args:
        score: As in /proc/PID/oom_score_adj.
        pid: The process; None: this one.
    """
    try:
        name = "self" if pid is None else name_in_proc(pid)
        with open(f"/proc/{name}/oom_score_adj", "w") as file:
            file.write(str(score))
    except OSError:
        return  # not Linux, or the process has ended or made itself unreadable


def die_with_parent(number: int) -> None:
    """Make the kernel send this signal when the parent ends. Linux only; elsewhere a no-op.

    Code in a session can undo this, so it is only a second line of defence.
    """
    if sys.platform == "linux":
        prctl(abi.PR_SET_PDEATHSIG, number)


def resume_after_parent() -> None:
    """Continue if the parent ends while this process is stopped (SIGSTOP), to notice it by a pidfd. A no-op except on Linux.

    SIGCONT has no effect on a running process. So it does not matter that Linux takes a thread for the parent.
    """
    die_with_parent(signal.SIGCONT)


def open_many_files() -> None:
    """Raise the limit of open files to the hard limit, for this process and its forks: each session needs a descriptor.

    The same number can be in flight in sockets. A native sandbox sets its own limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_readable(descriptor: int | socket.socket, seconds: float = 0.0) -> bool:
    """Return whether a descriptor becomes readable, or its other end is closed, within some seconds.

    `select.select` fails for descriptors from 1,024 on, as hundreds of kernels need them.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def move_high(descriptor: int) -> int:
    """Return a copy of a descriptor above all fixed positions.

    Raises:
        OSError: No more descriptors can be opened.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError as error:
        if error.errno == errno.EINVAL:  # this only says that the process may have no descriptor of such a number
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None
        raise


def place_descriptors(wanted: dict[int, int]) -> None:
    """Move descriptors to their positions, and close all others above standard error.

    Args:
        wanted: From the positions, which start at 3 without a gap, to the current descriptors.
    """
    # First move all above the positions, or one could overwrite another that is still to be moved.
    moved = {place: move_high(source) for place, source in wanted.items()}
    for place, source in moved.items():
        os.dup2(source, place, inheritable=False)
    close_descriptors(max(wanted) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def keep_only(wanted: dict[int, int]) -> None:
    """Move descriptors to their positions, close all others above standard error, and make standard input empty."""
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0, inheritable=True)
    place_descriptors(wanted)


def reset_child_signals() -> None:
    """Restore the default actions of SIGCHLD and SIGTERM, in a fork of an init or a zygote."""
    signal.set_wakeup_fd(-1)
    for number in (_SIGCHLD, _SIGTERM):
        _set_handler(number, _DEFAULT)


def close_descriptors(first: int, end: int = HIGH) -> None:
    os.closerange(first, end)


def forget_signals() -> None:
    """Reset signals to what programs expect, in a fork before exec."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):  # two of them are Python's
        signal.signal(number, signal.SIG_DFL)
    heed_signals()


def heed_signals() -> None:
    """Reset ignored signals that were inherited from the host: nohup ignores some, and so do shells in scripts for ``&``.

    Signals that Python itself ignores stay ignored.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def execute(command: list[str]) -> None:
    """Execute a program in place of this process. On failure, report the error on standard error and return."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        # An unreadable directory on the PATH is not the reason if no directory has the program.
        hidden = error.errno == errno.EACCES and "/" not in command[0] and shutil.which(command[0]) is None
        why = os.strerror(errno.ENOENT if hidden else error.errno or 0)
        os.write(2, f"{command[0]}: {why}\n".encode(errors="replace"))


def children(pid: int) -> list[int]:
    """Return the direct children of a process; empty if it has ended."""
    return _numbers_here(_children(name_in_proc(pid)))


def _children(name: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{name}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += map(int, _content(f"/proc/{name}/task/{thread}/children").split())
        except OSError:
            continue  # the thread has ended
    return found


def _content(path: str) -> bytes:
    """Read a file of /proc by four system calls; `open` makes nine, and an undo reads dozens of these files.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    finally:
        os.close(descriptor)


def descendants(pid: int, without: Collection[int] = ()) -> list[int]:
    """Return all descendants of a process, parents before their children.

    Args:
        pid: The process.
        without: Processes to leave out, with their descendants.
    """
    if sys.platform != "linux":
        return _descendants_by_ps(pid, without)
    own = has_own_proc()
    return _numbers_here(_descendants(name_in_proc(pid), without if own else {*map(name_in_proc, without)}))


def _descendants(name: int, without: Collection[int] = ()) -> list[int]:
    found = [child for child in _children(name) if child not in without]
    for process in found:  # grows during the iteration
        found += [child for child in _children(process) if child not in without]
    return found


def name_in_proc(pid: int) -> int:
    """Return the id of a process in /proc; 0 if unknown.

    It differs from the pid here if /proc belongs to an outer pid namespace, as for root in a sandbox of srt. Then only this
    process and its descendants are known.
    """
    own = int(os.readlink("/proc/self"))
    if own == os.getpid():
        return pid
    return own if pid == os.getpid() else {here: name for name, here in _names_and_numbers(_descendants(own))}.get(pid, 0)


def _numbers_here(names: list[int]) -> list[int]:
    """Translate ids in /proc to pids in this pid namespace."""
    if not names or name_in_proc(os.getpid()) == os.getpid():
        return names
    return [number for _, number in _names_and_numbers(names)]


def _names_and_numbers(names: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ids of processes in /proc, with their pids in this pid namespace."""
    depth = len(_numbers_by_namespace("self"))
    for name in names:
        if len(numbers := _numbers_by_namespace(name)) >= depth:  # otherwise it has ended
            yield name, numbers[depth - 1]


def _numbers_by_namespace(name: int | str) -> list[int]:
    """Return the pids of a process, from the namespace of /proc to its own; empty if it has ended."""
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            return next(([*map(int, line.split()[1:])] for line in file if line.startswith(b"NSpid:")), [])
    except OSError:
        return []


def _descendants_by_ps(pid: int, without: Collection[int] = ()) -> list[int]:
    table = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in pairs if its_parent == parent and child not in without]
    return found[1:]


_measurable: dict[int, tuple[str, int]] = {}
"""The pid of a process that hides from the code → its id in /proc, and its smaps_rollup, which was opened before it hid."""


def keep_measurable(pid: int) -> None:
    """Prepare to measure a process of the session that is about to hide (not dumpable). Later it cannot be opened."""
    name = str(name_in_proc(pid))
    with contextlib.suppress(OSError):  # it has ended, or there are too many: then its shared pages count in full
        _measurable[pid] = name, os.open(f"/proc/{name}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)


def forget_measuring(pid: int) -> None:
    """Close what `keep_measurable` opened."""
    if (held := _measurable.pop(pid, None)) is not None:
        os.close(held[1])


def memory_of_namespace(home: str, enough: int, trusted: Collection[int] = ()) -> int:
    """Return the memory of this pid namespace in bytes: its processes, and its files in memory.

    Pages that several processes share count once: a fork of pandas is not another pandas. That requires walking the page
    tables, 2 ms for a kernel that has loaded pandas, and all idle sessions are measured every few seconds. So first the
    resident pages of the processes are added up, which is cheap. Only a sum above the limit justifies the walk.

    Args:
        home: The session's home directory, which is in memory like /tmp.
        enough: If the exact number is certainly not above this, a larger estimate is returned.
        trusted: Processes that run no code of the session, and may hide.
    """
    files = sum({_file_system(path): _used(path) for path in ("/tmp", "/dev/shm", home)}.values())
    pids = _pids_of_namespace()
    files += sum(map(_kept_by_kernel, pids)) + system_v.held()
    at_most = files + sum(map(resident, pids)) + sockets.at_most()
    if at_most <= enough:
        return at_most
    return files + _shares(pids, {str(name_in_proc(pid)) for pid in trusted}) + sockets.buffered()


def _pids_of_namespace() -> list[str]:
    """Return the ids in /proc of this pid namespace's processes, called by its process 1."""
    own = name_in_proc(os.getpid())
    if own == os.getpid():
        return [entry for entry in os.listdir("/proc") if entry.isdigit()]
    found = [own]  # /proc of an outer namespace includes other processes
    for pid in found:
        found += _children(pid)
    return [*map(str, found)]


def memory_of_copies(pids: Iterable[int]) -> int:
    """Return the memory of some processes in bytes, including their part of shared pages."""
    return _shares([str(name_in_proc(pid)) for pid in pids])


def session_of(pid: int) -> int:
    """Return the session (setsid) of a process; 0 if it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def group_of(pid: int) -> int | None:
    """Return the process group of a process; None if it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def has_own_proc() -> bool:
    """Return whether /proc belongs to this pid namespace."""
    return name_in_proc(os.getpid()) == os.getpid()


def memory_of(pids: Iterable[int], enough: int, trusted: Collection[int] = ()) -> int:
    """Return the memory of some processes in bytes, for processes without their own namespace.

    Args:
        pids: The processes.
        enough: If the exact number is certainly not above this, a larger estimate is returned.
        trusted: As for `memory_of_namespace`.
    """
    names = [str(pid) for pid in pids]
    at_most = sum(map(memory_at_most, names))
    if at_most <= enough:
        return at_most
    return sum(map(_kept_by_kernel, names)) + _shares(names, {str(pid) for pid in trusted})


def memory_at_most(pid: str) -> int:
    """Return an upper bound of the memory of a process in bytes, quickly."""
    return _kept_by_kernel(pid) + resident(pid)


def _kept_by_kernel(pid: str) -> int:
    """Estimate the kernel memory of a process: page tables, and the objects of its descriptors."""
    try:
        # The size of this directory is the number of descriptors, since Linux 6.2.
        kept = os.stat(f"/proc/{pid}/fd").st_size * _OF_DESCRIPTOR
        with open(f"/proc/{pid}/status", "rb") as file:
            tables = file.read().partition(b"VmPTE:")[2].split(None, 1)
        return kept + (int(tables[0]) * 1024 if tables else 0)
    except OSError:
        return 0  # it has ended, or is not ours to inspect: init itself


def _file_system(path: str) -> int | None:
    """Return the id of a path's file system, such as /tmp; None if the path was removed."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _used(path: str) -> int:
    try:
        usage = os.statvfs(path)
    except OSError:
        return 0  # the session's code removed it
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize + _kept_beside_content(usage)


def _kept_beside_content(usage: os.statvfs_result) -> int:
    """Estimate the kernel memory of files in addition to their content: inodes, names, attributes."""
    return (usage.f_files - usage.f_ffree) * _OF_FILE


def resident(pid: str | int) -> int:
    """Return the resident bytes of a process, shared or not: never less than its proportional share.

    Args:
        pid: Its id in /proc.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0  # it has ended


def _shares(pids: Iterable[str], trusted: Collection[str] = ()) -> int:
    """Return the memory of processes, with shared pages counted once.

    A process of the session that hides (not dumpable) counts in full. Otherwise it would have no limit.
    """
    total, hidden = 0, []
    for pid in pids:
        try:
            total += _proportional_share(pid)
        except PermissionError:
            hidden += [pid] if pid not in trusted else []
    if hidden:
        time.sleep(_HIDDEN)
    return total + sum(map(_in_full, hidden))


def _in_full(pid: str) -> int:
    """Return the memory of a process that hid a moment ago."""
    try:
        return _proportional_share(pid)
    except PermissionError:
        return resident(pid)


def _proportional_share(pid: str) -> int:
    """Return the resident bytes of a process, less the part of its shared pages that counts for others; 0 if it has ended.

    Raises:
        PermissionError: It hides.
    """
    # The second, if the first is of a program that the process replaced by another one.
    found: list[int | str] = [held for name, held in _measurable.values() if name == pid]
    for rollup in (*found, f"/proc/{pid}/smaps_rollup"):
        try:
            with open(rollup, "rb", closefd=isinstance(rollup, str)) as file:
                file.seek(0)
                return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
        except PermissionError:
            raise
        except OSError:
            continue
    return 0


def stopped(pid: int) -> bool:
    """Return whether a process cannot run: each thread is stopped, or has ended."""
    return _all_threads_are(pid, _STOPPED)


def waiting(pid: int) -> bool:
    """Return whether a process waits for something: each thread sleeps, is stopped, or has ended."""
    return _all_threads_are(pid, _WAITING)


def stuck(pid: int) -> bool:
    """Return whether a killed process will not run again: each thread waits for a device, or has ended."""
    return _all_threads_are(pid, _STUCK)


def _all_threads_are(pid: int, states: frozenset[bytes]) -> bool:
    name = name_in_proc(pid)
    try:
        threads = os.listdir(f"/proc/{name}/task")
    except OSError:
        return True  # it has ended
    for thread in threads:
        try:
            with open(f"/proc/{name}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in states:
                    return False
        except OSError:
            continue  # the thread has ended
    return True


def stop_child(pid: int) -> bool:
    """Stop a child of this process. Return whether it has stopped. This waits for a few milliseconds at most."""
    kill([pid], signal.SIGSTOP)
    until = time.monotonic() + _PATIENCE
    moment = 0.0  # at first, only yield the CPU
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):  # all its threads: waitid(2)
                return True
        except ChildProcessError:
            return False
        if time.monotonic() > until:
            return False
        time.sleep(moment)
        moment = _MOMENT


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes. Ignore missing processes, and another user's."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # the second: what code started with sudo; an exception here would end the process with all its sessions


def reap() -> Iterator[tuple[int, int]]:
    """Yield the id and the wait status of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def wake_on_signals() -> int:
    """Make SIGCHLD and SIGTERM wake a poll. Return the descriptor to poll."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for number in (_SIGCHLD, _SIGTERM):
        _set_handler(number, lambda *_: None)
    _set_handler(_SIGINT, _IGNORE)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader
