"""Computes a session's policy from the arguments that describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellblock.errors import InvalidInputError
from cellblock.host.checks import default_tier, find_sandbox, find_tier

if TYPE_CHECKING:
    from cellblock.host import Host, Policy, Tier
    from cellblock.host.options import SessionOptions


def requested_tier(sandbox: bool, isolate: str | None, host: Host | None) -> Tier:
    """Return the isolation tier for a session.

    Args:
        sandbox: Whether to use a sandbox.
        isolate: The name of the sandbox; None for the default.
        host: The session's host; its kind of sandbox, if it has one, is the default.

    Raises:
        InvalidInputError: One of these is not valid.
    """
    if host is not None and not hasattr(host, "check_usable"):
        raise InvalidInputError(f"host must be a Host, not {host!r}")
    if not isinstance(sandbox, bool):
        raise InvalidInputError(f"sandbox must be True or False, not {sandbox!r}")
    asked = None
    if isolate is not None:
        asked = find_sandbox(isolate, "isolate", "the option sandbox=False switches the sandbox off")
    if not sandbox:
        return find_tier("none")
    return asked or (default_tier() if host is None or not host.defaults.tier.sandboxed else host.defaults.tier)


def requested_policy(
    policy: Policy | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    allow_hosts: Sequence[str],
    tier: Tier,
) -> Policy | None:
    """Return the policy that the arguments describe; None for the host's."""
    listed = isinstance(allow_hosts, Sequence) and not isinstance(allow_hosts, str)
    if not listed or not all(isinstance(name, str) for name in allow_hosts):
        raise InvalidInputError(f"allow_hosts must be a list of host names, not {allow_hosts!r}")
    if policy is None and config is None and not allow_hosts:
        return None
    if not tier.sandboxed:
        raise InvalidInputError("policy, sandbox_config and allow_hosts describe a sandbox, but sandbox=False turns it off")
    if policy is not None and config is not None:
        raise InvalidInputError("pass policy or sandbox_config, not both: each of them describes the whole sandbox")
    from cellblock.host import Policy

    if policy is None:
        policy = Policy() if config is None else _load_policy(config, tier.policy_type)
    if not isinstance(policy, Policy):
        raise InvalidInputError(f"policy must be a Policy, not {policy!r}: for a file or a dict use sandbox_config")
    if allow_hosts and tier.wrapped:
        raise InvalidInputError(
            "allow_hosts needs the native sandbox: for srt, name the hosts in sandbox_config, "
            'as {"network": {"allowedDomains": [...]}}'
        )
    network = replace(policy.network, allow=(*policy.network.allow, *allow_hosts))
    return replace(policy, network=network) if allow_hosts else policy


def _load_policy(config: str | os.PathLike[str] | Mapping[str, Any], kind: type[Policy]) -> Policy:
    if not isinstance(config, str | os.PathLike | Mapping):
        raise InvalidInputError(f"sandbox_config must be the path of a file, or a dict, not {config!r}")
    return kind.parse(dict(config), "sandbox_config") if isinstance(config, Mapping) else kind.load(config)


def with_readable(options: SessionOptions, directories: tuple[str, ...], host: Host) -> Policy | None:
    """Return the policy of a session, or its host's, widened so that packages in these directories can be imported.

    Args:
        options: The session's options.
        directories: The directories.
        host: The session's host. If it has a policy of its own, that is not widened here.
    """
    policy = options.policy
    if not directories or not host.defaults.tier_for(options).ours or host.defaults.ceiling:
        return policy
    policy = policy or host.defaults.policy
    files = policy.filesystem
    return replace(policy, filesystem=replace(files, read=(*files.read, *directories)))
