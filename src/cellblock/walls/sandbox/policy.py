"""The policy of a sandbox: immutable data that people can read, narrow and compare.

A policy is read from JSON with the keys of sandbox-runtime (``network``, ``filesystem``, …) and our own (``resources``,
``defaults``). A missing key keeps the default, so a setting widens only what it names. A `plan` enforces the policy on a
machine.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from cellblock.errors import InvalidInputError, shown
from cellblock.model.plain import Plain
from cellblock.walls.sandbox.narrowing import Denials, Hosts, Paths
from cellblock.walls.sandbox.settings import Section, check_list, read_settings

MIB = 1024 * 1024
MEMORY_BOUNDS = (64 * MIB, 2**50)
"""The least and the most bytes of memory that a session may use."""

# Files in a home directory that programs read when they start.
START_UP = (
    ".gitconfig",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_aliases",
    ".profile",
    ".zlogin",
    ".zshrc",
    ".zprofile",
    ".zshenv",
    ".ripgreprc",
)

# Files in a project that tools read. The tools ask before they obey a new file, or read it only if something else refers to
# it. Some fail if they find a directory instead.
PROJECT = (
    ".devcontainer",
    ".zed",
    ".envrc",
    ".husky",
    ".npmrc",
    ".yarnrc.yml",
    ".nvim.lua",
    ".exrc",
    "mise.toml",
    ".pre-commit-config.yaml",
)

# Read-only, or blocked, at the top of every writable directory: each can make a program on the host run its contents, long
# after the session.
PROTECTED = (
    # All of it: config and hooks run programs, and so do the targets of its commondir, modules and worktrees.
    ".git",
    ".gitmodules",
    ".vscode",
    ".idea",
    ".claude",
    ".mcp.json",
    ".cursor",
    ".gemini",
    ".codex",
    *PROJECT,
    *START_UP,
)

# Protected names that sessions may create if they do not exist. Git must work in a workspace. Start-up files are only read in
# home directories, and a directory in their place would do harm there: git fails.
MAKEABLE = frozenset((".git", *PROJECT, *START_UP))

# Not readable at the top of the workspace. All but ``.env`` matter only if a home directory is the workspace.
ENV = ".env"
SECRET = (ENV, ".ssh", ".aws", ".gnupg", ".netrc", ".kube", ".docker", ".azure", ".config/gcloud", ".pypirc", ".npmrc")

SANDBOX_RUNTIME = "sandbox-runtime"
DEFAULTS = ("cellblock", SANDBOX_RUNTIME)
"""Whose defaults the missing keys of settings keep."""


_DEVICE = re.compile(r"gpu:[a-z0-9](?:[\w.:-]{0,98}[a-z0-9])?", re.ASCII | re.IGNORECASE)


def is_complete(data: object) -> bool:
    """Return whether settings contain all keys about files that sandbox-runtime requires, and so were written for it."""
    files = data.get("filesystem") if isinstance(data, dict) else None
    return isinstance(files, dict) and {"denyRead", "allowWrite", "denyWrite"} <= files.keys()


@dataclass(frozen=True, slots=True)
class Filesystem:
    """The files that a session can see and change. Relative paths are relative to the workspace, ``~`` is the user's home.

    Attributes:
        read: Readable paths, in addition to the system, the interpreter and the workspace. ``/`` is everything.
        write: Writable paths. ``.`` is the workspace.
        deny_read: Masked paths, except paths inside them in `read` and `write`. ``/`` cancels ``/`` in `read`. The usual names
            of secrets (`SECRET`) are also masked at the top of each directory in `read` and `write`, and of the home
            directory.
        deny_write: Paths that are read-only, or cannot be created, even if `write` allows it.
        home_is_workspace: Whether ``/home/user`` is another name of the workspace, for programs that need that path. The home
            directory is then in ``/tmp``. Native sandbox only.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = (".",)
    deny_read: tuple[str, ...] = SECRET
    deny_write: tuple[str, ...] = PROTECTED
    home_is_workspace: bool = field(default=False, kw_only=True)

    @property
    def everything(self) -> bool:
        """Whether the whole file system is readable, except masked paths."""
        return "/" in self.read and "/" not in self.deny_read


