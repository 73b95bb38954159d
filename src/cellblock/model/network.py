"""The network of a running session: which hosts it can reach."""

from __future__ import annotations

from dataclasses import dataclass

from cellblock.model.plain import Plain


@dataclass(frozen=True, slots=True)
class SessionNetwork(Plain):
    """The hosts that a session and its branches can reach. `change_network` changes them.

    Attributes:
        allow: The allowed hosts, as patterns.
        deny: The denied hosts, which override `allow`.
        ask: Whether a person is asked about other hosts.
        revision: The number of changes so far.
        closed: How many connections the change closed.
        http: The request lines: a host that one names gets no other requests.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: bool = False
    revision: int = 0
    closed: int = 0
    http: tuple[str, ...] = ()
