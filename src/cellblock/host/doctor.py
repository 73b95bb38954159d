"""Reports what this machine supports and what a policy means on it, before anything starts."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import resource
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Any

from cellblock.errors import UnsupportedError
from cellblock.host import environment
from cellblock.host.checks import default_tier, fit_policy
from cellblock.host.trial import Trial, try_session
from cellblock.walls.linux import landlock
from cellblock.walls.sandbox import cgroups, landlock_rules, probe
from cellblock.walls.sandbox.gpus import ADVICE, known_gpus
from cellblock.walls.sandbox.namespaces import kernel_version
from cellblock.walls.sandbox.placeholders import names_to_keep
from cellblock.walls.sandbox.plan import HOME, make_plan
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.steps import STEPS
from cellblock.walls.sandbox.tiers import LANDLOCK, NATIVE, SRT, Tier
from cellblock.wire.sandbox import Bind, Graft, Mask, Protect, ReadOnly, Tmpfs


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: Subject.
        ok: Whether it passed.
        needed: Whether kernels or sandboxes depend on it.
        found: The finding, in words.
        remedy: How to fix a failure.
    """

    name: str
    ok: bool
    needed: bool
    found: str
    remedy: str = ""


_NAMES: dict[Tier, str] = {NATIVE: "native sandbox", LANDLOCK: "landlock sandbox", SRT: "sandbox-runtime"}


