"""Control groups (cgroup v2): Linux limits the memory of all processes of a session together.

The files and rules are from the Linux kernel's documentation, "Control Group v2".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
from dataclasses import dataclass

from cellblock.walls.linux.syscall_numbers import number
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.policy import Resources

_CONTROLLERS = ("memory", "pids", "cpu")  # the first is required; the others are used if available
_NAME = re.compile(r"cellblock-(\d+)-(\d+)-\d+")
_numbers = itertools.count(1)

_BOOT = "boot with cgroup v2 alone, as systemd does by default: leave out systemd.unified_cgroup_hierarchy=0"
_DELEGATE = (
    "start it by 'systemd-run --user --scope COMMAND', or as a service with Delegate=yes and DelegateSubgroup=main; without "
    "systemd, as root, 'echo +memory +pids +cpu > /sys/fs/cgroup/cgroup.subtree_control'"
)


@dataclass(frozen=True, slots=True)
class Availability:
    """Where groups can be created.

    Attributes:
        directory: A group that contains this process and belongs to us, if any.
        why: Why no group is usable.
        remedy: How to get one.
    """

    directory: str | None
    why: str = ""
    remedy: str = ""


def find(proc: str = "/proc") -> Availability:
    """Find the nearest usable parent group of this process, without changes.

    Only leaves contain processes, so it cannot be this process's own group, unless that is the root. This process is never
    moved.

    Args:
        proc: The mount point of the proc file system.
    """
    try:
        top, own = _hierarchy(proc)
        if "memory" not in _words(f"{top}/cgroup.controllers"):
            return Availability(
                None, "cgroup v2 is mounted without the memory controller: cgroup v1 uses it, or it is disabled", _BOOT
            )
        if _pid(proc) not in _words(f"{own}/cgroup.procs"):
            return Availability(None, f"{own} is not the group of this process: it is in another cgroup namespace", _DELEGATE)
        return _nearest(top, own)
    except FileNotFoundError:
        return Availability(None, "there is no cgroup v2", _BOOT)
    except OSError as error:
        return Availability(None, f"cgroup v2 cannot be read: {error}", _DELEGATE)


def _nearest(top: str, own: str) -> Availability:
    if not _can_clone_into():
        return Availability(None, "clone3 is forbidden, usually by a container's filter", "allow clone3 in the container")
    directory = own
    while directory != top:
        if (limit := _limit_of(directory)) is not None:
            remedy = "set it on the parent slice of the groups, not on the scope or service"
            return Availability(None, f"{directory} has a {limit} that sibling groups would escape", remedy)
        directory = os.path.dirname(directory)
        if _lets_us(directory, is_top=directory == top):
            return Availability(directory)
    if own == top and _lets_us(top, is_top=True):
        return Availability(top)
    return Availability(None, f"no group above {own} is delegated to this user with the memory controller", _DELEGATE)


def _lets_us(directory: str, *, is_top: bool) -> bool:
    # The owner, not just any process with write access: a zygote's capabilities hold in its user namespace only.
    if os.stat(f"{directory}/cgroup.procs").st_uid != os.geteuid():
        return False
    if not all(os.access(path, os.W_OK) for path in (directory, f"{directory}/cgroup.procs")):
        return False
    if "memory" in _words(f"{directory}/cgroup.subtree_control"):
        return True
    # At the top it would be a change for the whole machine, or container.
    return (
        not is_top
        and "memory" in _words(f"{directory}/cgroup.controllers")
        and os.access(f"{directory}/cgroup.subtree_control", os.W_OK)
        and not _words(f"{directory}/cgroup.procs")
    )


def _limit_of(directory: str) -> str | None:
    """Return the name of a memory or CPU limit of a group, if one is set."""
    for name in ("memory.max", "memory.high", "cpu.max"):
        with contextlib.suppress(FileNotFoundError):
            if _words(f"{directory}/{name}")[:1] != ["max"]:
                return name
    return None


def _hierarchy(proc: str) -> tuple[str, str]:
    """Return the directories of the topmost visible group, and of this process's own."""
    with open(f"{proc}/self/cgroup") as file:
        path = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
    with open(f"{proc}/self/mountinfo") as file:
        mounts = [line.split(" ") for line in file if " - cgroup2 " in line]
    for mount in mounts:
        root, point = (re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), item) for item in mount[3:5])
        root = root.rstrip("/")
        if path is not None and (is_inside(path, root)):
            return point, (point + path[len(root) :]).rstrip("/")
    raise FileNotFoundError(errno.ENOENT, "this process is in no cgroup v2 hierarchy")


