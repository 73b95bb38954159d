"""Where a request goes in a cluster, by what its operation declares."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cellblock.errors import SessionLostError, UnsupportedError
from cellblock.operations.base import Request
from cellblock.operations.checkpoints import Adopt
from cellblock.operations.sessions import Create

PATIENCE = 60.0
"""Seconds that a new session waits for room."""


@dataclass(frozen=True, slots=True)
class Where:
    """A host, as the director reports it.

    Attributes:
        node: The node's name.
        mark: The suffix of its sessions' ids.
        address: Where it listens.
        port: At this port.
        grant: The grant for sessions that are made there.
    """

    node: str
    mark: str
    address: str
    port: int
    grant: str

    def named(self, error: Exception) -> str:
        """Return the message of an error that was met there."""
        return f"node {self.node}: {error}"


def key_of(request: Request[Any]) -> str:
    """Return the key to the host of a request: a session's name or id, or an execution's id. Empty: all hosts are asked."""
    for name in ("session", "execution"):
        if given := getattr(request, name, ""):
            return str(given)
    return ""


def for_a_node(request: Create, name: str, grant: str) -> Create:
    """Return a request as a node can carry it out: without what its maker's machine alone has."""
    options = dict(request.options)
    options.pop("current_dir", None)
    if options.get("python") == sys.executable:
        del options["python"]  # each node has its own
    return replace(request, name=name, grant=grant, options=options)


def fresh_name() -> str:
    """Return a name that no other session has."""
    return f"session-{secrets.token_hex(8)}"


def preloaded(options: Mapping[str, Any]) -> list[str]:
    """Return the modules that a session wants to have imported."""
    preload = options.get("preload") or ()
    return [preload] if isinstance(preload, str) else [str(one) for one in preload]


def lost(answer: Mapping[str, Any], key: str) -> SessionLostError | None:
    """Return the error for a session that the director does not know or knows to be lost; None if it knows where it is."""
    if "lost" not in answer:
        return None
    return SessionLostError(
        answer["lost"] or f"there is no session {key!r} in the cluster; if there was one, its node is no more, and it is lost"
    )


def check_branch(request: Adopt, here: Where, there: Where) -> None:
    """Check that a session and its branch are on one node.

    Raises:
        UnsupportedError: They are not.
    """
    if here.mark != there.mark:
        raise UnsupportedError(
            f"session {request.session!r} is on node {here.node} and {request.branch!r} on node {there.node}: sessions adopt "
            "branches of their own node; save the branch, and load it"
        )
