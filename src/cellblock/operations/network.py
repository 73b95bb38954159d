"""The network of a running session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import network
    from cellblock.operations.data import Data

_Lines = Annotated[tuple[str, ...], Limits(max_length=1000)]


class ShowNetwork(
    Request["Data[network.SessionNetwork]"],
    op="network",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/network", "Get the network of a session", scope="read"),
):
    """Return the hosts that a session and its branches can reach."""

    session: str


class ChangeNetwork(
    Request["Data[network.SessionNetwork]"],
    op="change network",
    route=Route("POST", "/sessions/{session}/network", "Change the network of a session", scope="approve", without=("by",)),
):
    """Change the hosts and requests that a session and its branches can reach, at once.

    Connections to hosts that are no longer allowed are reset.

    Attributes:
        session: The session.
        allow: Patterns of hosts to allow.
        deny: Patterns of hosts to deny, even if they are allowed.
        http: Request lines to add. Their hosts become allowed, and get no other requests.
        remove: Lines of all lists to remove.
        expect: The revision that the change is based on; -1 for any. With another one, nothing changes.
        by: Who changes it, for the record.
    """

    session: str
    allow: _Lines = ()
    deny: _Lines = ()
    http: _Lines = ()
    remove: _Lines = ()
    expect: Annotated[int, Limits(ge=-1)] = -1
    by: str = ""
