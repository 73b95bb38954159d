"""Session options: meaning, default and check of each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from cellblock.common.config import Isolate
from cellblock.common.environments import Environment, PackageSet, read_environment
from cellblock.common.extras import require_extra
from cellblock.common.secret import Secrets, parse_secrets
from cellblock.errors import InvalidInputError, UnsupportedError, did_you_mean, shown
from cellblock.host import environment
from cellblock.host.checks import (
    check_forbidding,
    check_possible,
    check_requests,
    check_secrets,
    check_state_apart,
    find_tier,
    fit_policy,
)
from cellblock.walls.proxy.network import live_network
from cellblock.walls.sandbox.narrowing import Hosts
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.srt import SrtPolicy

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import OnCommand
    from cellblock.host.launch.session_listeners import Serve
    from cellblock.host.output.limits import Limits
    from cellblock.walls.egress.judge import Approver
    from cellblock.walls.egress.live import LiveNetwork
    from cellblock.walls.keys.bindings import Binding
    from cellblock.walls.keys.session_keys import SessionKeys
    from cellblock.walls.proxy.network import OnHost
    from cellblock.walls.sandbox.probe import Facts
    from cellblock.walls.sandbox.tiers import Tier

ShareNetwork: TypeAlias = "Callable[[LiveNetwork], LiveNetwork]"
"""Returns the network rules to use instead of new ones."""

SharedNetwork: TypeAlias = "LiveNetwork"
"""The network rules of a sandbox, for services that store them."""

_ELSEWHERE = {
    "timeout": " of a session: each execution has its own",
    "on_input": " of a session: CodeExecutor.execute() and stream() take it",
    "name": " of a session: get_or_create(name) makes sessions with names",
}
"""Names that belong to another call; suggesting the nearest option would be misleading."""

_SAME = {
    **dict.fromkeys(("cwd", "dir", "directory", "root"), "working_dir"),
    **dict.fromkeys(("env", "envs", "environ", "env_vars"), "kernel_env"),
    **dict.fromkeys(("network", "domains", "internet", "host", "allow_host", "allow_hosts"), "hosts"),
    **dict.fromkeys(("mem", "memory_limit", "mem_limit", "max_memory", "ram"), "memory"),
    **dict.fromkeys(("readable", "read_only", "allow_read", "mounts", "volumes"), "read"),
    **dict.fromkeys(("writable", "read_write", "allow_write"), "write"),
}
"""Options by the names that other libraries have for them."""

_RESOURCES = ("processes", "cpu")
"""Resources that only a policy limits."""

_POLICY = {
    "memory": "resources=Resources(memory=…)",
    "read": "filesystem=Filesystem(read=[…])",
    "write": "filesystem=Filesystem(write=['.', …])",
    "hosts": "network=Network(allow=[…])",
    "http": "network=Network(http=[…])",
}
"""What `Host.session` takes in place of an option of the sandbox."""


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Validate the names of options.

    Raises:
        InvalidInputError: A name is unknown.
    """
    for name in names:
        if name not in known:
            raise InvalidInputError(f"there is no option {name!r}{_instead(name, known)}")


