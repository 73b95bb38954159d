"""What no sandbox may do, whatever its policy says: for sessions and for MCP servers alike."""

from __future__ import annotations

import os
from dataclasses import replace

from cellblock import config
from cellblock.sandbox import probe
from cellblock.sandbox.placeholders import is_project
from cellblock.sandbox.policy import Policy


def fit(policy: Policy, *, names_can_be_held: bool = True) -> Policy:
    """Return a policy that keeps what decides on this side from the code in the sandbox.

    It can change neither what this process runs nor cellblock's own state, and cannot read that state: which servers there
    are, with what parameters, and what was decided for other sessions. Nor can it change or make the ``.env`` that this
    process reads for parameters of servers.

    Args:
        policy: What is asked.
        names_can_be_held: Whether the sandbox can keep code from making a file. If not, or if nothing is kept in the current
            directory because it is not a project, ``.env`` is read now, and no more.

    Raises:
        InvalidInputError: The policy names what cannot be.
    """
    state = os.path.realpath(config.state_directory())
    files = policy.filesystem
    unread = dict.fromkeys((*files.deny_read, state))
    unwritten = dict.fromkeys((*files.deny_write, *probe.own_directories(), state, *_settings()))
    if not names_can_be_held or not _in_a_project():
        config.keep_variables()
        for name in _settings():  # the policy may be one that was made to fit another sandbox
            del unwritten[name]
    return replace(policy, filesystem=replace(files, deny_read=tuple(unread), deny_write=tuple(unwritten))).checked()


def _in_a_project() -> bool:
    try:
        return is_project(os.getcwd())
    except FileNotFoundError:
        return True  # the current directory is gone, and with it what could be made there


def _settings() -> tuple[str, ...]:
    """Return the file of variables that this process reads, whether or not it exists."""
    try:
        return (str(config.variables_file()),)
    except FileNotFoundError:
        return ()  # the current directory is gone
