"""The director's interface to Ray: nodes, drained nodes, a host on each node, and the director's number."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cellblock.cluster.cluster_options import NAMESPACE
from cellblock.cluster.host_actor import HostActor
from cellblock.common.version import __version__

_NUMBERS = b"cellblock-directors"
"""The namespace of the numbers of directors in Ray's store."""


class RayHost:
    """The host of one node, by its actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of `HostActor`."""
        return await getattr(self._actor, what).remote(*arguments)

    def kill(self) -> None:
        """End the actor permanently."""
        with suppress(Exception):  # many kinds, from Ray: it has ended
            ray.kill(self._actor, no_restart=True)


class RayNodes:
    """The nodes of the Ray cluster to which this program is connected."""

    async def number(self) -> int:
        """Return a number that is higher than every earlier director's."""
        return await asyncio.to_thread(_number)

    async def latest(self) -> int:
        """Return the highest number that a director has taken."""
        return max(await asyncio.to_thread(_taken), default=0)

    async def all(self) -> Sequence[Mapping[str, Any]]:
        """Return all nodes in the form of `ray.nodes`."""
        return await asyncio.to_thread(ray.nodes)

    async def draining(self) -> Mapping[str, float]:
        """Return the nodes that Ray drains, with the remaining seconds."""
        return await asyncio.to_thread(_draining)

    def host(self, ray_node: str, *, cpus: float, memory: int, on: str, arguments: tuple[Any, ...]) -> RayHost:
        """Create the host of a node, unless it exists.

        Args:
            ray_node: Ray's id of the node.
            cpus: Processors to reserve.
            memory: Bytes to reserve.
            on: The custom resource that it needs; empty: none.
            arguments: The arguments of `HostActor`.
        """
        options: dict[str, Any] = {
            "name": f"host-{ray_node}",
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "num_cpus": cpus,
            "memory": memory,
            "resources": {on: 0.001} if on else {},
            "max_restarts": -1,
            "max_task_retries": 0,
            "max_concurrency": 8,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(ray_node, soft=False),
        }
        return RayHost(ray.remote(HostActor).options(**options).remote(*arguments))

    async def request(self, bundles: list[dict[str, float]]) -> None:
        """Tell Ray's autoscaler, if there is one, what waiting sessions need."""
        from ray.autoscaler.sdk import request_resources

        with suppress(Exception):  # there may be none
            await asyncio.to_thread(request_resources, bundles=bundles)


def _taken() -> list[int]:
    return [int(key) for key in _internal_kv_list(b"", namespace=_NUMBERS) or []]


def _number() -> int:
    """Acquire the first unused number: Ray's store creates a key only once."""
    taken = _taken()
    number = max(taken, default=0) + 1
    while _internal_kv_put(b"%d" % number, __version__.encode(), overwrite=False, namespace=_NUMBERS):  # it existed
        number += 1
    for before in taken:
        _internal_kv_del(b"%d" % before, namespace=_NUMBERS)
    return number


def _draining() -> Mapping[str, float]:
    from ray._private.state import state  # Ray has no public function for this

    found: Mapping[str, int] = state.get_draining_nodes()
    return {node: deadline / 1000 - time.time() if deadline else math.inf for node, deadline in found.items()}