def _instead(name: str, known: Collection[str]) -> str:
    """Return the replacement for an unknown option; empty if none."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in _RESOURCES:
        policy = f"policy=Policy(resources=Resources({name}=…))"
        data = f"sandbox_config={{'resources': {{{name!r}: …}}}}"
        return f"; the sandbox's policy limits it: {policy if 'policy' in known else data}"
    same = _SAME.get(name, name)
    if same in _POLICY and same not in known:
        return f"; it belongs to the sandbox's policy: policy=Policy({_POLICY[same]})"
    return f"; did you mean {same!r}?" if same in known else did_you_mean(name, known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """Automatic checkpoints of every state: created at the end of each cell, before the next cell starts.

    Attributes:
        keep: Number of cells that can be undone. One more checkpoint is kept, for the current state.

    Raises:
        InvalidInputError: The number is out of range.
    """

    keep: int = 5

    def __post_init__(self) -> None:
        _check_keep(self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rolling:
    """Automatic checkpoints while the session is idle, for programs that run cells back to back.

    Attributes:
        keep: Number of checkpoints kept, which limits `Session.undo`.
        after: Idle time in seconds before a checkpoint; slightly more if the host has many sessions. A cell that starts
            earlier prevents the checkpoint.
        longest: Time limit for a checkpoint, in seconds. After one exceeds it, no more are created.

    Raises:
        InvalidInputError: A value is out of range.
    """

    keep: int = 5
    after: float = 0.02
    longest: float = 1.0

    def __post_init__(self) -> None:
        _check_keep(self.keep)
        for name in ("after", "longest"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 3600:
                raise InvalidInputError(f"{name} must be a positive number of seconds, not {value!r}")


def _check_keep(keep: object) -> None:
    if type(keep) is not int or not 1 <= keep <= 1000:
        raise InvalidInputError(f"keep must be a number from 1 to 1000, not {keep!r}")


RecoveryOption: TypeAlias = Exact | Rolling | Literal["exact", "rolling", "none"]
"""The session option that selects its automatic checkpoints."""


def check_recovery(wanted: object) -> None:
    """Validate the `recovery` option.

    Raises:
        InvalidInputError: The option is invalid.
    """
    if not isinstance(wanted, Exact | Rolling) and wanted not in ("exact", "rolling", "none"):
        raise InvalidInputError(f"recovery must be 'exact', 'rolling', 'none', an Exact or a Rolling, not {shown(wanted)}")


def kind_of(recovery: RecoveryOption) -> Exact | Rolling | None:
    """Return the kind of automatic checkpoints for the `recovery` option; None for no automatic checkpoints."""
    match recovery:
        case "exact":
            return Exact()
        case "rolling":
            return Rolling()
        case "none":
            return None
    return recovery


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """The options of a session, as `Host.session` takes them.

    Attributes:
        kernel_env: Environment variables for the kernel, in addition to a small base (docs/sessions.md).
        working_dir: Directory of the kernel, which returns to it after each cell. By default, the kernel starts in this
            process's current directory and keeps changes of directory.
        workspace: ``clone`` lets the session work in a clone of the git repository in `working_dir`, where it can commit; the
            working copy does not change (docs/sandbox.md). ``dirty-clone`` begins with uncommitted changes of tracked files.
            ``native`` only.
        images_dir: Directory for images; by default ``images`` in `working_dir`, or else in the current directory. A model can
            only open files in the session's workspace.
        spill_dir: Directory for output above the limits. By default, such output is dropped.
        limits: Limits on retained output.
        python: Interpreter of the kernels: a path, a virtual environment's directory, or a command. It needs Python 3.11 or
            newer, and IPython. Default: the host's.
        preload: Modules that each kernel has already imported at its start, at no cost: of the interpreter, or of a trusted
            `environment`. Default: the host's.
        packages: Packages to install when the session starts, such as ``pandas>=2`` (docs/sessions.md). Packages that many
            sessions need are faster in the interpreter's own environment.
        environment: An `Environment`, or the name of one, instead of `packages` (docs/sandbox.md). Not under ``srt``.
        isolate: Isolation of the kernels: ``native``, ``landlock``, ``srt`` or ``none``. Default: the host's.
        policy: The session's policy. It can only narrow a policy that was given to the host. Default: the host's.
        on_command: Decides whether a shell command of a cell (``!cmd``, ``%sx``, ``%%bash``, ``%pip install``) may run
            (docs/shell.md). Only True means yes; a string means no and gives the reason. By default, all commands may run.
        on_host: Decides whether a host that the policy does not name may be reached, if the policy's network says ``ask``.
        on_request: Decides about HTTP requests that the policy's lines leave open, by rules and by a person (docs/egress.md).
            Without it, such requests are refused.
        forbid_programs: Prevents the kernel from executing programs, so that code cannot bypass `on_command`. Approved
            commands run outside the kernel. ``native`` and ``landlock`` only.
        secrets: Secrets that code uses by placeholders in variables, and whose hosts it may reach (docs/keys.md). Their values
            stay outside the sandbox. ``native`` only.
        recovery: Automatic checkpoints, for `Session.undo` and for recovery after a kernel dies (docs/checkpoints.md).
            ``exact`` creates one at the end of each cell, before the next cell starts. ``rolling`` creates one when the
            session is idle, for programs that run cells back to back. ``none`` creates none. An `Exact` or `Rolling` sets how
            many are kept.

    Raises:
        InvalidInputError: An option has the wrong type.
    """

    kernel_env: Mapping[str, str] | None = None
    working_dir: str | os.PathLike[str] | None = None
    workspace: Literal["clone", "dirty-clone"] | None = None
    images_dir: str | os.PathLike[str] | None = None
    spill_dir: str | os.PathLike[str] | None = None
    limits: Limits | None = None
    python: str | os.PathLike[str] | None = None
    preload: Sequence[str] | None = None
    packages: Sequence[str] = ()
    environment: Environment | PackageSet | Mapping[str, Any] | str | None = None
    isolate: Isolate | None = None
    policy: Policy | None = None
    on_command: OnCommand | None = None
    on_host: OnHost | None = None
    on_request: Approver | None = None
    forbid_programs: bool = False
    secrets: Secrets = ()
    recovery: RecoveryOption = "exact"

    def __post_init__(self) -> None:
        if self.kernel_env is not None and not isinstance(self.kernel_env, Mapping):
            raise InvalidInputError(f"kernel_env must be a dict of variables, not {self.kernel_env!r}")
        check_recovery(self.recovery)
        if self.workspace not in (None, "clone", "dirty-clone"):
            raise InvalidInputError(
                f"workspace must be 'clone', 'dirty-clone' or None, not {shown(self.workspace)}: the option for a directory "
                "is working_dir"
            )
        object.__setattr__(self, "secrets", parse_secrets(self.secrets) if self.secrets else {})
        names = self.packages if isinstance(self.packages, Collection) and not isinstance(self.packages, str) else (None,)
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            raise InvalidInputError(f"packages must be a list of requirements, such as ['pandas'], not {shown(self.packages)}")
        object.__setattr__(self, "environment", read_environment(self.environment))
        if self.environment is not None and self.packages:
            raise InvalidInputError("pass packages or environment, not both: Environment(packages=[…]) has packages, too")
        if self.on_command is not None and not callable(self.on_command):
            raise InvalidInputError(f"on_command must be a function, not {self.on_command!r}")
        for name in ("working_dir", "images_dir", "spill_dir"):
            path = getattr(self, name)
            if path is not None and not isinstance(path, str | os.PathLike):
                raise InvalidInputError(f"{name} must be the path of a directory, not {path!r}")
            if path is not None and not os.fspath(path):
                raise InvalidInputError(
                    f"{name} is empty: leave it out for the default, or pass '.' for the current directory"
                )
            if path is not None and "\0" in os.fsdecode(path):
                raise InvalidInputError(f"{name} has a NUL character, which no path can contain: {shown(path)}")

    def same_surroundings(self, other: SessionOptions) -> bool:
        """Return whether both resolve to the same interpreter, sandbox and directories (`resolve`)."""
        rest = {
            name: getattr(self, name)
            for name in ("kernel_env", "environment", "limits", "on_host", "on_request", "packages", "recovery", "secrets")
        }
        return replace(other, **rest) == self


class LoadKeywords(TypedDict, total=False):
    """The keywords of `SessionKeywords` for `Host.load`, whose `workspace` means something else."""

    kernel_env: Mapping[str, str] | None
    working_dir: str | os.PathLike[str] | None
    images_dir: str | os.PathLike[str] | None
    spill_dir: str | os.PathLike[str] | None
    limits: Limits | None
    python: str | os.PathLike[str] | None
    preload: Sequence[str] | None
    packages: Sequence[str]
    environment: Environment | PackageSet | Mapping[str, Any] | str | None
    isolate: Isolate | None
    policy: Policy | None
    on_command: OnCommand | None
    on_host: OnHost | None
    on_request: Approver | None
    forbid_programs: bool
    secrets: Secrets
    recovery: RecoveryOption


class SessionKeywords(LoadKeywords, total=False):
    """The attributes of `SessionOptions` as keywords, for type checkers. A test compares the two."""

    workspace: Literal["clone", "dirty-clone"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionHooks:
    """Callbacks of a frontend for a session that it serves.

    Attributes:
        tool_port: Serves tool calls from the session's code on a listener; each sandbox has one.
        uncounted_seconds: Returns the total seconds excluded from the timeouts of cells.
        on_begin: Called when a cell has begun and its reader, if any, can receive notices.
        name: The name of the session, for people; may be empty.
        network: Returns the network rules to use instead of new ones: the rules of an earlier process, or of other branches.
        network_changed: Records a change of the network, with who changed it, before it takes effect.
        loads: Whether saved files are loaded before the first cell. A session in a clone then needs no repository.
    """

    tool_port: Serve | None = None
    uncounted_seconds: Callable[[], float] = lambda: 0.0
    on_begin: Callable[[], object] = lambda: None
    name: str = ""
    network: ShareNetwork | None = None
    network_changed: Callable[[Mapping[str, Any], str], Awaitable[None]] | None = None
    loads: bool = False

    def title(self, number: int) -> str:
        """Return how messages name the host's session with this number."""
        return f"session {shown(self.name) if self.name else number}"


