"""Starts kernels' processes: forked from a zygote, or each from a fresh interpreter. What comes out is the same."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cellblock.errors import InterpreterError, LaunchError, PreloadError, ProtocolError, SandboxError
from cellblock.host.descriptors import Tail
from cellblock.host.start import Starter
from cellblock.sandbox.cgroups import Group, Groups
from cellblock.wire.control import (
    EXIT_NO_IPYTHON,
    EXIT_PRELOAD,
    FROM_LAUNCHER,
    MAX_CONTROL,
    End,
    Failed,
    Fork,
    Hello,
    Kill,
    Ready,
    Setup,
    encode_control,
)

_BOOT = Path(__file__).parent.parent / "zygote" / "boot.py"

# What boot.py exits with; the zygote is started by command line, never imported.
_EXIT_TOO_OLD = 64  # of zygote/boot.py, which is started by path


@dataclass(frozen=True, slots=True)
class Ends:
    """The host's ends of one kernel's connections.

    Attributes:
        channel: Frames to and from the worker.
        control: Control messages to and from init.
        stdout: What is written to the kernel's descriptor 1.
        stderr: Likewise 2.
        group: The control group that its processes are in, where they have one.
    """

    channel: socket.socket
    control: socket.socket
    stdout: int
    stderr: int
    group: Group | None

    def close(self) -> None:
        """Close all of them. The group stays until there is nothing in it."""
        self.channel.close()
        self.control.close()
        os.close(self.stdout)
        os.close(self.stderr)


class Launcher(Protocol):
    """What a session needs of a way to start kernels."""

    interpreter: tuple[str, ...] | None
    """Directories of the interpreter and its packages, where they are known and matter."""

    @property
    def alive(self) -> bool:
        """Whether it can still start kernels."""

    def begin(self) -> None:
        """Begin to get ready to start kernels, without waiting for it."""

    async def start(self, timeout: float) -> None:
        """Get ready to start kernels, within this many seconds."""

    def launch(self, number: int, setup: Setup) -> Ends:
        """Start the processes of one kernel, without waiting for the kernel to be ready."""

    def kill(self, number: int) -> None:
        """Kill a kernel's init, and with it everything below."""

    def packages(self, number: int) -> str | None:
        """Return where the packages of a kernel's session are to lie, where its sandbox has a directory for them."""

    def explain(self, number: int, said: str, status: int | None) -> LaunchError:
        """Return the reason why a kernel ended before it was ready.

        Args:
            number: The kernel's.
            said: What it wrote to stderr.
            status: Its worker's wait status, where init lived to tell it.
        """

    async def close(self) -> None:
        """End every process of this launcher."""


