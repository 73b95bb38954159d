"""Restrictions that no policy can lift, for sessions and MCP servers alike."""

from __future__ import annotations

import os
from dataclasses import replace

from cellblock.common import config
from cellblock.walls.sandbox import probe
from cellblock.walls.sandbox.placeholders import is_project
from cellblock.walls.sandbox.policy import Policy


def fit(policy: Policy, *, names_can_be_held: bool = True) -> Policy:
    """Return a policy that protects the trusted side from the code in the sandbox.

    The code cannot change the files that this process runs. It can neither read nor change cellblock's own state: servers,
    their parameters, and decisions for other sessions. It can neither change nor create the ``.env`` from which this process
    reads parameters of servers.

    Args:
        policy: The requested policy.
        names_can_be_held: Whether the sandbox can prevent code from creating a file. If not, or if the current directory is
            not a project, ``.env`` is read now, and not again.

    Raises:
        InvalidInputError: The policy names something impossible.
    """
    state = os.path.realpath(config.state_directory())
    files = policy.filesystem
    unread = dict.fromkeys((*files.deny_read, state))
    unwritten = dict.fromkeys((*files.deny_write, *probe.own_directories(), state, *_settings()))
    if not names_can_be_held or not _in_a_project():
        config.keep_variables()
        for name in _settings():  # the policy may have been fitted for another sandbox
            del unwritten[name]
    return replace(policy, filesystem=replace(files, deny_read=tuple(unread), deny_write=tuple(unwritten))).checked()


def _in_a_project() -> bool:
    try:
        return is_project(os.getcwd())
    except FileNotFoundError:
        return True  # the current directory was removed, so nothing can be created there


def _settings() -> tuple[str, ...]:
    """Return the variables file that this process reads, whether or not it exists."""
    try:
        return (str(config.variables_file()),)
    except FileNotFoundError:
        return ()  # the current directory was removed
