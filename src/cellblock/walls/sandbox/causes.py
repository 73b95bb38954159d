"""The likely cause of a failed step, and remedies. For `cellblock doctor` and every `LaunchError`."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

from cellblock.walls.sandbox.steps import STEPS, Failure
from cellblock.walls.sandbox.surroundings import NO_LIMIT, Surroundings, look_around

_LEAST_FILES = 256
_LEAST_PROCESSES = 32
"""The minimum for one session, with this program, its zygote and some reserve."""

_FORBIDDEN = (errno.EPERM, errno.EACCES)


@dataclass(frozen=True, slots=True)
class Way:
    """A remedy.

    Attributes:
        what: Its description, and its cost.
        line: A line to copy: a command, or a setting.
    """

    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Cause:
    """The likely cause of a failure.

    Attributes:
        why: The cause, as a clause.
        ways: The remedies, best first.
    """

    why: str
    ways: tuple[Way, ...]


def find_cause(failure: Failure, around: Surroundings | None = None) -> Cause:
    """Return the likely cause of a failure.

    Args:
        failure: The failure.
        around: The surroundings of this program; by default examined now.
    """
    around = look_around() if around is None else around
    return next(cause for rule in _RULES if (cause := rule(failure, around)) is not None)


def tell(what: str, failure: Failure, around: Surroundings | None = None) -> str:
    """Return an error message with the failure, the likely cause, short remedies, and where to learn more.

    Args:
        what: The failed operation, as a clause such as ``no kernel can be started now``.
        failure: The failed step, and the system's error.
        around: As for `find_cause`.
    """
    cause = find_cause(failure, around)
    # Not here: code may have caused the error, and the reader may follow the advice. `cellblock doctor` lists all remedies.
    lines = [way.line for way in cause.ways[:3] if way is not _LET_CONTAINER]
    ways = f" Solutions: {'; or '.join(lines)}." if lines else ""
    step = f" to {STEPS[failure.step]}" if failure.step in STEPS else ""
    return f"{what}: it failed{step} ({failure.said}). {cause.why}.{ways} 'cellblock doctor' says more"


_AFTER_SANDBOX = ("cell", "python", "worker")
"""Steps that nothing around this program forbids: the session's directory, or its code, may be the cause"""

# -- rules: the first that applies gives the cause -----------------------------------------------------------------------


def _other_kernel(_: Failure, around: Surroundings) -> Cause | None:
    if around.platform == "gVisor":
        why = "This runs in gVisor, which has no namespaces and mounts for programs inside of it"
        return Cause(why, (Way("run the container with the usual runtime", "docker run --runtime=runc IMAGE"), _LET_CONTAINER))
    if around.platform == "WSL 1":
        why = "This is WSL 1, which emulates Linux without namespaces"
        return Cause(why, (Way("move the distribution to WSL 2, in PowerShell", "wsl --set-version DISTRIBUTION 2"), _SRT))
    return None


def _old_kernel(failure: Failure, around: Surroundings) -> Cause | None:
    if around.kernel >= (5, 12) and failure.code != errno.ENOSYS:
        return None
    if around.kernel >= (5, 12):
        if around.filtered and around.container:
            return None  # a filter can pretend that a call does not exist
        return Cause("The kernel lacks a system call that the sandbox needs", (_NEWER, _SRT))
    major, minor = around.kernel
    return Cause(f"Linux {major}.{minor} is too old: the sandbox needs Linux 5.12 or newer", (_NEWER, _SRT))


def _too_few_files(failure: Failure, around: Surroundings) -> Cause | None:
    few = NO_LIMIT < around.open_files < _LEAST_FILES
    # ETOOMANYREFS: the limit also applies to descriptors in flight between all of this user's processes.
    met = failure.code in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
    if not met and not (few and failure.code in (0, errno.EINVAL)):
        return None
    if failure.code == errno.ENFILE:
        return Cause(
            "The whole machine has too many open files", (Way("allow more of them", "sudo sysctl -w fs.file-max=1000000"),)
        )
    limit = f"{around.open_files:,}" if around.open_files != NO_LIMIT else "an unknown number of"
    why = f"This program has a limit of {limit} open files, and too few are left"
    return Cause(f"{why}; one session needs about {_LEAST_FILES}", _raise_limit(around, "nofile", "LimitNOFILE", 65536))


def _too_few_processes(failure: Failure, around: Surroundings) -> Cause | None:
    few = NO_LIMIT < around.processes < _LEAST_PROCESSES
    if failure.code != errno.EAGAIN and not (few and failure.code == 0):
        return None
    if NO_LIMIT < around.group_processes <= around.processes or around.processes == NO_LIMIT != around.group_processes:
        why = f"This container or service has reached its limit of {around.group_processes:,} processes and threads"
        return Cause(why, (Way("allow it more", _container_option(around, "--pids-limit=4096")), _service("TasksMax", 4096)))
    limit = "the limit" if around.processes == NO_LIMIT else f"the limit of {around.processes:,}"
    why = f"This user has reached {limit} on processes and threads"
    return Cause(why, _raise_limit(around, "nproc", "LimitNPROC", 4096))