class Zygote:
    """A fork server for one interpreter, one set of preloaded modules and one kind of isolation."""

    def __init__(
        self,
        interpreter: str,
        preload: tuple[str, ...],
        isolate: str,
        starter: Starter,
        places: str | None,
        groups: Groups | None = None,
    ) -> None:
        self._interpreter = interpreter
        self._preload = preload
        self._isolate = isolate
        self._starter = starter
        self._places = places
        self._groups = groups
        self._group: Group | None = None
        self.interpreter: tuple[str, ...] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stderr = Tail()
        self._ready: asyncio.Future[None] | None = None
        self._failures: dict[int, str] = {}

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process is None or self._control is not None

    def begin(self) -> None:
        """See `Launcher`. The first call starts the zygote."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._run(self._ready)

    async def start(self, timeout: float) -> None:
        """See `Launcher`. It waits until the zygote is warm."""
        self.begin()
        assert self._ready is not None
        await asyncio.wait([self._ready], timeout=timeout)
        if not self._ready.done():
            raise LaunchError(f"the fork server was not ready within {timeout:g} s{_quote(self._stderr.text())}")
        self._ready.result()

    def launch(self, number: int, setup: Setup) -> Ends:
        """See `Launcher`."""
        if self._control is None:
            raise LaunchError(f"the fork server has ended{_quote(self._stderr.text())}")
        # The zygote makes processes ahead, in a group that it was given ahead; with each request comes the group of the next.
        group, following = self._group, _make_group(self._groups)
        ends = _connect(setup, group, lambda descriptors: self._fork(number, descriptors, following))
        self._group = following
        return ends

    def _run(self, ready: asyncio.Future[None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe()
        try:
            self._group = _make_group(self._groups)
            with theirs:
                arguments = ["zygote", self._isolate, *self._preload]
                self._process = _run_boot(self._starter, self._interpreter, arguments, theirs, writer)
        except BaseException as error:
            ours.close()
            os.close(reader)
            _fail(ready, error)
            return
        finally:
            os.close(writer)
        self._control = ours
        ours.setblocking(False)
        self._stderr.follow(reader)
        _send_hello(ours, self._places, self._group)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    def _fork(self, number: int, descriptors: Sequence[int], following: Group | None) -> None:
        assert self._control is not None
        try:
            with _opened(following) as group:
                socket.send_fds(self._control, [encode_control(Fork(number))], [*descriptors, *group])
        except OSError as error:
            if isinstance(error, ConnectionError):
                self._close_control()  # it has ended, and there was no time to hear of it
            raise LaunchError(f"the fork server does not take requests: {error.strerror}") from error

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
            case Failed(session, error):
                self._failures[session] = error
            case None:  # the end of the socket
                self._close_control()
                if not self._ready.done():
                    _fail(self._ready, self._why_it_ended())

    def _why_it_ended(self) -> LaunchError:
        assert self._process is not None
        self._stderr.drain()
        code = _exit_code(self._process)
        return _failure(self._starter.command, self._interpreter, self._preload, code, self._stderr.text())

    def _say_goodbye(self) -> None:
        """Tell the zygote that this is an end in good order: it need not wait to see whether this process ends as well."""
        if self._control is not None:
            try:
                self._control.send(encode_control(End()))
            except OSError:
                return  # it has ended, or will hear of it when the socket is closed

    def _close_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

    def kill(self, number: int) -> None:
        """See `Launcher`."""
        if self._control is None:
            return  # every init ends with its zygote
        try:
            self._control.send(encode_control(Kill(number)))
        except OSError:
            self._close_control()

    def packages(self, number: int) -> str | None:
        """See `Launcher`."""
        return None if self._process is None else self._starter.packages(self._process)

    def explain(self, number: int, said: str, status: int | None) -> LaunchError:
        """See `Launcher`."""
        while self._control is not None and number not in self._failures:
            before = len(self._failures)
            self._on_readable()
            if len(self._failures) == before:
                break
        reason = self._failures.pop(number, None) or "it ended before it was ready"
        return LaunchError(f"the kernel could not be started: {reason}{_quote(said)}")

    async def close(self) -> None:
        """See `Launcher`."""
        self._say_goodbye()
        self._close_control()
        if self._ready is not None and not self._ready.done():
            _fail(self._ready, LaunchError("the host was closed while the fork server started"))
        if self._process is not None:
            await self._starter.end(self._process)
        if self._group is not None:
            self._group.remove()
        self._stderr.close()


class Spawner:
    """Starts a fresh interpreter for every kernel, where forking a loaded one is not safe."""

    def __init__(
        self,
        interpreter: str,
        preload: tuple[str, ...],
        isolate: str,
        starter: Starter,
        places: str | None,
        groups: Groups | None = None,
    ) -> None:
        self._interpreter = interpreter
        self._preload = preload
        self._isolate = isolate
        self._starter = starter
        self._places = places
        self._groups = groups
        self.interpreter: tuple[str, ...] | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def alive(self) -> bool:
        """See `Launcher`."""
        return True

    def begin(self) -> None:
        """See `Launcher`. There is nothing to get ready."""

    async def start(self, timeout: float) -> None:
        """See `Launcher`."""

    def launch(self, number: int, setup: Setup) -> Ends:
        """See `Launcher`."""
        self._forget_ended()
        group = _make_group(self._groups)
        return _connect(setup, group, lambda descriptors: self._spawn(number, descriptors, group))

    def _spawn(self, number: int, descriptors: Sequence[int], group: Group | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            # Whatever goes wrong before the descriptors are in place is written to the kernel's own stderr.
            arguments = ["spawn", self._isolate, *self._preload]
            self._processes[number] = _run_boot(self._starter, self._interpreter, arguments, theirs, descriptors[-1])
            _send_hello(ours, self._places, group)
            try:
                socket.send_fds(ours, [encode_control(Fork(number))], descriptors)
            except ConnectionError:
                pass  # it has ended already: the other ends of its connections close, which is noticed

    def kill(self, number: int) -> None:
        """See `Launcher`."""
        process = self._processes.get(number)
        if process is not None and process.poll() is None:
            # SIGTERM first would do on Linux; but what init leaves behind has nobody else to end it here.
            self._starter.terminate(process)

    def packages(self, number: int) -> str | None:
        """See `Launcher`."""
        process = self._processes.get(number)
        return None if process is None else self._starter.packages(process)

    def explain(self, number: int, said: str, status: int | None) -> LaunchError:
        """See `Launcher`."""
        process = self._processes.get(number)
        code = None
        if status is not None and 0 <= status <= 0xFFFF and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        elif process is not None:
            code = _exit_code(process)
        return _failure(self._starter.command, self._interpreter, self._preload, code, said)

    def _forget_ended(self) -> None:
        for number, process in [*self._processes.items()]:
            if process.poll() is not None:
                del self._processes[number]

    async def close(self) -> None:
        """See `Launcher`."""
        for process in self._processes.values():
            await self._starter.end(process)
        self._processes.clear()


def _connect(setup: Setup, group: Group | None, start: Callable[[Sequence[int]], None]) -> Ends:
    """Make a kernel's connections, have the other ends taken by ``start(descriptors)``, and return ours."""
    with ExitStack() as undo, ExitStack() as theirs:
        channel, their_channel = socket.socketpair()
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (channel, control):
            undo.callback(end.close)
            end.setblocking(False)
        theirs.callback(their_channel.close)
        theirs.callback(their_control.close)
        readers, writers = [], []
        for _ in range(2):
            reader, writer = os.pipe()
            undo.callback(os.close, reader)
            theirs.callback(os.close, writer)
            os.set_blocking(reader, False)
            readers.append(reader)
            writers.append(writer)
        # Init reads this first; the zygote, whose memory every later kernel inherits, never sees it.
        control.send(encode_control(setup))
        start([their_channel.fileno(), their_control.fileno(), *writers])
        undo.pop_all()
    return Ends(channel, control, readers[0], readers[1], group)