def _words(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()


def _write(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)


def _pid(proc: str) -> str:
    return os.readlink(f"{proc}/self")


def _started(pid: str) -> str | None:
    """Return the start time of a process, in ticks; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _can_clone_into() -> bool:
    """Return whether the system call to create a process in a group is allowed, by a test with invalid arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(number("clone3")), None, ctypes.c_long(0))
    return ctypes.get_errno() == errno.EINVAL


class Group:
    """One kernel's group, from before its first process starts until after its last process has ended."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self) -> int:
        """Return its descriptor, to create processes in it. The caller closes it."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def limit(self, resources: Resources) -> None:
        """Set the limits for all of its processes together.

        Raises:
            OSError: The memory cannot be limited.
        """
        _write(f"{self.path}/memory.oom.group", "1")
        _write(f"{self.path}/memory.max", str(resources.memory))
        for name, value in (("memory.swap.max", 0), ("pids.max", resources.processes), ("cpu.weight", resources.cpu)):
            with contextlib.suppress(FileNotFoundError):  # the controller is not delegated: other limits apply, see the plan
                _write(f"{self.path}/{name}", str(value))

    def used(self) -> int:
        """Return its memory use in bytes; 0 if unknown."""
        try:
            return int(_words(f"{self.path}/memory.current")[0])
        except (OSError, IndexError):
            return 0

    def ran_out_of_memory(self) -> bool:
        """Return whether Linux killed a process in it because of its memory limit."""
        try:
            words = _words(f"{self.path}/memory.events")
        except OSError:
            return False
        return int(dict(zip(words[::2], words[1::2], strict=False)).get("oom_kill", "0")) > 0

    def remove(self) -> bool:
        """Kill its processes, and remove it. Return whether it was removed; killed processes take a moment to end."""
        with contextlib.suppress(OSError):  # it was removed, or this is older than Linux 5.14, and init's end has killed all
            _write(f"{self.path}/cgroup.kill", "1")
        return _remove(self.path)


class Groups:
    """The groups of one host, inside its own group."""

    def __init__(self, place: str) -> None:
        """Choose a name that identifies the owner, and remove groups of killed hosts.

        Args:
            place: The directory from `find`.
        """
        self._place = place
        self._own = f"{place}/cellblock-{os.getpid()}-{_started('self')}-{next(_numbers)}"
        self._next = itertools.count(1)
        _sweep(place)

    def make(self) -> Group:
        """Create a group for one kernel.

        Raises:
            OSError: It cannot be created.
        """
        # Each time, because a sweep from another pid namespace may have removed an empty one as a dead host's.
        if not os.path.isdir(self._own):
            _enable(self._place)
            os.makedirs(self._own, exist_ok=True)
            _enable(self._own)
        path = f"{self._own}/{next(self._next)}"
        os.mkdir(path)
        return Group(path)

    def close(self) -> None:
        """Remove all groups, whose processes have ended."""
        for name in _subgroups(self._own):
            Group(f"{self._own}/{name}").remove()
        _remove(self._own)


def _enable(directory: str) -> None:
    """Enable the controllers in the subgroups of a group. If memory is already enabled, the group is not ours, and unchanged.

    Raises:
        OSError: The memory controller cannot be enabled.
    """
    path = f"{directory}/cgroup.subtree_control"
    if "memory" in _words(path):
        return
    for name in _CONTROLLERS:
        if name in _words(f"{directory}/cgroup.controllers"):
            try:
                _write(path, f"+{name}")
            except OSError:
                if name == "memory":
                    raise


def _sweep(place: str) -> None:
    """Remove groups of dead hosts.

    Nothing is killed: their processes end with their host, and an unknown host may live in another pid namespace.
    """
    for name in _subgroups(place):
        owner = _NAME.fullmatch(name)
        if owner is not None and _started(owner[1]) != owner[2]:
            for below in _subgroups(f"{place}/{name}"):
                _remove(f"{place}/{name}/{below}")
            _remove(f"{place}/{name}")


def _subgroups(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _remove(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