def _no_memory(failure: Failure, _: Surroundings) -> Cause | None:
    if failure.code != errno.ENOMEM:
        return None
    ways = (Way("see what there is", "free -m"), Way("give the container more", "docker run --memory=2g IMAGE"))
    return Cause("There is no memory left", ways)


def _setting(failure: Failure, around: Surroundings) -> Cause | None:
    if failure.code not in (*_FORBIDDEN, errno.ENOSPC, errno.EUSERS) or failure.step == "proc":
        return None
    if failure.code == errno.EUSERS:
        return Cause("User namespaces are nested too deeply here: the kernel allows 32 levels", (_LET_CONTAINER,))
    forbidding = sorted(around.forbidding)
    counts = [name for name in forbidding if name.startswith("user.max_")]
    if counts or failure.code == errno.ENOSPC:
        name = counts[0] if counts else "user.max_user_namespaces"
        why = f"The setting {name} is 0" if counts else "This user has as many namespaces as the settings user.max_* allow"
        line = f"sudo sysctl -w {name}=10000"
        return Cause(why, (Way("allow namespaces on this machine, as root", line), *_without_namespaces(around)))
    if "kernel.unprivileged_userns_clone" in forbidding:
        line = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
        way = Way("allow them on this machine, as root", line)
        return Cause("This system forbids user namespaces to ordinary users", (way, *_without_namespaces(around)))
    if forbidding and not around.root:
        return _apparmor_of_ubuntu(around)
    return None


