"""Connections of trusted programs to the servers that code runs in a session."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from cellblock.errors import AccessError, BusyError, InvalidInputError, KernelDiedError, NotFoundError, UnsupportedError, shown
from cellblock.host.descriptors import connected

if TYPE_CHECKING:
    from cellblock.host.kernels.cells import Cells
    from cellblock.host.kernels.kernel_slot import KernelSlot
    from cellblock.host.launch.control import Control
    from cellblock.walls.sandbox.tiers import Tier

_T = TypeVar("_T")
_AT_ONCE = 32
"""Dials at a time. Each has a descriptor on its way, which Linux counts for all of the user's processes together."""
_PATIENCE = 5.0
"""Seconds for a connection: a server that accepts none answers nothing."""
_MOMENT, _MOMENTS = 0.001, 5000
"""Seconds between attempts to send to an init that is busy, and how many there are."""


def check_port(port: object) -> int:
    """Return a TCP port.

    Raises:
        InvalidInputError: It is none.
    """
    if type(port) is not int or not 0 < port < 1 << 16:
        raise InvalidInputError(f"a port is a number from 1 to 65535, not {shown(port)}")
    return port


class Ports:
    """The TCP ports of one session."""

    def __init__(self, name: str, tier: Tier, kernels: KernelSlot, cells: Cells) -> None:
        """Store the arguments.

        Args:
            name: The session's name in messages.
            tier: How its kernels are isolated.
            kernels: Its kernels, whose init connects.
            cells: Its cells, which know whether it runs.
        """
        self._name = name
        self._tier = tier
        self._kernels = kernels
        self._cells = cells
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def connect(self, port: int) -> socket.socket:
        """Connect to a server in the session, by TCP at 127.0.0.1. What it sends is untrusted.

        Args:
            port: The port.

        Returns:
            The connected socket, which does not block, for example for ``asyncio.open_connection(sock=…)``. Close it.

        Raises:
            InvalidInputError: It is not a port.
            NotFoundError: Nothing listens there.
            AccessError: cellblock itself listens there.
            BusyError: The server does not accept the connection, or the session is too busy.
            UnsupportedError: The session has no network of its own: it needs ``isolate="native"``.
            StateError, LaunchError: As for `execute`.
        """
        check_port(port)
        async with self._turns:
            try:
                made = await self._ask(lambda control: control.dial(port))
                try:
                    await connected(made, ("127.0.0.1", port), _PATIENCE)
                    return made
                except BaseException:
                    made.close()
                    raise
            except TimeoutError:
                raise BusyError(
                    f"the server at port {port} of {self._name} accepts no connection within {_PATIENCE:g} s"
                ) from None
            except OSError as error:
                raise self._failure(port, error) from error

    async def ports(self) -> list[int]:
        """Return the ports to which `connect` can connect.

        Raises:
            UnsupportedError, StateError, LaunchError: As for `connect`.
        """
        try:
            return [*await self._ask(lambda control: control.list_ports())]
        except OSError as error:
            raise UnsupportedError(
                f"this machine does not tell which ports are open in {self._name}: {error.strerror}"
            ) from error

    def _failure(self, port: int, error: OSError) -> Exception:
        match error.errno:
            case errno.ECONNREFUSED:
                return NotFoundError(
                    f"nothing listens at port {port} of {self._name}: start the server first, at 127.0.0.1 or 0.0.0.0"
                )
            case errno.EACCES:
                return AccessError(f"port {port} of {self._name} is cellblock's own: its tools or its proxy listen there")
            case _:
                return BusyError(f"no connection to port {port} of {self._name} is possible now: {error.strerror}")

    async def _ask(self, ask: Callable[[Control], Awaitable[_T]]) -> _T:
        if not self._tier.own_network:
            raise UnsupportedError(
                f"{self._name} has isolate={self._tier.name!r}, where servers listen in the machine's own network: "
                "ports need isolate='native'"
            )
        for _ in range(_MOMENTS):
            self._cells.check_running()
            kernel = await self._kernels.live()
            try:
                await kernel.wake()
                return await ask(kernel.control)
            except BlockingIOError:
                await asyncio.sleep(_MOMENT)
            except KernelDiedError:  # just now: the next attempt gets the next one
                await kernel.settle()
        raise BusyError(f"{self._name} cannot be asked about its ports now: its init does not answer")