def _make_group(groups: Groups | None) -> Group | None:
    try:
        return None if groups is None else groups.make()
    except OSError as error:
        raise SandboxError(f"no control group can be made for a kernel: {error}; 'cellblock doctor' tells more") from error


@contextmanager
def _opened(group: Group | None) -> Iterator[list[int]]:
    """Hold a group's descriptor, to pass it on; none where there is no group."""
    descriptors = [] if group is None else [group.open()]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _run_boot(
    starter: Starter, interpreter: str, arguments: Sequence[str], control: socket.socket, stderr: int
) -> subprocess.Popen[bytes]:
    try:
        return starter.start([interpreter, str(_BOOT), *arguments], control, stderr)
    except OSError as error:
        raise InterpreterError(f"{interpreter} cannot be started: {error.strerror}") from error


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process whose connections are closed: it ends an instant later, and then can be waited for."""
    try:
        return process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        return None


def _send_hello(control: socket.socket, places: str | None, group: Group | None) -> None:
    """Say hello, with a pidfd of this process: its end is noticed even where a fork of it holds the sockets open.

    Args:
        control: Where to.
        places: What is to be removed after this process: all whose path begins in this way, or None.
        group: What the first session is to be in, which comes along.
        places: What is to be removed after this process: all whose path begins in this way, or None.
    """
    hello = encode_control(Hello(places))
    if sys.platform != "linux":
        control.send(hello)
        return
    own = os.pidfd_open(os.getpid())
    try:
        with _opened(group) as descriptors:
            socket.send_fds(control, [hello], [own, *descriptors])
    except ConnectionError:
        pass  # it has ended already, and its end is about to be noticed
    finally:
        os.close(own)


def _failure(command: str | None, interpreter: str, preload: tuple[str, ...], code: int | None, said: str) -> LaunchError:
    if code == _EXIT_TOO_OLD:
        return InterpreterError(f"{interpreter} is older than Python 3.11, which kernels need{_quote(said)}")
    if code == EXIT_NO_IPYTHON:
        return InterpreterError(
            f"{interpreter} cannot import IPython: install it there with '{interpreter} -m pip install ipython'{_quote(said)}"
        )
    if code == EXIT_PRELOAD:
        return PreloadError(
            f"{interpreter} cannot import a module of preload={preload!r}: install it there, or leave it out{_quote(said)}"
        )
    ending = "does not answer" if code is None else f"ended with status {code}"
    return LaunchError(f"{command or interpreter} {ending} before a kernel was ready{_quote(said)}")


def _fail(ready: asyncio.Future[None], error: BaseException) -> None:
    ready.set_exception(error)
    ready.exception()  # whoever waits for it gets it; nobody may


def _quote(said: str) -> str:
    return f":\n{said.strip()}" if said.strip() else ""