def _apparmor_of_ubuntu(around: Surroundings) -> Cause:
    program = os.path.realpath(sys.executable)
    profile = f"abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile cellblock {program} flags=(unconfined) {{ userns, }}\\n"
    return Cause(
        "AppArmor restricts user namespaces for ordinary users, as on Ubuntu since 23.10",
        (
            Way(
                "allow them to this interpreter permanently, as root",
                f"printf {shlex.quote(profile)} | sudo tee /etc/apparmor.d/cellblock && "
                "sudo apparmor_parser -r /etc/apparmor.d/cellblock",
            ),
            Way(
                "allow them to all programs, until the next boot",
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            *_without_namespaces(around),
        ),
    )


def _no_proc(failure: Failure, around: Surroundings) -> Cause | None:
    if around.proc or failure.code not in (errno.ENOENT, *_FORBIDDEN):
        return None
    where = "in this chroot" if not around.container else "here"
    ways = (Way("mount it, as root", "mount -t proc proc /proc"), Way("if this is a chroot, enter it by pivot_root", _ENTER))
    return Cause(f"/proc is not mounted {where}, and without it no session can be made", ways)


def _chroot(failure: Failure, around: Surroundings) -> Cause | None:
    if failure.step != "user namespace" or failure.code not in _FORBIDDEN:
        return None
    if not around.chroot and (around.filtered or around.apparmor or around.container):
        return None
    ways = (
        Way("enter the directory by pivot_root instead of chroot, as root; bubblewrap does that", _ENTER),
        *_without_namespaces(around),
    )
    what = "This is a chroot" if around.chroot else "No filter and no setting forbids it, so this is probably a chroot"
    return Cause(f"{what}, in which the kernel forbids user namespaces", ways)


def _masked_proc(failure: Failure, around: Surroundings) -> Cause | None:
    if failure.step != "proc" or failure.code not in _FORBIDDEN:
        return None
    shown = ", ".join(around.masked[:4]) + (", …" if len(around.masked) > 4 else "")
    masked = f"masks parts of /proc ({shown})" if shown else "masks or hides parts of /proc"
    who = "This container" if around.container else "A program around this one"
    why = f"{who} {masked}, so the kernel forbids mounting a new one"
    return Cause(why, (*_unmask(around), _WEAKER, *_without_namespaces(around)))


def _container(failure: Failure, around: Surroundings) -> Cause | None:
    if failure.code not in (*_FORBIDDEN, errno.ENOSYS) or not (around.container or around.filtered or around.apparmor):
        return None
    if failure.said.startswith("cannot open") or failure.step in _AFTER_SANDBOX:
        return None
    name = f"{around.container}'s" if around.container not in ("", "container") else "the container's"
    if around.filtered:
        why = f"A system-call filter forbids it, most likely {name} default one"
    elif around.apparmor:
        why = f"The AppArmor profile {around.apparmor} forbids it, most likely {name} default one"
    else:
        why = "The container around this program forbids it"
    return Cause(why, (*_unmask(around), *_without_namespaces(around)))


def _other_listener(failure: Failure, _: Surroundings) -> Cause | None:
    if failure.step != "confinement" or failure.code != errno.EBUSY:
        return None
    why = (
        "A program around this one handles system calls by its own filter, as LXD and Incus do for containers. The "
        "kernel allows one such filter only, and isolate='landlock' needs it"
    )
    off = Way("switch that off, outside the container", "incus config unset CONTAINER security.syscalls.intercept.mknod")
    return Cause(why, (off, Way("use the native sandbox, which needs none", "CELLBLOCK_ISOLATE=native")))


def _unreadable(failure: Failure, around: Surroundings) -> Cause | None:
    if failure.code != errno.EACCES or not failure.said.startswith("cannot open"):
        return None
    path = failure.said.removeprefix("cannot open ").partition(":")[0]
    also = ", and in a sandbox root has no more rights than other users" if around.root else ""
    ways = (
        Way("find the directory that this user cannot enter", f"namei -l {shlex.quote(path)}"),
        Way("use an interpreter in a place that all users can read", "python3 -m venv /opt/venv"),
    )
    return Cause(f"A directory that leads to {path} cannot be entered by this user{also}", ways)


def _asked_for(failure: Failure, _: Surroundings) -> Cause | None:
    if failure.step != "files" or failure.code in (*_FORBIDDEN, errno.ENOSYS):
        return None
    way = Way("see the resulting policy", "cellblock policy show FILE --workspace DIRECTORY")
    return Cause("It may be the working directory, or a path that the policy names", (way,))


def _unknown(failure: Failure, around: Surroundings) -> Cause:
    if failure.step == "group":
        why = "The directory in which control groups are made has changed since this program started, or has a limit on groups"
        return Cause(why, (Way("find out which one", "cellblock doctor"),))
    if failure.step in ("confinement", *_AFTER_SANDBOX) or failure.code not in (*_FORBIDDEN, errno.ENOSYS):
        return Cause("The cause is not known", (Way("report the output of this command", "cellblock doctor --json"),))
    why = "The cause is not known; a filter, a security module or a chroot around this program may forbid it"
    return Cause(why, (*_unmask(around), *_without_namespaces(around)))


_RULES: tuple[Callable[[Failure, Surroundings], Cause | None], ...] = (
    _other_kernel,
    _old_kernel,
    _too_few_files,
    _too_few_processes,
    _no_memory,
    _setting,
    _no_proc,
    _chroot,
    _masked_proc,
    _other_listener,
    _unreadable,
    _container,
    _asked_for,
    _unknown,
)

# -- remedies ------------------------------------------------------------------------------------------------------------

_ENTER = "bwrap --bind DIRECTORY / --dev /dev --proc /proc COMMAND"
_NEWER = Way("use a newer kernel", "uname -r")
_SRT = Way("use Anthropic's sandbox-runtime instead (docs/srt.md)", "CodeExecutor(isolate='srt')")
_LET_CONTAINER = Way(
    "use the surrounding container as the sandbox: sessions are then not isolated from this program and from each other",
    "CodeExecutor(sandbox=False)",
)
_WEAKER = Way(
    "give sessions this container's own /proc: they then see its processes and their command lines",
    '"enableWeakerNestedSandbox": true in sandbox_config, or Policy(weaker_proc=True)',
)
_LANDLOCK = Way(
    "use the sandbox without namespaces, which guarantees less: no network, and protected names such as .git in the "
    "workspace can be changed (docs/landlock.md)",
    "export CELLBLOCK_ISOLATE=landlock",
)
_UNMASK = {
    "Docker": "docker run --security-opt seccomp=deploy/seccomp.json --security-opt systempaths=unconfined IMAGE",
    "podman": "podman run --security-opt seccomp=deploy/seccomp.json --security-opt unmask=ALL IMAGE",
    "Kubernetes": (
        "securityContext: {procMount: Unmasked, seccompProfile: {type: Localhost, localhostProfile: cellblock.json}}, with "
        "hostUsers: false"
    ),
}


def _unmask(around: Surroundings) -> tuple[Way, ...]:
    line = _UNMASK.get(around.container, _UNMASK["Docker"])
    if around.apparmor and around.container != "Kubernetes":
        line = line.replace(" IMAGE", " --security-opt apparmor=unconfined IMAGE")
    what = "let the container's own programs make sandboxes, with cellblock's filter (deploy/) and all of /proc"
    return (Way(what, line),)


def _without_namespaces(around: Surroundings) -> tuple[Way, ...]:
    last = _LET_CONTAINER if around.container else _SRT
    return (_LANDLOCK, last) if around.landlock else (last,)


def _raise_limit(around: Surroundings, name: str, service: str, value: int) -> tuple[Way, ...]:
    shell = Way("raise the limit of this shell", f"sudo prlimit --pid $$ --{name}={value}:{value}")
    if around.container:
        return (Way("raise the limit of the container", _container_option(around, f"--ulimit {name}={value}:{value}")), shell)
    lasting = Way(
        "raise it permanently, for one user", f"echo 'USER - {name} {value}' | sudo tee -a /etc/security/limits.conf"
    )
    return (shell, _service(service, value), lasting)


def _service(name: str, value: int) -> Way:
    return Way("or in the unit of a systemd service", f"{name}={value}")


def _container_option(around: Surroundings, option: str) -> str:
    return f"{'podman' if around.container == 'podman' else 'docker'} run {option} IMAGE"