@dataclass(frozen=True, slots=True)
class Network:
    """The hosts that a session can reach, through a proxy of the host.

    Attributes:
        allow: Patterns ``host[:port]``; a host may begin with ``*.``. Without patterns, there is no network.
        deny: Patterns that override `allow`.
        ask: Whether to ask about other hosts. Without a callback, they are refused.
        http: The only requests that the named hosts get, such as ``GET api.example.org/**``; ``ask`` or ``deny`` may precede
            them (docs/egress.md). These hosts become allowed. Native sandbox only.
        within: Further lists like `http`, of broader policies. Each must allow a request, too.
        trust: A file of certificates in PEM that sessions and the proxy trust in addition to this machine's, for example of a
            company. Native sandbox only.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: bool = False
    http: tuple[str, ...] = field(default=(), kw_only=True)
    within: tuple[tuple[str, ...], ...] = field(default=(), kw_only=True)
    trust: str = field(default="", kw_only=True)

    @property
    def judges(self) -> bool:
        """Whether there are request lines."""
        return bool(self.http or self.within)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resource limits of a session.

    Attributes:
        memory: Memory of all processes together, in bytes.
        processes: Number of processes and threads.
        open_files: Number of open files of each process.
        tmp: Size of each of /tmp, /dev/shm and the home directory, in bytes.
        file_size: Size of one file, in bytes.
        cpu: Share of CPU time while other sessions compete, as a weight from 1 to 100.
        packages: Size of the session's installed packages on disk, in bytes. 0 forbids installing.
    """

    memory: int = 4096 * MIB
    processes: int = 512
    open_files: int = 4096
    tmp: int = 512 * MIB
    file_size: int = 8192 * MIB
    cpu: int = 100
    packages: int = 8192 * MIB