@dataclass(frozen=True, slots=True)
class Defaults:
    """A host's defaults for session options.

    Attributes:
        interpreter: Path of the kernels' interpreter.
        preload: Modules imported before kernels start.
        tier: Isolation of the kernels.
        policy: Policy of the sandboxes.
        ceiling: Whether sessions may only narrow `policy`, because it was given to the host.
    """

    interpreter: str
    preload: tuple[str, ...]
    tier: Tier
    policy: Policy
    ceiling: bool

    def interpreter_for(self, options: SessionOptions) -> str:
        """Return the path of a session's interpreter.

        Raises:
            InterpreterError: The interpreter does not exist.
        """
        return self.interpreter if options.python is None else environment.find_interpreter(options.python)

    def modules_for(self, options: SessionOptions) -> tuple[str, ...]:
        """Return the modules imported before a session's kernels start.

        Raises:
            InvalidInputError: A module name is invalid.
        """
        return self.preload if options.preload is None else environment.check_modules(options.preload)

    def tier_for(self, options: SessionOptions) -> Tier:
        """Return a session's isolation.

        Raises:
            InvalidInputError: The isolation is unknown.
        """
        return self.tier if options.isolate is None else find_tier(options.isolate)

    def policy_for(self, policy: Policy | None, tier: Tier) -> Policy:
        """Return a session's policy.

        Raises:
            InvalidInputError: The policy is for another isolation, or exceeds the host's policy.
        """
        if policy is None:
            return fit_policy(self.policy, tier)
        policy = fit_policy(policy, tier)
        if not self.ceiling:
            return policy
        if isinstance(policy, SrtPolicy):
            return policy.narrow(self.policy)
        return fit_policy(_with_hosts_of_lines(self.policy).narrow(policy), tier)


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """A session's validated options, with the host's defaults filled in.

    Attributes:
        interpreter: Path of the kernels' interpreter.
        preload: Modules imported before kernels start.
        tier: Isolation of the kernels.
        policy: Policy of the sandboxes.
        cwd: Initial working directory of kernels.
        stay_in: Directory to return to after each cell, if any.
        images_dir: Directory for images.
        spill_dir: Directory for output above the limits.
        writable: Directories that the code can write to.
        keys: The secrets, and what opens connections, which branches share; None without a network of its own.
        network: The network rules, which branches share; None without a network.
    """

    interpreter: str
    preload: tuple[str, ...]
    tier: Tier
    policy: Policy
    cwd: str
    stay_in: str | None
    images_dir: Path
    spill_dir: Path | None
    writable: tuple[str, ...]
    keys: SessionKeys | None = None
    network: LiveNetwork | None = None


