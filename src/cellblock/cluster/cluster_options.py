"""The options of a cluster."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

NAMESPACE = "cellblock"
"""Ray's namespace of the actors."""

DIRECTOR = "director"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of the hosts on the nodes of a Ray cluster.

    Attributes:
        cpus: Processors that each host reserves of its node; None: half of them.
        memory: Bytes that each host reserves of its node for sessions; None: half of Ray's memory there.
        session_memory: Default bytes reserved for a session.
        lease: Seconds that a node may continue without the director. Names of a disconnected node stay in use for as long.
        port: The port of each host; 0: any free port.
        directory: The directory on each node for the hosts' files.
        environment: Variables for daemons, such as settings (``CELLBLOCK_…``).
        on: The custom Ray resource that a node must have to get a host; empty: every node gets one.
    """

    cpus: float | None = None
    memory: int | None = None
    session_memory: int = 64 * 1024 * 1024
    lease: float = 30.0
    port: int = 0
    directory: str = ""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    on: str = ""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
