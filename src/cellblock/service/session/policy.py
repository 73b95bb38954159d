"""Computes the isolation tier of a session, and the additional paths that its policy must show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
        host: The session's host, whose kind of sandbox is the default.

    Raises:
        InvalidInputError: A value is invalid.
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


def with_readable(options: SessionOptions, directories: tuple[str, ...], host: Host) -> Policy | None:
    """Return the policy of a session, or its host's, widened so that packages in these directories can be imported.

    Args:
        options: The session's options.
        directories: The directories.
        host: The session's host. A policy of its own is not widened here.
    """
    policy = options.policy
    if not directories or not host.defaults.tier_for(options).ours or host.defaults.ceiling:
        return policy
    policy = policy or host.defaults.policy
    files = policy.filesystem
    return replace(policy, filesystem=replace(files, read=(*files.read, *directories)))
