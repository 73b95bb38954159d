"""The options of a session's services: approvals, tools and MCP servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.errors import InvalidInputError, shown

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Beginning
    from cellblock.host.options import ShareNetwork
    from cellblock.host.survival.remains import SessionRemains
    from cellblock.service.session.tool_directories import Directories
    from cellblock.tools.approvals.elicitation import OnElicitation
    from cellblock.tools.approvals.rules import Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOrigin:
    """What a session is called, and what it starts from. By default, a new session without a name.

    Attributes:
        name: As for `SessionHooks`.
        label: As for `Host.session`.
        remains: As for `Host.session`.
        start_from: As for `Host.session`.
        network: As for `SessionHooks`.
        loads: As for `SessionHooks`.
    """

    name: str = ""
    label: str = ""
    remains: SessionRemains | None = None
    start_from: Beginning | None = None
    network: ShareNetwork | None = None
    loads: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceOptions:
    """The options of a session's services (`cellblock.service.session.services`), for every interface.

    Attributes:
        rules: Decide about tool calls, commands and hosts before people do (docs/approvals.md).
        approval_timeout: Seconds that an approval request may wait; None for no limit.
        connect_timeout: Seconds in which an MCP server must start.
        approve_shell_cmds: Whether ``!cmd``, ``%%bash`` and similar commands need approval, as tools do.
        require_shell_escape: Whether the operating system forbids the kernel to execute programs, so that this approval
            cannot be bypassed. Needs `approve_shell_cmds`, and the native sandbox.
        timeout_includes_approvals: Whether waiting for a decision counts towards the timeout of a cell.
        own_servers: Whether to start MCP servers for this session alone, instead of sharing them within its host.
        approve_tool_calls: Whether tool calls need approval. If not, only rules can refuse them.
        tools: Directories of generated APIs (`generate_mcp_sources`) outside the workspace. Code can read them, import
            their packages, and call the tools. The same holds for directories in ``PYTHONPATH`` of `kernel_env`.
        on_elicitation: Asks a person to answer questions of MCP servers during a tool call (docs/approvals.md). Without it,
            questions are declined.

    Raises:
        InvalidInputError: An option is invalid.
    """

    rules: Rules | None = None
    approval_timeout: float | None = 60
    connect_timeout: float = 30
    approve_shell_cmds: bool = False
    require_shell_escape: bool = False
    timeout_includes_approvals: bool = False
    own_servers: bool = False
    approve_tool_calls: bool = True
    tools: Directories = ()
    on_elicitation: OnElicitation | None = None

    def __post_init__(self) -> None:
        _check_rules(self.rules)
        for name in ("approve_tool_calls", "approve_shell_cmds", "require_shell_escape", "own_servers"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.require_shell_escape and not self.approve_shell_cmds:
            raise InvalidInputError(
                "require_shell_escape needs approve_shell_cmds=True and the native sandbox: nothing else can prevent code "
                "from executing programs"
            )
        if self.approval_timeout is not None:
            check_seconds("approval_timeout", self.approval_timeout)
        check_seconds("connect_timeout", self.connect_timeout)


def _check_rules(rules: Rules | None) -> None:
    if rules is None:
        return
    from cellblock.tools.approvals.rules import Rules  # already imported if there are any

    if not isinstance(rules, Rules):
        raise InvalidInputError(f"rules must be Rules, not {rules!r}: read a file with Rules.load()")


def check_seconds(name: str, seconds: float) -> None:
    """Validate a number of seconds.

    Raises:
        InvalidInputError: The number is invalid.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not (0 < seconds < math.inf):
        raise InvalidInputError(f"{name} must be a positive number of seconds, not {shown(seconds)}")


def check_port(name: str, port: object) -> None:
    """Validate a port, which can be None.

    Raises:
        InvalidInputError: The port is invalid.
    """
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536):
        raise InvalidInputError(f"{name} must be a number from 0 to 65535, not {port!r}")
