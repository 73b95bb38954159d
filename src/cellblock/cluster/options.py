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
    """How hosts are made on the nodes of a Ray cluster.

    Attributes:
        cpus: Processors that each host reserves of its node; None: half of them.
        memory: Bytes that each host reserves of its node for sessions; None: half of what Ray has there.
        session_memory: Bytes that a session is promised if its maker does not say.
        lease: Seconds for which a node may go on without the director. Names of a node that is cut off are in use for as long.
        port: The port of each host; 0: any that is free.
        directory: The directory on each node for what hosts write.
        environment: Variables for daemons, such as settings (``CELLBLOCK_…``).
        on: The custom resource of Ray that a node must have to get a host; empty: every node gets one.
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
        """Return them as plain data."""
        return dataclasses.asdict(self)
