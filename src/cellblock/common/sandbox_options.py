"""Options that change a sandbox's policy without a file, declared once for Python, the command line, HTTP and MCP.

Standard library only, because the command line loads this at each start.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cellblock.common.declared import declared
from cellblock.common.secret import Secrets, parse_secrets
from cellblock.errors import InvalidInputError, shown

_Path: TypeAlias = str | os.PathLike[str]
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE | re.ASCII)


@dataclass(kw_only=True)
class SandboxOptions:
    """Options that change a session's policy in what they name and nothing else.

    Attributes:
        memory: Memory limit for all processes of the session, such as ``"2G"``, ``"512MiB"`` or a number of bytes. K, M, G and
            T are powers of 1,024, with or without ``B`` or ``iB``. Default: 4 GiB.
        read: Files and directories that code may read, in addition to its workspace: one path or a list.
        write: Files and directories that code may change, in addition to its workspace: one path or a list. Names such as
            ``.git`` and ``.env`` are protected at the top of each directory, as in a workspace.
        hosts: Hosts that code may reach, such as ``"pypi.org"``, ``"*.example.org"`` or ``"example.org:8443"``: one or a list.
        allow_hosts: Another name of `hosts`, for a list only.
        http: The only requests that hosts get, such as ``"GET api.example.org/**"``, perhaps after ``ask`` or ``deny``: one or
            a list. These hosts become allowed (docs/egress.md).
        secrets: Secrets that code uses by placeholders in variables, and whose hosts it may reach (docs/keys.md): `Secret` by
            name, or texts such as ``"GITHUB_TOKEN"`` or ``"ACME_KEY=file:~/acme.key@api.acme.example"``.
        devices: GPUs of NVIDIA that code may use, such as ``"gpu:0"``: one or a list. Native sandbox only (docs/sandbox.md).

    Raises:
        InvalidInputError: A value has the wrong form.
    """

    memory: int | str | None = declared(
        None, "Limit the session's memory, such as 2G; 4G by default.", "--memory", metavar="SIZE"
    )
    read: Sequence[_Path] | _Path = declared((), "Let the code read this path. Can be repeated.", "--read", metavar="PATH")
    write: Sequence[_Path] | _Path = declared((), "Let the code change this path. Can be repeated.", "--write", metavar="PATH")
    hosts: Sequence[str] | str = declared(
        (), "Let the code reach this host. Can be repeated.", "--host", "--allow-host", metavar="NAME[:PORT]"
    )
    allow_hosts: Sequence[str] = ()
    http: Sequence[str] | str = declared(
        (), "Allow these requests to a host, and no others. Can be repeated.", "--allow-http", metavar="'METHOD HOST/PATH'"
    )
    secrets: Secrets = declared(
        (),
        "Insert this secret into requests to its hosts; code sees a placeholder. Can be repeated.",
        "--secret",
        metavar="NAME[=SOURCE[@HOST]]",
    )
    devices: Sequence[str] | str = declared((), "Let the code use this GPU. Can be repeated.", "--device", metavar="gpu:N")

    def __post_init__(self) -> None:
        self.memory = _bytes(self.memory)
        self.read, self.write = _paths("read", self.read), _paths("write", self.write)
        self.hosts = _texts("hosts", self.hosts, "a host such as 'pypi.org', or a list of hosts")
        if isinstance(self.allow_hosts, str):
            raise InvalidInputError(f"allow_hosts must be a list of host names, not {shown(self.allow_hosts)}")
        self.allow_hosts = _texts("allow_hosts", self.allow_hosts, "a list of host names")
        self.http = _texts("http", self.http, "a request line such as 'GET api.example.org/**', or a list of lines")
        self.secrets = parse_secrets(self.secrets) if self.secrets else ()
        self.devices = _texts("devices", self.devices, "a device such as 'gpu:0', or a list of devices")

    @property
    def given(self) -> list[str]:
        """The names of the given options."""
        return [name for name in NAMES if getattr(self, name) not in (None, ())]

    def paths(self, name: Literal["read", "write"]) -> tuple[str, ...]:
        """Return the paths of an option, with ``~`` expanded."""
        return tuple(getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the given options as JSON data."""
        values = {name: getattr(self, name) for name in self.given}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def resolved(self) -> SandboxOptions:
        """Return these options with absolute paths and resolved symbolic links.

        Call this once, before the session's code runs, which could replace a directory with a link.

        Raises:
            InvalidInputError: A path does not exist.
        """
        given = {name: getattr(self, name) for name in NAMES}
        return SandboxOptions(**given | {name: [_there(name, path) for path in given[name]] for name in PATHS})


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Where sessions of a command work, and in what: the flags of all commands that make sessions."""

    workspace: Path = declared(Path(), "The working directory; the current one by default.", "--workspace", metavar="DIR")
    sandbox_options: SandboxOptions = dataclasses.field(default_factory=SandboxOptions)
    environment: str = declared(
        "", "The environment with the packages ('cellblock env list' shows them).", "--environment", metavar="NAME"
    )
    preload: tuple[str, ...] = declared(
        (), "A module to import when kernels start. Can be repeated.", "--preload", metavar="MODULE"
    )
    sandbox_config: Path | None = declared(
        None, "What the sandbox allows: a file (docs/sandbox.md).", "--sandbox-config", metavar="FILE"
    )
    sandbox: bool = declared(True, "Run the code without a sandbox, with all your rights.", "--no-sandbox")


NAMES = tuple(item.name for item in dataclasses.fields(SandboxOptions))
"""The names of the options."""
PATHS: tuple[Literal["read"], Literal["write"]] = ("read", "write")
"""Those that are paths."""


def _bytes(given: object) -> int | None:
    if given is None or type(given) is int:
        return given
    if isinstance(given, str) and (match := _SIZE.fullmatch(given.strip())):
        from decimal import Decimal  # most sessions have the default

        size = Decimal(match[1]) * _UNITS[match[2].upper()]
        if size == int(size):
            return int(size)
    raise InvalidInputError(
        f"memory must be a size such as '2G', '512M' or '1.5GiB', or a number of bytes, not {shown(given)}"
    )


def _texts(name: str, given: object, wanted: str) -> tuple[str, ...]:
    items = (given,) if isinstance(given, str) else given
    if not isinstance(items, Sequence | set | frozenset) or not all(isinstance(item, str) and item for item in items):
        raise InvalidInputError(f"{name} must be {wanted}, not {shown(given)}")
    return tuple(dict.fromkeys(items))


def _paths(name: str, given: Any) -> tuple[str, ...]:
    items: Iterable[Any] = (given,) if isinstance(given, str | os.PathLike) else given
    wanted = "a path such as '~/data', or a list of paths"
    if isinstance(items, Sequence | set | frozenset):
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
    paths = _texts(name, items, wanted)
    if wrong := next((path for path in paths if "\0" in path), None):
        raise InvalidInputError(f"{name} must be {wanted}, and no path can contain a NUL character: {shown(wrong)}")
    return tuple(dict.fromkeys(os.path.expanduser(path) for path in paths))


def _there(name: str, path: str) -> str:
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise InvalidInputError(f"{name}: {path} does not exist: make it first, or name another path")
    if os.path.isdir(real) and not os.access(real, os.X_OK):
        raise InvalidInputError(f"{name}: {path} cannot be entered by this user: name another path")
    return real
