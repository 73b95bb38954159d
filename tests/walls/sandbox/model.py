"""A model of what a plan's steps amount to, and an imaginary machine to plan for."""

from __future__ import annotations

from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.sandbox import Bind, Graft, Mask, Plan, Protect, ReadOnly, Sysctl, Tmpfs

FACTS = Facts(
    machine="x86_64",
    uid=1234,
    gid=1235,
    system=(("/bin", "usr/bin"), ("/usr", None)),
    etc=(("/etc/fonts", "/etc/fonts"), ("/etc/localtime", "/usr/share/zoneinfo/UTC")),
    home="/h/u",
)
WORKSPACE = "/w"
INTERPRETER = ("/py",)

NOTHING: frozenset[str] = frozenset()
READ = frozenset({"read"})
WRITE = frozenset({"read", "write"})


def inside(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def access(plan: Plan, path: str) -> frozenset[str]:
    """Return what a session can do with a path of the host, if it exists; later steps win."""
    found = READ if plan.everything else NOTHING
    for step in plan.steps:
        if isinstance(step, Sysctl) or not inside(path, step.target):
            continue
        match step:
            case Bind(access=kind):
                found = WRITE if kind == "rw" else READ
            case Graft():
                found = READ
            case Tmpfs() | Mask():
                found = NOTHING  # of a file system in memory: another of that name, which is not the host's
            case ReadOnly() | Protect():
                found &= READ
            case _:
                continue
    return found
