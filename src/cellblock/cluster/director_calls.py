"""Finds and calls the director of a Ray cluster, from asyncio or synchronous Python.

All calls are idempotent. If the director ends meanwhile, the call is repeated with the next one, which Ray starts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from cellblock.cluster.cluster_options import DIRECTOR, NAMESPACE, ClusterOptions
from cellblock.cluster.director import Director
from cellblock.common.version import __version__
from cellblock.errors import DaemonError, UnsupportedError

_PATIENCE = 30.0
"""Seconds in which a director that has ended is started again."""

_ANSWERS = 5.0
"""Seconds in which Ray's control service takes a connection."""

_PAUSE = 0.1
_MOST_AT_ONCE = 20_000


def connect_ray(address: str) -> None:
    """Connect this program to a Ray cluster, unless it is already connected.

    Raises:
        DaemonError: No cluster exists at this address, or it refuses the connection.
    """
    if ray.is_initialized():
        return
    _check_answers(address)
    says = logging.getLogger("ray")
    before = says.level
    says.setLevel(logging.ERROR)  # it warns about threads in which it sets no signal handlers
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise DaemonError(f"Ray cannot be reached at {address!r}: {lines[0][:500]}") from error
    finally:
        says.setLevel(before)


def _check_answers(address: str) -> None:
    """Check that something listens at an address. Otherwise Ray retries for minutes, with messages on standard error.

    Raises:
        DaemonError: Nothing listens.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:  # "auto", or an address of Ray's client
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS).close()
    except OSError as error:
        raise DaemonError(
            f"Ray's control service does not answer at {address}: {error.strerror or error}. Programs keep "
            "the sessions that they use, but cannot find others until it answers"
        ) from error


def start_director(options: ClusterOptions | None = None) -> DirectorCalls:
    """Return the calls of the director, which is started if needed, and creates a host on each node.

    Args:
        options: The options of a new director; None requires an existing director.

    Raises:
        DaemonError: The director does not exist, or cannot be started.
        UnsupportedError: The director has another version of cellblock.
    """
    try:
        found = ray.get_actor(DIRECTOR, namespace=NAMESPACE)
    except ValueError as error:
        if options is None:
            why = "this Ray cluster serves no sessions: run 'cellblock cluster start --address ADDRESS' first"
            raise DaemonError(why) from error
        found = _make(options)
    calls = DirectorCalls(found)
    about = calls.ask("credentials")
    if about["version"] != __version__:
        raise UnsupportedError(
            f"the cluster has cellblock {about['version']}, and this program {__version__}: install the same version"
        )
    calls.credentials = about["credentials"]
    return calls


def _make(options: ClusterOptions) -> Any:
    from cellblock.cluster.credentials import make_credentials

    return (
        ray.remote(Director)
        .options(
            name=DIRECTOR,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_MOST_AT_ONCE,
        )
        .remote(make_credentials(), options.to_dict(), __version__)
    )


class DirectorCalls:
    """The calls of a director.

    Attributes:
        credentials: The cluster's certificate and key.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.credentials = ""

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of `Director`, and wait for its answer.

        Raises:
            DaemonError: The director has ended, and no other one was started.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return ray.get(getattr(self._actor, what).remote(*arguments))
            except RayError as error:
                _check(error, deadline)
            time.sleep(_PAUSE)

    async def asked(self, what: str, *arguments: Any) -> Any:
        """Call a method of `Director`, and await its answer.

        Raises:
            DaemonError: The director has ended, and no other one was started.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return await getattr(self._actor, what).remote(*arguments)
            except RayError as error:
                _check(error, deadline)
            await asyncio.sleep(_PAUSE)

    def stop(self) -> None:
        """End all hosts with their sessions, and the director."""
        self.ask("stop")
        ray.kill(self._actor, no_restart=True)


def _check(error: RayError, deadline: float) -> None:
    """Raise an error that no retry can fix."""
    if isinstance(error, RayTaskError) and not isinstance(error, RayActorError):
        raise DaemonError(f"the cluster's director failed: {error.cause!r}") from error
    if time.monotonic() > deadline or "ray.kill" in str(error):
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise DaemonError(f"the cluster's director has ended and did not restart: {lines[0][:300]}") from error
