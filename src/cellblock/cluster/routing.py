"""Routing of requests in a cluster, by the declarations of their operations."""

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
        address: The host's address.
        port: The host's port.
        grant: The grant for sessions created there.
    """

    node: str
    mark: str
    address: str
    port: int
    grant: str

    def named(self, error: Exception) -> str:
        """Add the node's name to the message of an error."""
        return f"node {self.node}: {error}"


def key_of(request: Request[Any]) -> str:
    """Return the key to the host of a request: a session's name or id, or an execution's id. Empty: all hosts."""
    for name in ("session", "execution"):
        if given := getattr(request, name, ""):
            return str(given)
    return ""


def for_a_node(request: Create, name: str, grant: str) -> Create:
    """Convert a request for a node: without options that only the creator's machine can use."""
    options = dict(request.options)
    options.pop("current_dir", None)
    if options.get("python") == sys.executable:
        del options["python"]  # each node has its own interpreter
    return replace(request, name=name, grant=grant, options=options)


def fresh_name() -> str:
    """Return a name that no other session has."""
    return f"session-{secrets.token_hex(8)}"


def preloaded(options: Mapping[str, Any]) -> list[str]:
    """Return the modules that a session wants to have imported."""
    preload = options.get("preload") or ()
    return [preload] if isinstance(preload, str) else [str(one) for one in preload]


def lost(answer: Mapping[str, Any], key: str) -> SessionLostError | None:
    """Return the error for a session that is unknown or lost; None if the director knows its location."""
    if "lost" not in answer:
        return None
    return SessionLostError(answer["lost"] or f"the cluster has no session {key!r}; if it existed, it was lost with its node")


def check_branch(request: Adopt, here: Where, there: Where) -> None:
    """Check that a session and its branch are on one node.

    Raises:
        UnsupportedError: They are not.
    """
    if here.mark != there.mark:
        raise UnsupportedError(
            f"session {request.session!r} is on node {here.node} and {request.branch!r} on node {there.node}: a session "
            "can adopt only a branch on its own node; save the branch and load it instead"
        )
