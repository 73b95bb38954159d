"""Kernels and copies of kernels that were forked from one first kernel. They share its init, and so its sandbox."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cellblock.errors import CheckpointError, ProtocolError
from cellblock.host.launch.launcher import Ends, Launcher, connect
from cellblock.wire.control import (
    FROM_FAMILY,
    MAX_CONTROL,
    Connect,
    Copied,
    Drop,
    Gone,
    Listener,
    Resume,
    ToFamily,
    encode_control,
)
from cellblock.wire.messages import MAX_NUMBER, Park, Parked

if TYPE_CHECKING:
    from cellblock.host.kernels.kernel import Kernel

_PATIENCE = 5.0  # seconds for a copy to show that it lives
_GRACE = 1.0  # seconds for init to end


class Copy:
    """A parked copy of a kernel. It takes no time, and memory only for what has changed since.

    Attributes:
        number: What init knows it by.
        gone: Done when it has ended, or was dropped.
    """

    def __init__(self, family: Family, number: int) -> None:
        self.family = family
        self.number = number
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def drop(self) -> None:
        """End it. Dropping twice is fine."""
        self.family.drop(self)


class Family:
    """Kernels and copies that share an init. It lives until the last of them has ended.

    Attributes:
        launcher: What has started the first kernel, and so init.
        number: What the launcher calls that kernel.
    """

    def __init__(self, launcher: Launcher, number: int) -> None:
        """Begin without kernels.

        Args:
            launcher: What starts the first kernel.
            number: What the launcher calls it.
        """
        self.launcher = launcher
        self.number = number
        self._loop = asyncio.get_running_loop()
        self._kernels: set[Kernel] = set()
        self._copies: dict[int, Copy] = {}
        self._expected: dict[int, asyncio.Future[Copy]] = {}
        self._connection: socket.socket | None = None
        self._gone: asyncio.Future[None] | None = None
        self.on_connected: Callable[[], object] = lambda: None
        self.on_closed: Callable[[], object] = lambda: None

    @property
    def shared(self) -> bool:
        """Whether there are, or have been, copies: then init does not end with its first kernel."""
        return self._connection is not None

    @property
    def alone(self) -> bool:
        """Whether there is one kernel, and no copy."""
        return len(self._kernels) <= 1 and not self._copies

    def add(self, kernel: Kernel) -> None:
        """Take note of a kernel of this family."""
        self._kernels.add(kernel)

    async def leave(self, kernel: Kernel) -> None:
        """Take note that a kernel has ended. If it was the last, and there is no copy, init ends."""
        self._kernels.discard(kernel)
        await self._close_if_empty()

    # -- copies --------------------------------------------------------------------------------------------------------

    async def copy(self, kernel: Kernel, *, thorough: bool) -> Copy:
        """Have a copy of an idle kernel made.

        Args:
            kernel: A kernel of this family.
            thorough: Whether to look longer for what would not survive.

        Returns:
            The copy, which has shown that it lives. It is the caller's to drop, unless the caller was cancelled.

        Raises:
            CheckpointError: The kernel's state would not survive, there is no room, or the copy does not answer.
            KernelDiedError: The kernel has ended.
        """
        self._connect(kernel)
        number = secrets.randbelow(MAX_NUMBER)
        copied = self._expected[number] = self._loop.create_future()
        copy: Copy | None = None
        try:
            answer = await kernel.answer(Park(number, thorough))
            assert isinstance(answer, Parked)
            if answer.refusal is not None:
                raise CheckpointError(answer.refusal)
            await asyncio.wait([copied], timeout=_PATIENCE)
            if not copied.done():
                raise CheckpointError(f"the copy of the kernel has not answered within {_PATIENCE:g} s, and was ended")
            copy = copied.result()
        finally:
            del self._expected[number]
            if copy is None:  # it may come yet, or be there with nobody to want it
                self._tell(Drop(number))
                self._copies.pop(number, None)
        return copy

    def resume(
        self,
        copy: Copy,
        *,
        env: Mapping[str, str],
        listeners: Mapping[str, Listener],
        directory: Sequence[str],
        stay_in: str | None,
        seed: int | None,
        same_random_state: bool,
    ) -> Ends:
        """Have a kernel made of a copy, which stays as it is.

        Args:
            copy: A copy of this family.
            env: As in `Resume`, like the other arguments.
            listeners: See there.
            directory: See there.
            stay_in: See there.
            seed: See there.
            same_random_state: See there.

        Returns:
            The host's ends of the new kernel's connections. It says when it is ready.

        Raises:
            CheckpointError: The copy has ended.
            OSError: There is no room for the connections.
        """
        if copy.gone.done() or self._connection is None:
            raise CheckpointError("the checkpoint's process has ended")
        connection = self._connection
        message = Resume(copy.number, env, listeners, tuple(directory), stay_in, seed, same_random_state)

        def start(descriptors: Sequence[int]) -> None:
            socket.send_fds(connection, [encode_control(message)], descriptors)

        return connect(None, None, start)

    def drop(self, copy: Copy) -> None:
        """End a copy."""
        if self._copies.pop(copy.number, None) is None:
            return
        copy.gone.set_result(None)
        self._tell(Drop(copy.number))
        if not self._kernels:
            self._loop.create_task(self._close_if_empty())  # noqa: RUF006  # the host closes the family in any case

    # -- the connection ------------------------------------------------------------------------------------------------

    def _connect(self, kernel: Kernel) -> None:
        if self._connection is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                kernel.control.pass_on(Connect(), theirs)
            except BaseException:
                ours.close()
                raise
        self._connection, self._gone = ours, self._loop.create_future()
        self._loop.add_reader(ours.fileno(), self._on_readable)
        self.on_connected()

    def _tell(self, message: ToFamily) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(encode_control(message))
        except OSError:
            return  # its end is about to be noticed

    def _on_readable(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(MAX_CONTROL)
            message = FROM_FAMILY.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            message = None
        match message:
            case Copied(number) if number in self._expected and not self._expected[number].done():
                copy = self._copies[number] = Copy(self, number)
                self._expected[number].set_result(copy)
            case Copied(number):
                self._tell(Drop(number))  # a kernel says so that was not asked, or nobody waits for it any longer
            case Gone(number):
                self._lose(number)
            case None:
                self._loop.remove_reader(self._connection.fileno())
                for number in [*self._copies]:
                    self._lose(number)
                assert self._gone is not None
                self._gone.set_result(None)

    def _lose(self, number: int) -> None:
        if (copy := self._copies.pop(number, None)) is not None:
            copy.gone.set_result(None)

    async def _close_if_empty(self) -> None:
        if not self._kernels and not self._copies:
            await self.close()

    async def close(self) -> None:
        """End all copies; and init, if there is no kernel. It can be repeated."""
        connection = self._connection
        if connection is None:
            return
        assert self._gone is not None
        for copy in [*self._copies.values()]:
            self.drop(copy)
        if not self._gone.done():
            try:
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # there is no init any more
            await asyncio.wait([self._gone], timeout=_GRACE)
        if not self._gone.done() and not self._kernels:
            self.launcher.kill(self.number)
            await asyncio.wait([self._gone], timeout=_GRACE)
        if self._connection is not None:
            self._loop.remove_reader(connection.fileno())
            self._connection = None
            connection.close()
            self.on_closed()
