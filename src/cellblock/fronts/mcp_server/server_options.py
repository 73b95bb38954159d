"""The options of ``cellblock mcp``."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cellblock.common import config as settings
from cellblock.common.config import SandboxName
from cellblock.common.declared import declared
from cellblock.common.sandbox_options import Surroundings
from cellblock.errors import InvalidInputError

Approve = Literal["auto", "ask", "rules"]
Transport = Literal["stdio", "http"]

_log = logging.getLogger("cellblock")
_KERNEL_PREFIX = "KERNEL_ENV_"
_IDLE = 24 * 3600.0
"""Seconds after which an unused session ends."""
_HTTP: dict[str, Any] = {"rich_help_panel": "Over HTTP"}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions(Surroundings):
    """The options of ``cellblock mcp``, from which its flags are derived.

    Attributes:
        cluster: Whether sessions run on cluster nodes. Then `workspace` and `sandbox_config` are absolute paths on these
            nodes, and each session gets a directory of its own if no workspace is given.
    """

    cluster: bool = False
    approve: Approve = declared(
        "auto",
        "Who decides about requests of code: no one (auto), a person at the client (ask), or rules.",
        "--approve",
    )
    rules: Path | None = declared(None, "Rules that decide first (docs/approvals.md).", "--rules", metavar="FILE")
    approve_shell_cmds: bool = declared(False, "Ask about !commands, too.", "--approve-shell-cmds")
    programs: bool = declared(
        False, "Also offer run_program: programs beside the kernel.", "--programs", envvar="CELLBLOCK_MCP_PROGRAMS"
    )
    isolate: str | None = declared(
        None, f"What the sandbox is made of: {', '.join(get_args(SandboxName))}.", "--isolate", metavar="KIND"
    )
    wait: float | None = declared(
        None,
        "Answer after this time that code still runs; by default before the client gives up, if its limit is known.",
        "--wait",
        metavar="SECONDS",
        ge=0.1,
        envvar="CELLBLOCK_MCP_WAIT",
    )
    pictures_as_files: bool = declared(
        False, "Keep pictures in images/, and only name them in answers.", "--pictures-as-files"
    )
    session_name: str = declared(
        "", "Use this named session of the daemon, which stays when the client leaves.", "--session", metavar="NAME"
    )
    transport: Transport = declared("stdio", "stdio for one client, http for many.", "--transport")
    host: str = declared("127.0.0.1", "The address to listen on.", "--host", metavar="ADDRESS", **_HTTP)
    port: int = declared(8900, "The port; 0 takes a free one.", "--port", metavar="N", ge=0, le=65535, **_HTTP)
    token: str = declared(
        "",
        "The token for clients; a random one by default.",
        "--token",
        shown=False,
        metavar="TOKEN",
        envvar="CELLBLOCK_MCP_TOKEN",
        **_HTTP,
    )
    auth: bool = declared(True, "Ask for no token. Loopback addresses only.", "--no-auth", **_HTTP)
    names: tuple[str, ...] = declared((), "A host name for clients. Can be repeated.", "--allow-name", metavar="HOST", **_HTTP)

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
            from cellblock.tools.approvals.rules import read_rules  # the command line loads this module, and has no time

            given["rules"] = read_rules(self.rules) if self.cluster else str(self.rules)
        return given

    @property
    def tools(self) -> Path:
        """The directory of typed APIs of MCP servers for all sessions."""
        return self.workspace / "mcptools"


def _in_ipybox(path: Path) -> Any:
    from cellblock.host.requested_policy import as_in_ipybox

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
