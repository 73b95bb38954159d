"""Computes a session's policy from the arguments that describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cellblock.errors import InvalidInputError
from cellblock.host.checks import OURS, Isolate, default_isolation

if TYPE_CHECKING:
    from cellblock.host import Host, Policy
    from cellblock.host.options import SessionOptions


def requested_isolation(sandbox: bool, isolate: Literal["native", "landlock", "srt"] | None, host: Host | None) -> Isolate:
    """Return how a session is to be isolated."""
    if host is not None and not hasattr(host, "check_usable"):
        raise InvalidInputError(f"host must be a Host, not {host!r}")
    if not isinstance(sandbox, bool):
        raise InvalidInputError(f"sandbox must be True or False, not {sandbox!r}")
    if isolate not in ("native", "landlock", "srt", None):
        raise InvalidInputError(
            f"isolate must be 'native', 'landlock' or 'srt', not {isolate!r}; "
            "the option sandbox=False switches the sandbox off"
        )
    if not sandbox:
        return "none"
    if isolate is not None:
        return isolate
    return default_isolation() if host is None or host.isolate == "none" else host.isolate


def requested_policy(
    policy: Policy | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    allow_hosts: Sequence[str],
    isolate: Isolate,
) -> Policy | None:
    """Return what the sandbox is to allow; None for what the host says."""
    listed = isinstance(allow_hosts, Sequence) and not isinstance(allow_hosts, str)
    if not listed or not all(isinstance(name, str) for name in allow_hosts):
        raise InvalidInputError(f"allow_hosts must be a list of host names, not {allow_hosts!r}")
    if policy is None and config is None and not allow_hosts:
        return None
    if isolate == "none":
        raise InvalidInputError("policy, sandbox_config and allow_hosts describe a sandbox, but sandbox=False turns it off")
    if policy is not None and config is not None:
        raise InvalidInputError("pass policy or sandbox_config, not both: each of them describes the whole sandbox")
    from cellblock.host import Policy

    if policy is None:
        policy = Policy() if config is None else _load_policy(config, isolate)
    if not isinstance(policy, Policy):
        raise InvalidInputError(f"policy must be a Policy, not {policy!r}: for a file or a dict use sandbox_config")
    if allow_hosts and isolate == "srt":
        raise InvalidInputError(
            "allow_hosts needs the native sandbox: for srt, name the hosts in sandbox_config, "
            'as {"network": {"allowedDomains": [...]}}'
        )
    network = replace(policy.network, allow=(*policy.network.allow, *allow_hosts))
    return replace(policy, network=network) if allow_hosts else policy


def _load_policy(config: str | os.PathLike[str] | Mapping[str, Any], isolate: Isolate) -> Policy:
    from cellblock.host import Policy, SrtPolicy

    if not isinstance(config, str | os.PathLike | Mapping):
        raise InvalidInputError(f"sandbox_config must be the path of a file, or a dict, not {config!r}")
    kind = SrtPolicy if isolate == "srt" else Policy
    return kind.parse(dict(config), "sandbox_config") if isinstance(config, Mapping) else kind.load(config)


def with_readable(options: SessionOptions, directories: tuple[str, ...], host: Host) -> Policy | None:
    """Return the policy of a session's options, or its host's, with which packages in these directories can be imported.

    Args:
        options: What the session is to be.
        directories: The directories.
        host: The session's host. If it has a policy of its own, that is not widened here.
    """
    policy = options.policy
    if not directories or (options.isolate or host.isolate) not in OURS or host.defaults.ceiling:
        return policy
    policy = policy or host.defaults.policy
    files = policy.filesystem
    return replace(policy, filesystem=replace(files, read=(*files.read, *directories)))