def examine(native: Trial, other: Trial | None = None, chosen: Tier = NATIVE) -> list[Check]:
    """Check this machine.

    Args:
        native: The result of trying a native sandbox.
        other: The result of trying a Landlock sandbox, if tried.
        chosen: The default tier here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    linux = sys.platform == "linux"
    return [
        Check(
            "operating system",
            sys.platform in ("linux", "darwin"),
            True,
            f"{platform.system()} {platform.release()} on {platform.machine()}",
            "" if sys.platform in ("linux", "darwin") else "use Linux, or WSL 2 on Windows",
        ),
        Check("Python", sys.version_info >= (3, 11), True, platform.python_version(), "use Python 3.11 or newer"),
        Check(
            "IPython",
            importlib.util.find_spec("IPython") is not None,
            True,
            "installed" if importlib.util.find_spec("IPython") else "not installed",
            f"{sys.executable} -m pip install ipython",
        ),
        Check(
            "launcher",
            linux,
            False,
            "zygote: kernels are forked" if linux else "spawn: kernels start an interpreter each",
            "nothing to do: it takes half a second more",
        ),
        _sandbox(native, needed=chosen is NATIVE),
        _landlock(landlock.missing(), other, needed=chosen is LANDLOCK),
        _memory(cgroups.find()),
        _gpus(),
        Check(
            _NAMES[SRT],
            shutil.which("srt") is not None,
            chosen is SRT,
            shutil.which("srt") or "not installed",
            "for isolate='srt' only: npm install -g @anthropic-ai/sandbox-runtime, and bubblewrap, socat and ripgrep",
        ),
        Check(
            "user",
            os.geteuid() != 0,
            False,
            "root" if os.geteuid() == 0 else "an ordinary user",
            "works, but an ordinary user is safer: code that escapes from a sandbox has that user's rights",
        ),
        Check(
            "open files",
            hard == resource.RLIM_INFINITY or hard >= 8192,
            False,
            f"{soft:,}, and up to {hard:,} on demand" if hard != resource.RLIM_INFINITY else f"{soft:,}, no upper limit",
            "raise the hard limit ('ulimit -Hn'): a thousand kernels need 5,000, and sessions get half at most",
        ),
        _shared(kernel_version(), os.statvfs("/proc/sys").f_flag if linux else 0, root=os.geteuid() == 0),
    ]


def _sandbox(trial: Trial, *, needed: bool) -> Check:
    name = _NAMES[NATIVE]
    if trial.ok:
        return Check(name, True, needed, f"a session was made, and ran a cell, in {trial.seconds:.1f} s")
    if trial.failure is None:
        return Check(name, False, needed, "no session can be made", trial.error)
    return Check(name, False, needed, f"it failed to {STEPS[trial.failure.step]}: {trial.failure.said}", "see below")


def _landlock(missing: tuple[str, ...], trial: Trial | None, *, needed: bool) -> Check:
    name = _NAMES[LANDLOCK]
    if missing:
        return Check(name, False, needed, "not possible", "; ".join(missing))
    if trial is None:
        return Check(name, True, needed, "the kernel has what isolate='landlock' needs")
    found = "a session was made, and ran a cell, with isolate='landlock'" if trial.ok else "no session can be made"
    return Check(name, trial.ok, needed, found, trial.error)


_INOTIFY = "inotify"
_DIVIDED = {
    _INOTIFY: (5, 12),
    "processes, pending signals and message queues of this user": (5, 14),
}
"""What sessions cannot use up for others, and from which version of Linux on."""
_OF_ROOT = {"processes of root's sessions": (6, 14)}
"""The same, for a host that is root."""


def _shared(version: tuple[int, int], mounted: int, *, root: bool) -> Check:
    """Return which per-user limits native sandboxes share with other processes.

    Args:
        version: Version of Linux.
        mounted: Mount flags of /proc/sys.
        root: Whether the host is root.
    """
    reasons = {
        what: f"Linux {least[0]}.{least[1]}" if version < least else ""
        for what, least in {**_DIVIDED, **(_OF_ROOT if root else {})}.items()
    }
    if mounted & os.ST_RDONLY and not reasons[_INOTIFY]:
        reasons[_INOTIFY] = "/proc/sys is read-only here"
    missing = [f"{what} ({reason})" for what, reason in reasons.items() if reason]
    divided = [what for what, reason in reasons.items() if not reason]
    counted = "counted: descriptors in messages, epoll watches, open files"
    found = "; ".join([f"{kind}: {', '.join(what)}" for kind, what in (("undivided", missing), ("divided", divided)) if what])
    remedy = "one session can use up what is undivided for all programs of this user"
    return Check("limits of the user", not missing, False, f"{found}; {counted}", remedy)


def _weaker_proc(trial: Trial) -> Check:
    found = "a session works with it" if trial.ok else f"a session does not work with it either: {trial.error}"
    return Check("weaker /proc", trial.ok, False, found, "see below")


def _memory(place: cgroups.Availability) -> Check:
    if place.directory is not None:
        return Check("memory", True, False, f"limited by cgroup v2, one group for each kernel in {place.directory}")
    found = "limited by RLIMIT_DATA, and a look at all processes of a session four times a second"
    return Check("memory", False, False, found, f"{place.why}. To use cgroup v2 instead: {place.remedy}")


def _gpus() -> Check:
    there = os.path.exists("/dev/nvidiactl")
    try:
        known = known_gpus()
    except UnsupportedError as error:
        return Check("GPUs", False, False, "their description cannot be read", str(error))
    if known or not there:
        return Check("GPUs", True, False, f"sessions can have {', '.join(known)}" if known else "none of NVIDIA")
    return Check("GPUs", False, False, "a driver of NVIDIA, but no CDI file", ADVICE)


async def report() -> dict[str, Any]:
    """Try a session with the default policy, check this machine, and return the findings as JSON data."""
    chosen = default_tier()
    other: Trial | None = None
    if chosen is LANDLOCK:
        native, other = await asyncio.gather(try_session("native"), try_session("landlock"))
    else:
        native = await try_session("native")
        other = None if native.ok else await try_session("landlock")
    checks = examine(native, other, chosen)
    if native.failure is not None and native.failure.step == "proc":
        checks.append(_weaker_proc(await try_session("native", Policy(weaker_proc=True))))
    return {
        "ok": all(check.ok for check in checks if check.needed),
        "isolate": chosen.name,
        "sandbox": next(check.ok for check in checks if check.name == _NAMES[chosen]),
        "checks": [asdict(check) for check in checks],
        "session": native.as_data(),
    }


def explain_policy(policy: Policy, workspace: str | os.PathLike[str] | None = None, tier: Tier = NATIVE) -> dict[str, Any]:
    """Return what a policy means on this machine: what is readable, writable, masked, reachable and limited.

    Args:
        policy: The policy.
        workspace: The session's working directory; by default the current one.
        tier: One of cellblock's own sandboxes.

    Raises:
        InvalidInputError: The workspace is invalid, or the sandbox does not support the policy there.
    """
    directory = str(environment.check_directory("workspace", workspace or os.getcwd()))
    policy = fit_policy(policy, tier)
    # Without mounts, the session's /tmp is a directory on disk without a limit.
    files = _in_landlock(policy, directory) if tier.private_directories else _in_namespaces(policy, directory)
    limits = asdict(policy.resources)
    if tier.private_directories:
        del limits["tmp"]
    return {
        "isolate": tier.name,
        **files,
        "reachable": [*policy.network.allow, *policy.network.http],
        "unreachable": list(policy.network.deny),
        "devices": list(policy.devices),
        "weaker_proc": policy.weaker_proc,
        "limits": limits,
    }


def explainable_tier() -> Tier:
    """Return the default tier, or the native one if another program interprets the default one's policies.

    Raises:
        InvalidInputError: As for `default_tier`.
    """
    tier = default_tier()
    return tier if tier.ours else NATIVE


def _in_landlock(policy: Policy, directory: str) -> dict[str, Any]:
    """Return the accessible parts of the file system in a Landlock sandbox."""
    allowed = landlock_rules.rules(policy, probe.look(), directory, probe.interpreter_directories())
    there = [item for item in allowed if os.path.lexists(item.path)]
    return {
        "readable": sorted(item.path for item in there if item.access != "write"),
        "writable": [item.path for item in there if item.access == "write"],
        "private": ["$TMPDIR and $HOME, two directories of its own on disk"],
        "read_only": [],
        "reserved": [],
        "masked": [],
        "home": "$HOME",
    }


def _in_namespaces(policy: Policy, directory: str) -> dict[str, Any]:
    """Return the visible parts of the file system in a native sandbox."""
    plan = make_plan(policy, probe.look(), directory, probe.interpreter_directories())
    steps = plan.steps
    readable = [step.target for step in steps if isinstance(step, Graft)]
    readable += [step.target for step in steps if isinstance(step, Bind) and step.access == "ro"]
    return {
        "readable": ["/ (everything but what is masked)"] if plan.everything else sorted(set(readable)),
        "writable": [step.target for step in steps if isinstance(step, Bind) and step.access == "rw"],
        "private": [step.target for step in steps if isinstance(step, Tmpfs)],
        "read_only": [
            *(step.target for step in steps if isinstance(step, ReadOnly) and not step.target.startswith("/proc/")),
            *(step.target for step in steps if isinstance(step, Protect) and os.path.lexists(step.target)),
        ],
        "reserved": [
            path
            for top, names in plan.reserve.items()
            for name in names_to_keep(top, names)
            if not os.path.lexists(path := f"{top}/{name}")
        ],
        "masked": [step.target for step in steps if isinstance(step, Mask) and not step.target.startswith("/proc/")],
        "home": HOME,
    }
