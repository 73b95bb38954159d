"""Starts kernels by forking them from a warm process, the zygote."""

from __future__ import annotations

import asyncio
import functools
import os
import select
import socket
from collections.abc import Sequence

from cellblock.errors import LaunchError, ProtocolError
from cellblock.host.descriptors import Tail
from cellblock.host.launch.launcher import Boot, Ends, Launcher, connect, exit_code, launching, opened
from cellblock.host.launch.start import Started
from cellblock.host.launch_failures import cannot_start, died, launch_error, quote, refused
from cellblock.walls.sandbox.cgroups import Group
from cellblock.walls.sandbox.steps import Failure
from cellblock.wire.control import FROM_LAUNCHER, End, Failed, Fork, Kill, Ready, Refused, Setup
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

_KILL_AGAIN = 0.01
"""Seconds until another attempt to kill a kernel, if the socket had no room for the request."""


class ForkServer(Launcher):
    """A fork server for one interpreter, one set of preloaded modules and one isolation."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._group: Group | None = None
        self._process: Started | None = None
        self._control: socket.socket | None = None
        self._stderr = Tail()
        self._ready: asyncio.Future[None] | None = None
        self._failures: dict[int, Failed] = {}
        self._queue = asyncio.Lock()
        self._may_send = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether it can still fork: it has neither ended nor failed to start."""
        if self._ready is None:
            return True
        return self._control is not None and not (self._ready.done() and self._ready.exception() is not None)

    def begin(self) -> None:
        """Start the zygote on the first call."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            try:
                self._run()
            except OSError as error:
                self._fail(cannot_start(error))
            except LaunchError as error:
                self._fail(error)

    async def start(self, timeout: float) -> None:
        """Wait until the zygote is warm."""
        self.begin()
        assert self._ready is not None
        await asyncio.wait([self._ready], timeout=timeout)
        if not self._ready.done():
            raise LaunchError(f"the fork server was not ready within {timeout:g} s{quote(self._stderr.text())}")
        self._ready.result()

    async def room(self, timeout: float) -> None:
        """Wait for room in the socket, which does not fit hundreds of requests. They queue here, in order."""
        if not self._queue.locked() and self._has_room():
            return
        try:
            async with asyncio.timeout(timeout), self._queue:
                while self._control is not None and not self._has_room():
                    await self._wait_to_send(self._control)
        except TimeoutError:
            raise LaunchError(
                f"the fork server did not accept a request within {timeout:g} s: it is stopped, or the machine is overloaded"
            ) from None

    def _has_room(self) -> bool:
        """Return whether one more request fits into the socket."""
        if self._control is None:
            return False
        poll = select.poll()
        poll.register(self._control, select.POLLOUT)
        return bool(poll.poll(0))

    async def _wait_to_send(self, control: socket.socket) -> None:
        """Wait until the zygote has read earlier requests, or the connection is closed."""
        self._may_send.clear()
        loop = asyncio.get_running_loop()
        loop.add_writer(control.fileno(), self._may_send.set)
        try:
            await self._may_send.wait()
        finally:
            if self._control is control:
                loop.remove_writer(control.fileno())

    def launch(self, number: int, setup: Setup) -> Ends:
        if self._control is None:
            raise LaunchError(f"the fork server has ended{quote(self._stderr.text())}")
        # The zygote prepares a spare process in a control group that it got before. Each request brings the next group.
        group, following = self._group, self._boot.make_group()
        with launching(following):
            ends = connect(setup, group, functools.partial(self._fork, number, following))
        self._group = following
        return ends

    def _run(self) -> None:
        """Start the process. After a failure, this object still owns what was created, and `close` ends it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        with theirs:
            ours.setblocking(False)
            asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)
            reader, writer = os.pipe()
            try:
                self._stderr.follow(reader)
                self._group = self._boot.make_group()
                self._process = self._boot.run("zygote", theirs, writer)
                if self._boot.keep is not None:
                    self._boot.keep.hold(self._process, ours.fileno(), reader)
            finally:
                os.close(writer)
        self._boot.greet(ours, self._group)

    def _fail(self, error: LaunchError) -> None:
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # mark as retrieved: there may be no waiter

    def _fork(self, number: int, following: Group | None, descriptors: Sequence[int]) -> None:
        assert self._control is not None
        try:
            with opened(following) as group:
                socket.send_fds(self._control, [encode_control(Fork(number))], [*descriptors, *group])
        except OSError as error:
            if isinstance(error, ConnectionError):
                self._close_control()  # it has ended unnoticed
            raise LaunchError(f"the fork server cannot be reached: {error.strerror}") from error

    def _on_readable(self) -> None:
        assert self._control is not None
        assert self._ready is not None
        try:
            data = self._control.recv(MAX_CONTROL)
            message = FROM_LAUNCHER.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            message = None
        match message:
            case Ready(interpreter):
                self.interpreter = interpreter
                if not self._ready.done():
                    self._ready.set_result(None)
            case Failed():
                self._failures[message.session] = message
            case Refused():
                self._fail(refused(message))
            case None:  # the end of the socket
                self._close_control()
                if not self._ready.done():
                    self._fail(self._why_it_ended())

    def _why_it_ended(self) -> LaunchError:
        assert self._process is not None
        self._stderr.drain()
        code = exit_code(self._process)
        return self._boot.failure(code, self._stderr.text())

    def _say_goodbye(self) -> None:
        """Announce a graceful end to the zygote, so that it need not wait for the exit of this process."""
        if self._control is not None:
            try:
                self._control.send(encode_control(End()))
            except OSError:
                return  # it has ended, or will notice when the socket is closed

    def _close_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            asyncio.get_running_loop().remove_writer(self._control.fileno())
            self._control.close()
            self._control = None
            self._may_send.set()

    def kill(self, number: int) -> None:
        if self._control is None:
            return  # every init ends with its zygote
        try:
            self._control.send(encode_control(Kill(number)))
        except BlockingIOError:
            asyncio.get_running_loop().call_later(_KILL_AGAIN, self.kill, number)  # it has hundreds of requests to read
        except OSError:
            self._close_control()

    def sees(self, directory: str) -> bool:
        """Return whether the zygote has the same directory at a path, as its mounts date from its start."""
        if self._process is None or not os.path.exists(directory):
            return True
        try:
            return os.path.samefile(directory, f"/proc/{self._process.pid}/root{directory}")
        except PermissionError:  # this system does not show what another process sees
            return True
        except OSError:
            return False

    def packages(self, number: int) -> str | None:
        return None if self._process is None else self._boot.starter.packages(self._process)

    def explain(self, number: int, said: str, status: int | None, cause: str) -> LaunchError:
        while self._control is not None and number not in self._failures:
            before = len(self._failures)
            self._on_readable()
            if len(self._failures) == before:
                break
        if (failed := self._failures.pop(number, None)) is not None:
            return launch_error("the kernel could not be started", Failure("process", failed.code, failed.error), said)
        return died(cause, status, said or self._stderr.text())

    async def close(self) -> None:
        self._say_goodbye()
        self._close_control()
        if self._ready is not None:
            self._fail(LaunchError("the host was closed while the fork server started"))
        if self._process is not None:
            await self._boot.starter.end(self._process)
        if self._group is not None:
            self._group.remove()
        self._stderr.close()
        if self._boot.keep is not None:
            self._boot.keep.holding.release()