def resolve(options: SessionOptions, defaults: Defaults, facts: Facts) -> ResolvedOptions:
    """Validate a session's options and fill in defaults.

    Raises:
        InvalidInputError, InterpreterError: An option is invalid.
        SandboxError: This machine cannot create the sandbox.
    """
    from cellblock.walls.sandbox.plan import check_unnamed_workspace, check_workspace, writable_places

    tier = defaults.tier_for(options)
    if options.forbid_programs:
        check_forbidding(tier, options.on_command is not None)
    if options.isolate is not None:
        check_possible(tier)
    policy, keys = _policy_and_keys(options, defaults, tier)
    _check_environment(options, tier)
    here = environment.current_directory()
    stay_in = None
    if options.working_dir is not None:
        stay_in = str(environment.check_directory("working_dir", options.working_dir))
    cwd = stay_in or here
    writable: tuple[str, ...] = ()
    if tier.sandboxed:
        writable = tuple(writable_places(policy, facts, cwd))
        if stay_in is None:
            check_unnamed_workspace(cwd, facts.home)
        check_workspace(cwd)
        check_state_apart(writable)
    images_dir = _images_dir(options, cwd, writable)
    spill_to = None if options.spill_dir is None else environment.check_writable("spill_dir", options.spill_dir, writable)
    return ResolvedOptions(
        interpreter=defaults.interpreter_for(options),
        preload=defaults.modules_for(options),
        tier=tier,
        policy=policy,
        cwd=cwd,
        stay_in=stay_in,
        images_dir=images_dir,
        spill_dir=spill_to,
        writable=writable,
        keys=keys,
        network=live_network(policy.network, defaults.policy.network if defaults.ceiling else None) if tier.ours else None,
    )


