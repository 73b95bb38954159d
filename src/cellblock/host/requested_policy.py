"""Computes a session's policy from the arguments that describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.common.sandbox_options import SandboxOptions
from cellblock.errors import InvalidInputError
from cellblock.host.checks import check_requests
from cellblock.walls.sandbox.narrowing import Hosts, Paths
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import check_workspace
from cellblock.walls.sandbox.policy import DEFAULTS, MEMORY_BOUNDS, SANDBOX_RUNTIME, SECRET, Policy, is_complete
from cellblock.walls.sandbox.settings import read_settings

if TYPE_CHECKING:
    from cellblock.host.host import Host
    from cellblock.walls.sandbox.tiers import Tier

Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A configuration of the sandbox: a JSON file, or its content."""


def requested_policy(
    policy: Policy | None,
    config: Config | None,
    options: SandboxOptions,
    tier: Tier,
    host: Host | None = None,
) -> Policy | None:
    """Return the policy that the arguments describe; None for the host's.

    Args:
        policy: The policy; None to use `config`.
        config: A configuration; None for the host's policy.
        options: Changes to the policy.
        tier: The session's isolation tier.
        host: The session's host, if known.

    Raises:
        InvalidInputError: An argument is invalid, or exceeds the host's policy.
    """
    given = ["policy"] * (policy is not None) + ["sandbox_config"] * (config is not None) + options.given
    if not given:
        return None
    if not tier.sandboxed:
        raise InvalidInputError(f"{_listed(given)} the sandbox, but sandbox=False turns it off")
    if policy is not None and config is not None:
        raise InvalidInputError("pass policy or sandbox_config, not both: each of them describes the whole sandbox")
    inherits = policy is None and config is None and host is not None
    base = policy
    if config is not None:
        base = _load_policy(config, tier)
    elif base is None:
        base = Policy() if host is None else host.defaults.policy
    if not isinstance(base, Policy):
        raise InvalidInputError(f"policy must be a Policy, not {policy!r}: for a file or a dict use sandbox_config")
    if not options.given:
        return base
    memory, (least, most) = options.memory, MEMORY_BOUNDS
    assert not isinstance(memory, str)
    if host is not None and host.defaults.ceiling:
        most = host.defaults.policy.resources.memory
    if memory is not None and not least <= memory <= most:
        raise InvalidInputError(
            f"memory must be from {least >> 20} MiB to {most >> 20:,} MiB here, not {memory:,} bytes: "
            "write a size with its unit, such as '2G'"
        )
    hosts = (*options.allow_hosts, *options.hosts)
    _check_hosts(hosts, "hosts" if options.hosts else "allow_hosts")
    _check_lines(options.http, tier)
    read, write = options.paths("read"), options.paths("write")
    for path in write:
        _check_writable(path)
    if inherits:  # what the host's policy covers needs no rule of its own, which `Policy.narrow` might refuse
        files = base.filesystem
        read = tuple(path for path in read if not Paths(files.read).cover(path))
        write = tuple(path for path in write if not Paths(files.write).cover(path))
        hosts = tuple(name for name in hosts if not Hosts(base.network.allow).cover(name))
    return base.widened(memory, read, write, hosts, options.http, options.devices)


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last} describe" if first else f"{last} describes"


def _check_hosts(hosts: Sequence[str], name: str) -> None:
    from cellblock.walls.egress.rules import Rule  # most sessions have no network

    for one in hosts:
        try:
            Rule.parse(one)
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}: {error}") from None


def _check_lines(lines: Sequence[str], tier: Tier) -> None:
    if lines:
        from cellblock.walls.egress.lines import Lines

        Lines.parse(lines)
        check_requests(tier)


def _check_writable(path: str) -> None:
    try:
        check_workspace(path)
    except InvalidInputError:
        raise InvalidInputError(
            f"write: {path} belongs to the system, or is private to each sandbox: name a directory of your own"
        ) from None


def _load_policy(config: Config, tier: Tier) -> Policy:
    """Return the policy of a configuration. srt reads complete settings of srt, cellblock all others."""
    data = _read(config)
    source = "sandbox_config" if isinstance(config, Mapping) else os.fspath(config)
    ours = not (is_complete(data) or data.get("defaults") == SANDBOX_RUNTIME) or data.get("defaults") == DEFAULTS[0]
    return Policy.parse(data, source) if ours else tier.policy_type.parse(data, source)


def _read(config: Config) -> Any:
    if not isinstance(config, str | os.PathLike | Mapping):
        raise InvalidInputError(f"sandbox_config must be the path of a file, or a dict, not {config!r}")
    return dict(config) if isinstance(config, Mapping) else read_settings(config)


def as_in_ipybox(config: Config) -> tuple[Config, str]:
    """Return a configuration as ipybox reads it, and a warning about what that exposes; empty if nothing more.

    ipybox passes its ``sandbox_config`` to sandbox-runtime, where everything is readable except ``denyRead``. This holds for
    settings that are complete for sandbox-runtime. Others keep cellblock's defaults.

    Raises:
        InvalidInputError: The configuration cannot be read.
    """
    data = _read(config)
    if not is_complete(data) or "defaults" in data:
        return config, ""
    denied = data["filesystem"]["denyRead"]
    hidden = [name for name in denied if isinstance(name, str)] if isinstance(denied, list) else []
    kept = {os.path.realpath(os.path.expanduser(name)) for name in hidden}
    secrets = [f"~/{name}" for name in SECRET if os.path.exists(os.path.expanduser(f"~/{name}"))]
    shown = [name for name in secrets if not any(is_inside(os.path.realpath(os.path.expanduser(name)), top) for top in kept)]
    return data | {"defaults": SANDBOX_RUNTIME}, (
        "sandbox_config has sandbox-runtime's defaults here: code can read every file that this user can read, except "
        f"{', '.join(dict.fromkeys((*hidden, '.env')))}"
        + (f"; among them {', '.join(shown)}" if shown else "")
        + '. To show only what allowRead names, add "defaults": "cellblock" to it; to keep this, "defaults": "sandbox-runtime"'
    )
