"""The options of ``cellblock mcp``."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cellblock.common import config as settings
from cellblock.common.sandbox_options import SandboxOptions
from cellblock.errors import InvalidInputError
from cellblock.host.requested_policy import as_in_ipybox
from cellblock.tools.approvals.rules import read_rules

Approve = Literal["auto", "ask", "rules"]
Transport = Literal["stdio", "http"]

_log = logging.getLogger("cellblock")
_KERNEL_PREFIX = "KERNEL_ENV_"
_IDLE = 24 * 3600.0
"""Seconds after which an unused session ends."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """The options of ``cellblock mcp``.

    Attributes:
        cluster: Whether sessions run on cluster nodes. Then `workspace` and `sandbox_config` are absolute paths on these
            nodes, and each session gets a directory of its own if no workspace is given.
        workspace: The working directory of the code, with the generated ``mcptools/``. Over HTTP, each session gets a
            folder in it.
        sandbox: Whether to run kernels in a sandbox.
        sandbox_config: The sandbox's configuration: a JSON file (docs/sandbox.md).
        isolate: The kind of sandbox (`SessionOptions.isolate`).
        sandbox_options: Additional paths and hosts that the code may use, read, change and reach.
        approve: Who decides about requests of code: ``auto`` allows them, ``ask`` asks the person at the client, and
            ``rules`` uses only the file of rules. Rules always come first.
        rules: A file of rules (docs/approvals.md).
        approve_shell_cmds: Whether ``!cmd`` and similar commands need approval, as tool calls do.
        programs: Whether to offer `run_program`.
        preload: Modules that kernels have imported when they start.
        environment: The name of the environment with the packages; empty for none.
        transport: ``stdio`` or ``http``.
        host: The address to listen on, for HTTP.
        port: The port for HTTP; 0 for any free port.
        auth: Whether HTTP clients need a token. Without one, only a loopback address can be served.
        token: The token; by default a random one.
        names: Host names of the server, in addition to this machine's own names.
        wait: Most seconds until a call is answered, if need be by an answer that the work continues; None: according to the
            client (`client_limits`).
        pictures_as_files: Whether answers name the files of pictures, instead of containing the pictures.
        session_name: The name of a session that outlives this process, in this user's daemon or the cluster; empty for a
            session of this process. Over stdio only.
    """

    cluster: bool = False
    workspace: Path = Path()
    sandbox: bool = True
    sandbox_config: Path | None = None
    isolate: str | None = None
    sandbox_options: SandboxOptions = field(default_factory=SandboxOptions)
    approve: Approve = "auto"
    rules: Path | None = None
    approve_shell_cmds: bool = False
    programs: bool = False
    preload: tuple[str, ...] = ()
    environment: str = ""
    transport: Transport = "stdio"
    host: str = "127.0.0.1"
    port: int = 8900
    auth: bool = True
    token: str = field(default="", repr=False)
    names: tuple[str, ...] = ()
    wait: float | None = None
    pictures_as_files: bool = False
    session_name: str = ""

    def __post_init__(self) -> None:
        # The current directory changes soon.
        for name in ("rules",) if self.cluster else ("workspace", "sandbox_config", "rules"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, path.resolve())
        if not self.cluster:
            object.__setattr__(self, "sandbox_options", self.sandbox_options.resolved())
        if self.cluster:
            if self.transport == "http" and not self.own_folders:
                raise InvalidInputError(
                    f"--workspace {self.workspace}: sessions run on a cluster (CELLBLOCK_RAY_ADDRESS, or ray_address), where "
                    "each client of --transport http gets a directory of its own: leave --workspace out"
                )
        elif not self.workspace.is_dir():
            problem = "it is not a directory:" if self.workspace.exists() else "there is no such directory; make it, or"
            raise InvalidInputError(f"--workspace {self.workspace}: {problem} name another one")
        if self.session_name and self.transport == "http":
            raise InvalidInputError(
                "--session is for --transport stdio; over HTTP, clients pass the handles of their sessions"
            )
        if self.approve == "rules" and self.rules is None:
            raise InvalidInputError("--approve rules needs --rules FILE (docs/approvals.md)")
        if not self.auth and self.host not in _LOOPBACK:
            raise InvalidInputError(
                f"without tokens, the server can only listen on a loopback address such as 127.0.0.1, not on {self.host!r}"
            )
        if self.auth and not self.token:
            object.__setattr__(self, "token", secrets.token_urlsafe(32))

    @property
    def own_folders(self) -> bool:
        """Whether sessions have directories of their own, which end with them."""
        return self.cluster and self.workspace == Path()

    def session(self, folder: Path | None) -> dict[str, Any]:
        """Return the options of one session, in the form of `named.options`.

        Args:
            folder: The session's working directory; None for a directory of its own.
        """
        given: dict[str, Any] = {
            "kernel_env": kernel_environment(),
            "sandbox": self.sandbox,
            **self.sandbox_options.to_dict(),
            "approve": "auto" if self.approve == "auto" else "ask",
            "ask_questions": True,  # the person at the client, even if everything else is allowed
            "approval_timeout": 600,
            # The session of the only client ends with this process, so it keeps its variables without an idle limit.
            "idle_timeout": None if self.transport == "stdio" and not self.cluster and not self.session_name else _IDLE,
            "approve_shell_cmds": self.approve_shell_cmds,
        }
        if folder is not None:
            given |= {"working_dir": str(folder), "images_dir": str(folder / "images")}
            given["tools"] = [] if folder == self.workspace else [str(self.tools)]
        if self.preload:
            given["preload"] = list(self.preload)
        if self.environment:
            given["environment"] = self.environment
        if self.isolate is not None:
            given["isolate"] = self.isolate
        if self.sandbox_config is not None:
            given["sandbox_config"] = str(self.sandbox_config) if self.cluster else _in_ipybox(self.sandbox_config)
        if self.rules is not None:
            given["rules"] = read_rules(self.rules) if self.cluster else str(self.rules)
        return given

    @property
    def tools(self) -> Path:
        """The directory of typed APIs of MCP servers for all sessions."""
        return self.workspace / "mcptools"


def _in_ipybox(path: Path) -> Any:
    config, warning = as_in_ipybox(path)
    if warning:
        _warn(warning)
        return config
    return str(path)


@functools.cache
def _warn(text: str) -> None:
    """Log a warning once, because every session has the same configuration."""
    _log.warning("%s", text)


def kernel_environment() -> dict[str, str]:
    """Return the kernels' variables: those whose names begin with ``KERNEL_ENV_``, in the environment or in ``.env``."""
    found = settings.server_environment()
    return {
        name.removeprefix(_KERNEL_PREFIX): found[name]
        for name in found
        if len(name) > len(_KERNEL_PREFIX) and name.startswith(_KERNEL_PREFIX)
    }


def enter(options: ServerOptions) -> None:
    """Make the workspace the current directory, for ``.env`` and relative paths of MCP servers.

    On a cluster, the workspace is elsewhere.
    """
    if not options.cluster:
        os.chdir(options.workspace)
