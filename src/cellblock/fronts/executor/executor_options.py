"""The options of a `CodeExecutor`: its connections, its session, and the session's services."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from cellblock.common.config import SandboxName
from cellblock.common.sandbox_options import SandboxOptions
from cellblock.common.timeouts import check_timeout
from cellblock.errors import InvalidInputError, shown
from cellblock.host.checks import DEFAULT_TIMEOUT, names_of_ours
from cellblock.host.options import SessionOptions
from cellblock.host.requested_policy import as_in_ipybox, requested_policy
from cellblock.service.session.policy import requested_tier
from cellblock.service.session.service_options import ServiceOptions, check_port, check_seconds

if TYPE_CHECKING:
    from cellblock.common.environments import Environment, PackageSet
    from cellblock.host import Host, Limits, Policy
    from cellblock.host.options import RecoveryOption
    from cellblock.service.session.tool_directories import Directories
    from cellblock.tools.approvals.elicitation import OnElicitation
    from cellblock.tools.approvals.rules import Rules


class AsMade(float):
    """The default of a call's ``timeout``: a number, as in ipybox, that differs from any given number."""


AS_MADE = AsMade(DEFAULT_TIMEOUT)
"""Stands for the executor's own timeout, which is the same number by default."""

_OF_CALLER = 3
"""The frames from a warning here to the program that makes an executor."""

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DEFAULT_LEVEL = "WARNING"


@dataclass(repr=False, eq=False)
class ExecutorOptions(SandboxOptions):
    """Options of a `CodeExecutor`. The options up to `require_shell_escape` are in ipybox's order.

    Options without a description here are described at `SandboxOptions`, `SessionOptions` or `ServiceOptions`.

    Attributes:
        tool_server_host: Host name of the tool server, if it has a port.
        tool_server_port: A port on which other local programs with `tool_server_token` can call the session's tools.
            Sessions do not need it, and by default no port is opened.
        kernel_gateway_host: Host name of the kernel gateway, if it has a port.
        kernel_gateway_port: A port on which Jupyter clients with `kernel_gateway_token` can use the session, and create
            similar ones (docs/jupyter.md). By default no port is opened.
        kernel_init_timeout: Seconds in which the kernel must start; by default the host's limit, a minute.
        sandbox: Whether to run the kernel in a sandbox. Otherwise, it has all rights of this process.
        sandbox_config: The sandbox's configuration (docs/sandbox.md): a JSON file, or a dict. A complete sandbox-runtime
            configuration has its meaning there, and a `UserWarning` names what becomes readable.
        log_level: Level of the ``cellblock`` logger. By default, the program's own setting is unchanged.
        policy: The policy of the sandbox, instead of `sandbox_config`.
        host: The host, which stays open; by default a host shared by all executors of the event loop.
        timeout: Default limit of a call in seconds; None for no limit.
        approve: Who decides about tool calls, commands and hosts in `CodeExecutor.execute`, which can ask no one. ``auto``
            allows them, as ipybox does. ``ask`` refuses them; `CodeExecutor.stream` yields them instead. `Rules` decide
            alone, and undecided requests are refused as with ``ask``.
        isolate: The kind of sandbox: ``native``, namespaces and mounts of Linux; ``landlock``, for machines without these,
            with weaker guarantees (docs/landlock.md); or ``srt``, Anthropic's sandbox-runtime. By default, the setting of
            `host`, then ``CELLBLOCK_ISOLATE``, then ``native`` on Linux and ``srt`` elsewhere.

    Raises:
        InvalidInputError: An option is invalid.
    """

    tool_server_host: str = "localhost"
    tool_server_port: int | None = None
    kernel_gateway_host: str = "localhost"
    kernel_gateway_port: int | None = None
    kernel_env: Mapping[str, str] | None = None
    working_dir: str | os.PathLike[str] | None = None
    images_dir: str | os.PathLike[str] | None = None
    approval_timeout: float | None = 60
    connect_timeout: float = 30
    kernel_init_timeout: float | None = None
    sandbox: bool = True
    sandbox_config: str | os.PathLike[str] | Mapping[str, Any] | None = None
    log_level: str = DEFAULT_LEVEL
    approve_tool_calls: bool = True
    approve_shell_cmds: bool = False
    require_shell_escape: bool = False
    _: KW_ONLY
    policy: Policy | None = None
    tools: Directories = ()
    preload: Sequence[str] | None = None
    python: str | os.PathLike[str] | None = None
    spill_dir: str | os.PathLike[str] | None = None
    limits: Limits | None = None
    host: Host | None = None
    isolate: SandboxName | None = None
    rules: Rules | None = None
    timeout_includes_approvals: bool = False
    own_servers: bool = False
    packages: Sequence[str] = ()
    environment: Environment | PackageSet | Mapping[str, Any] | str | None = None
    workspace: Literal["clone", "dirty-clone"] | None = None
    timeout: float | None = DEFAULT_TIMEOUT
    approve: Literal["auto", "ask"] | Rules = "auto"
    recovery: RecoveryOption = "exact"
    on_elicitation: OnElicitation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tier = requested_tier(self.sandbox, self.isolate, self.host)
        if self.log_level not in _LEVELS:
            raise InvalidInputError(f"log_level must be one of {', '.join(_LEVELS)}, not {self.log_level!r}")
        if self.require_shell_escape and not self._tier.ours:
            raise InvalidInputError(
                f"require_shell_escape needs isolate={names_of_ours()}: nothing else can prevent code from executing programs"
            )
        if self.kernel_init_timeout is not None:
            check_seconds("kernel_init_timeout", self.kernel_init_timeout)
        check_timeout(self.timeout)
        self._check_approve()
        check_port("tool_server_port", self.tool_server_port)
        check_port("kernel_gateway_port", self.kernel_gateway_port)

    def _check_approve(self) -> None:
        if self.approve in ("auto", "ask"):
            return
        from cellblock.tools.approvals.rules import Rules

        if not isinstance(self.approve, Rules):
            raise InvalidInputError(f"approve must be 'auto', 'ask' or Rules, not {shown(self.approve)}")
        if self.rules is not None:
            raise InvalidInputError("approve and rules both give rules: pass one of them, and approve='ask' with rules")
        self.rules = self.approve

    @property
    def asks(self) -> bool:
        """Whether requests that rules leave undecided are refused if no one can be asked."""
        return self.approve != "auto"

    def services(self) -> ServiceOptions:
        """Return the options of the session's services.

        Raises:
            InvalidInputError: An option is invalid.
        """
        return ServiceOptions(**{item.name: getattr(self, item.name) for item in fields(ServiceOptions)})

    def session(self) -> SessionOptions:
        """Return the options of the session.

        Raises:
            InvalidInputError: An option is invalid, `sandbox_config` cannot be read, or a path does not exist.
        """
        same = {item.name: getattr(self, item.name) for item in fields(SessionOptions) if hasattr(self, item.name)}
        config, warning = self.sandbox_config, ""
        if config is not None and self._tier.sandboxed:
            config, warning = as_in_ipybox(config)
        policy = requested_policy(self.policy, config, self.resolved(), self._tier, self.host)
        if warning:
            warnings.warn(warning, stacklevel=_OF_CALLER)
        return SessionOptions(**(same | {"isolate": self._tier.name, "policy": policy}))