@dataclass(frozen=True, slots=True)
class Policy(Plain):
    """The permissions of a session: what it may see, change, reach and use.

    Attributes:
        filesystem: The files that it can see and change.
        network: The hosts that it can reach.
        resources: Its resource limits.
        unix_sockets: Whether it can connect to sockets in the file system, if all of it is readable.
        weaker_proc: Whether the sandbox may use the outer container's /proc, read-only, if Linux does not allow it one of its
            own. The session then sees that container's processes.
        devices: The GPUs that a session can use, such as ``gpu:0``. Native sandbox only.
    """

    filesystem: Filesystem = field(default_factory=Filesystem)
    network: Network = field(default_factory=Network)
    resources: Resources = field(default_factory=Resources)
    unix_sockets: bool = False
    weaker_proc: bool = False
    devices: tuple[str, ...] = field(default=(), kw_only=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a JSON file.

        Args:
            path: The file (see `parse`).

        Raises:
            InvalidInputError: The file cannot be read, is not valid JSON, or has an invalid key or value.
        """
        return cls.parse(read_settings(path), str(path))

    @classmethod
    def parse(cls, data: object, source: str = "the sandbox configuration") -> Self:
        """Create a policy from settings with the keys of sandbox-runtime, ``resources`` and ``defaults``.

        A missing key keeps cellblock's default. With ``"defaults": "sandbox-runtime"`` it keeps sandbox-runtime's instead:
        everything is readable except ``denyRead``, and nothing is writable except ``allowWrite``.

        Args:
            data: The parsed JSON.
            source: Its name in errors.

        Raises:
            InvalidInputError: A key is unknown, or a value has the wrong type. The message names it.
        """
        top = Section(source, "", data, _TOP)
        files = Section(source, "filesystem.", top.get("filesystem", {}), _FILES)
        network = Section(source, "network.", top.get("network", {}), _NETWORK)
        resources = Section(source, "resources.", top.get("resources", {}), _RESOURCES)
        fields = {_RESOURCES[key]: resources.integer(key) for key in _RESOURCES if key in resources.data}
        writes_git = files.boolean("allowGitConfig")
        opens = top.choice("defaults", DEFAULTS) == SANDBOX_RUNTIME
        written = files.texts("allowWrite") if opens or "allowWrite" in files.data else Filesystem().write
        return cls(
            Filesystem(
                # Exceptions in denied paths become the same list.
                read=(*(("/",) if opens else ()), *files.texts("allowRead")),
                write=written,
                deny_read=(*files.texts("denyRead"), *((ENV,) if opens else SECRET)),
                deny_write=(*files.texts("denyWrite"), *(name for name in PROTECTED if name != ".git" or not writes_git)),
            ),
            Network(
                network.texts("allowedDomains"),
                network.texts("deniedDomains"),
                network.boolean("ask"),
                http=network.texts("http"),
                trust=network.text("trust"),
            ),
            Resources(**fields),
            unix_sockets=network.boolean("allowAllUnixSockets"),
            weaker_proc=top.boolean("enableWeakerNestedSandbox"),
            devices=top.texts("devices"),
        ).checked()

    def widened(
        self,
        memory: int | None = None,
        read: Iterable[str] = (),
        write: Iterable[str] = (),
        hosts: Iterable[str] = (),
        http: Iterable[str] = (),
        devices: Iterable[str] = (),
    ) -> Self:
        """Return the policy with another memory limit, and with more paths, hosts and devices.

        Args:
            memory: Memory limit in bytes; None for this policy's.
            read: More readable paths.
            write: More writable paths.
            hosts: More patterns of hosts that can be reached.
            http: More request lines.
            devices: More devices.
        """
        files, network, resources = self.filesystem, self.network, self.resources
        return replace(
            self,
            filesystem=replace(files, read=_union(files.read, read), write=_union(files.write, write)),
            network=replace(network, allow=_union(network.allow, hosts), http=_union(network.http, http)),
            resources=resources if memory is None else replace(resources, memory=memory),
            devices=_union(self.devices, devices),
        )

    @property
    def rules(self) -> Filesystem:
        """The files that a session can see and change, for code outside the sandbox that respects the policy."""
        return self.filesystem

    @property
    def shown(self) -> tuple[str, ...]:
        """Paths that can be read even if a parent directory is masked."""
        return (".", *self.filesystem.read, *self.filesystem.write)

    def denied_like(self, names: Iterable[str], workspace: str, home: str) -> re.Pattern[str] | None:
        """Return a pattern of absolute paths that some denials match in addition to their own paths; here, None.

        Args:
            names: The denials.
            workspace: The base of relative ones.
            home: The meaning of ``~``.
        """
        return None

    def checked(self) -> Self:
        """Validate the types and limits, and return the policy.

        Raises:
            InvalidInputError: A value is invalid.
        """
        for name, kind in (("filesystem", Filesystem), ("network", Network), ("resources", Resources)):
            if not isinstance(part := getattr(self, name), kind):
                raise InvalidInputError(f"{name} must be a {kind.__name__}, not {part!r}: Policy.parse() takes a dict")
        for part in (self.filesystem, self.network):
            for item in dataclasses.fields(part):
                if item.type not in ("bool", "str", "tuple[tuple[str, ...], ...]"):
                    check_list(item.name, getattr(part, item.name))
        for lines in self.network.within:
            check_list("within", lines)
        check_list("devices", self.devices)
        if wrong := [name for name in self.devices if not _DEVICE.fullmatch(name)]:
            raise InvalidInputError(f"devices: {shown(wrong[0])} is not a device: name GPUs, such as 'gpu:0'")
        if self.devices and self.filesystem.everything and not self.unix_sockets:
            raise InvalidInputError(
                "devices: GPUs need local sockets, which a session that reads the whole file system does not have: read less "
                "than '/', or add allowAllUnixSockets"
            )
        if not isinstance(self.network.trust, str):
            raise InvalidInputError(f"trust must be the path of a file, not {self.network.trust!r}")
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self.resources, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidInputError(f"resources.{name} must be an integer from {least} to {most}, not {value!r}")
        return self

    def narrow(self, other: Policy) -> Policy:
        """Return a policy that allows only what both allow.

        Args:
            other: The requested policy of one session.

        Raises:
            InvalidInputError: It would allow more than this one. The message names what.
        """
        self._check_narrower(other)
        limits = {}
        for item in dataclasses.fields(Resources):
            limits[item.name] = min(getattr(self.resources, item.name), getattr(other.resources, item.name))
        return Policy(
            Filesystem(
                other.filesystem.read,
                other.filesystem.write,
                _union(self.filesystem.deny_read, other.filesystem.deny_read),
                _union(self.filesystem.deny_write, other.filesystem.deny_write),
                home_is_workspace=other.filesystem.home_is_workspace,
            ),
            Network(
                other.network.allow,
                _union(self.network.deny, other.network.deny),
                other.network.ask,
                http=other.network.http,
                within=tuple(
                    dict.fromkeys((*filter(None, (self.network.http,)), *self.network.within, *other.network.within))
                ),
                trust=self.network.trust,
            ),
            Resources(**limits),
            other.unix_sockets,
            other.weaker_proc,
            devices=other.devices,
        )

    def _check_narrower(self, other: Policy) -> None:
        for name, ours, theirs in (
            ("filesystem.read", self.filesystem.read, other.filesystem.read),
            ("filesystem.write", self.filesystem.write, other.filesystem.write),
            ("network.allow", self.network.allow, other.network.allow),
        ):
            allowed = Hosts(ours) if name.startswith("network") else Paths(ours)
            if more := [item for item in theirs if not allowed.cover(item)]:
                raise InvalidInputError(f"{name}: {more[0]!r} is not allowed by the host's policy, which can only be narrowed")
        files = self.filesystem
        for name, ours, theirs, denied in (
            ("filesystem.read", files.read, other.filesystem.read, files.deny_read),
            ("filesystem.write", files.write, other.filesystem.write, files.deny_read + files.deny_write),
        ):
            # A longer path overrides a shorter denial, so the session could reopen what the host denies.
            denials, known = Denials(denied), frozenset(ours)
            for path in theirs:
                if path not in known and denials.may_hold(path):
                    raise InvalidInputError(f"{name}: {path!r} may be denied by the host's policy, which can only be narrowed")
        if other.network.ask and not self.network.ask:
            raise InvalidInputError("network.ask is not allowed by the host's policy, which can only be narrowed")
        if other.unix_sockets and not self.unix_sockets:
            raise InvalidInputError("unix_sockets is not allowed by the host's policy, which can only be narrowed")
        if other.weaker_proc and not self.weaker_proc:
            raise InvalidInputError("weaker_proc is not allowed by the host's policy, which can only be narrowed")
        if more := [name for name in other.devices if name not in self.devices]:
            raise InvalidInputError(f"devices: {more[0]!r} is not allowed by the host's policy, which can only be narrowed")
        if other.network.trust not in ("", self.network.trust):
            raise InvalidInputError("network.trust is not allowed by the host's policy, which can only be narrowed")


_TOP = {
    "filesystem": "filesystem",
    "network": "network",
    "resources": "resources",
    "enableWeakerNestedSandbox": "",
    "devices": "",
    "defaults": "",
    # How sandbox-runtime works, not what is allowed: accepted, and ignored here.
    "allowPty": "",
    "ripgrep": "",
    "mandatoryDenySearchDepth": "",
    "$schema": "",
}
_FILES = dict.fromkeys(("denyRead", "allowRead", "allowWrite", "denyWrite", "allowGitConfig"), "")
_NETWORK = dict.fromkeys(
    ("allowedDomains", "deniedDomains", "allowLocalBinding", "allowAllUnixSockets", "ask", "http", "trust"), ""
)
_RESOURCES = {
    "memory": "memory",
    "processes": "processes",
    "openFiles": "open_files",
    "tmp": "tmp",
    "fileSize": "file_size",
    "cpu": "cpu",
    "packages": "packages",
}
_BOUNDS = {
    "memory": MEMORY_BOUNDS,
    "processes": (8, 30000),
    "open_files": (64, 2**20),
    "tmp": (MIB, 2**50),
    "file_size": (MIB, 2**60),
    "cpu": (1, 100),
    "packages": (0, 2**60),
}


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