def _check_environment(options: SessionOptions, tier: Tier) -> None:
    """Check that a session can have its environment.

    Raises:
        UnsupportedError: srt isolates the session.
    """
    if not isinstance(options.environment, PackageSet):
        return
    if tier.wrapped:
        raise UnsupportedError(f"isolate={tier.name!r} has no environments: pass packages=[…], or isolate='native'")


def _policy_and_keys(options: SessionOptions, defaults: Defaults, tier: Tier) -> tuple[Policy, SessionKeys | None]:
    """Return the policy of a session, with the hosts of its secrets and request lines, and what opens connections to them.

    Raises:
        InvalidInputError: A secret or a line is invalid.
        UnsupportedError: The sandbox cannot read requests, or the extra ``keys`` is not installed.
    """
    wanted = options.policy
    base = defaults.policy if wanted is None else wanted
    bindings: tuple[Binding, ...] = ()
    if options.secrets:
        check_secrets(tier)
        from cellblock.walls.keys.bindings import patterns  # most sessions have none
        from cellblock.walls.keys.session_keys import bindings_of

        bindings = bindings_of(parse_secrets(options.secrets))
        hosts = Hosts(base.network.allow)
        base = wanted = base.widened(hosts=[host for host in patterns(bindings) if not hosts.cover(host)])
    ruled = options.on_request is not None and any(options.on_request.authorities())
    if base.network.judges:
        check_requests(tier)
        base = wanted = _with_hosts_of_lines(base)
    policy = defaults.policy_for(wanted, tier)
    if ruled or policy.network.judges:
        check_requests(tier)
    if policy.network.trust and not tier.own_network:
        raise UnsupportedError(
            f"network.trust needs isolate='native': with isolate={tier.name!r}, set SSL_CERT_FILE (kernel_env)"
        )
    needed = bool(bindings or ruled or policy.network.judges)
    if needed:
        require_extra("keys", "secrets and request lines")
    elif not (tier.own_network and (policy.network.allow or policy.network.ask)):
        return policy, None
    from cellblock.walls.keys import trust
    from cellblock.walls.keys.session_keys import SessionKeys

    roots = trust.further_roots(policy.network.trust) if policy.network.trust else b""
    return policy, SessionKeys(bindings, needed=needed, roots=roots)


def _with_hosts_of_lines(policy: Policy) -> Policy:
    """Return a policy that allows the hosts of its request lines."""
    if not policy.network.http:
        return policy
    from cellblock.walls.egress.lines import Lines

    hosts = Hosts(policy.network.allow)
    return policy.widened(hosts=[host for host in Lines.parse(policy.network.http).patterns if not hosts.cover(host)])


def _images_dir(options: SessionOptions, cwd: str, writable: Sequence[str]) -> Path:
    """Return the directory for images. The default may be in a read-only directory: a result says so if there is an image."""
    default = os.path.join(cwd, "images")
    if options.images_dir is None or os.fspath(options.images_dir) == default:
        return environment.resolve_directory(default, writable)
    return environment.check_writable("images_dir", options.images_dir, writable)
