"""The base class of `ForkServer` and `Spawner`, and their common parts."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cellblock.errors import InterpreterError, LaunchError, PreloadError
from cellblock.host.launch.start import Started, Starter
from cellblock.host.launch_failures import cannot_start, ended, launch_error, quote
from cellblock.walls.sandbox.cgroups import Group, Groups
from cellblock.walls.sandbox.steps import failure_of
from cellblock.walls.sandbox.tiers import Basis
from cellblock.wire.control import EXIT_NO_IPYTHON, EXIT_PRELOAD, Hello, Setup
from cellblock.wire.datagrams import encode_control

if TYPE_CHECKING:
    from cellblock.launch.custody.custodian_client import Holding

_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_BOOT = Path(__file__).parents[2] / "launch" / "zygote" / "boot.py"

_SO_PASSRIGHTS = 83  # linux/socket.h; not in Python's `socket` yet

_EXIT_TOO_OLD = 64  # the exit status of boot.py, which is started by command line, never imported


@dataclass(frozen=True, slots=True)
class Ends:
    """The host's ends of one kernel's connections.

    Attributes:
        channel: Frames to and from the worker.
        control: Control messages to and from init.
        stdout: The reading end of the kernel's descriptor 1.
        stderr: The reading end of the kernel's descriptor 2.
        group: The control group of its processes, if any.
    """

    channel: socket.socket
    control: socket.socket
    stdout: int
    stderr: int
    group: Group | None

    def close(self) -> None:
        """Close all connections. The group stays until it is empty."""
        self.channel.close()
        self.control.close()
        os.close(self.stdout)
        os.close(self.stderr)


class Launcher(ABC):
    """Starts kernels for sessions. The defaults suit a launcher that has nothing to prepare and no queue."""

    interpreter: tuple[str, ...] | None = None
    """Directories of the interpreter and its packages, if known and relevant."""

    @property
    def alive(self) -> bool:
        """Whether it can still start kernels."""
        return True

    def begin(self) -> None:  # noqa: B027  # by default, there is nothing to prepare
        """Start to prepare in the background."""

    async def start(self, timeout: float) -> None:  # noqa: B027  # as above
        """Prepare to start kernels, within a time limit in seconds."""

    async def room(self, timeout: float) -> None:  # noqa: B027  # by default, there is no queue
        """Wait until `launch` can be called. The call must follow at once.

        Raises:
            LaunchError: There is no room within the time limit in seconds.
        """

    def sees(self, directory: str) -> bool:
        """Return whether its kernels are known to have the same directory at a path as this process."""
        return True

    @abstractmethod
    def launch(self, number: int, setup: Setup) -> Ends:
        """Start the processes of one kernel, without waiting for the kernel to be ready."""

    @abstractmethod
    def kill(self, number: int) -> None:
        """Kill a kernel's init, and all its child processes."""

    def packages(self, number: int) -> str | None:
        """Return the directory for the packages of a kernel's session, if any."""
        return None

    @abstractmethod
    def explain(self, number: int, said: str, status: int | None, cause: str) -> LaunchError:
        """Return the reason why a kernel ended before it was ready.

        Args:
            number: The kernel's number.
            said: Its output on stderr.
            status: Its worker's wait status, if init reported it.
            cause: The cause as derived from its end, for people.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every process of this launcher."""


@dataclass(frozen=True, slots=True)
class KeptLauncher:
    """Makes the custodian hold a launcher's process.

    Attributes:
        number: The launcher's number.
        pidfd: A pidfd of the process with which kernels end, instead of this one.
        holding: The custodian's entry for the process and its connections.
    """

    number: int
    pidfd: int
    holding: Holding

    def hold(self, process: Started, control: int, stderr: int) -> None:
        """Hold a process, with the connection to it and the reading end of its standard error."""
        from cellblock.launch.custody.custodian_client import Process  # loaded already if there is a custodian

        assert isinstance(process, Process)
        self.holding.hold({"number": self.number, "pid": process.pid}, [control, stderr, *process.descriptors])


@dataclass(frozen=True, slots=True)
class Boot:
    """The start configuration of a launcher's processes.

    Attributes:
        interpreter: Path of the kernels' interpreter.
        preload: Modules imported before kernels start.
        basis: How the process prepares for their sandboxes.
        starter: Starts a process, directly or in a sandbox of srt.
        places: Prefix of the paths to remove when this process has ended; None for nothing.
        groups: Creates a control group for each kernel; None without control groups.
        keep: Hands over the launcher's process to a custodian, if it should outlive this process.
        environment: The directory of the trusted environment that the modules are from, if any.
    """

    interpreter: str
    preload: tuple[str, ...]
    basis: Basis
    starter: Starter
    places: str | None
    groups: Groups | None = None
    keep: KeptLauncher | None = None
    environment: str = ""

    def run(self, role: Literal["zygote", "spawn"], control: socket.socket, stderr: int) -> Started:
        """Start a process: a zygote, or the init of one kernel.

        Raises:
            InterpreterError: The interpreter cannot be executed.
            LaunchError: There is no room for another process.
        """
        command = [self.interpreter, str(_BOOT), role, self.basis, self.environment, *self.preload]
        try:
            return self.starter.start(command, control, stderr)
        except OSError as error:
            if error.errno in _TRANSIENT:
                raise cannot_start(error) from error
            raise InterpreterError(f"{self.interpreter} cannot be started: {error.strerror}") from error

    def greet(self, control: socket.socket, group: Group | None) -> None:
        """Send a process the first message, with a pidfd of this one: a fork of this one may hold the sockets open.

        Args:
            control: The connection to it.
            group: The control group of the first kernel, which is passed along.
        """
        hello = encode_control(Hello(self.places))
        if sys.platform != "linux":
            control.send(hello)
            return
        own = os.pidfd_open(os.getpid()) if self.keep is None else os.dup(self.keep.pidfd)
        try:
            with opened(group) as descriptors:
                socket.send_fds(control, [hello], [own, *descriptors])
        except ConnectionError:
            pass  # it has already ended, as the reader is about to see
        finally:
            os.close(own)

    def make_group(self) -> Group | None:
        """Create the control group of a kernel, if kernels have one.

        Raises:
            SandboxError: It cannot be created.
        """
        try:
            return None if self.groups is None else self.groups.make()
        except OSError as error:
            raise launch_error("no control group can be made for a kernel", failure_of(error, "group")) from error

    def failure(self, code: int | None, said: str) -> LaunchError:
        """Return the error for the exit code of a process and its output."""
        if code == _EXIT_TOO_OLD:
            return InterpreterError(f"{self.interpreter} is older than Python 3.11, which kernels need{quote(said)}")
        if code == EXIT_NO_IPYTHON:
            advice = f"install it there with '{self.interpreter} -m pip install ipython'"
            return InterpreterError(f"{self.interpreter} cannot import IPython: {advice}{quote(said)}")
        if code == EXIT_PRELOAD:
            where = f"the environment in {self.environment}" if self.environment else self.interpreter
            what = f"{where} cannot import a module of preload={self.preload!r}"
            return PreloadError(f"{what}: install it there, or leave it out{quote(said)}")
        ending = "does not answer" if code is None else f"ended with status {code}"
        what = f"{self.starter.command or self.interpreter} {ending} before a kernel was ready"
        return ended(what, said)


def connect(setup: Setup | None, group: Group | None, start: Callable[[Sequence[int]], None]) -> Ends:
    """Create a kernel's connections, pass the other ends to ``start(descriptors)``, and return ours.

    Args:
        setup: The setup for its init; None if that init already serves the session.
        group: The control group of its processes, if any.
        start: Takes the other ends.
    """
    with ExitStack() as undo, ExitStack() as theirs:
        channel, their_channel = socket.socketpair()
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (channel, control):
            undo.callback(end.close)
            end.setblocking(False)
        refuse_descriptors(channel)
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
        # Init reads this first. The zygote, whose memory every later kernel inherits, never sees it.
        if setup is not None:
            control.send(encode_control(setup))
        start([their_channel.fileno(), their_control.fileno(), *writers])
        undo.pop_all()
    return Ends(channel, control, readers[0], readers[1], group)


def refuse_descriptors(end: socket.socket) -> None:
    """Make Linux reject descriptors that are sent to a socket, if it can (Linux 6.16).

    Otherwise they are closed when the message is read, which may block as long as the sender likes: a connection can linger.
    """
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


@contextmanager
def launching(group: Group | None) -> Iterator[None]:
    """Remove the new control group if the launch fails, and convert system errors to `LaunchError`."""
    try:
        yield
    except BaseException as error:  # includes cancellation: the group is useless without a kernel
        _give_back(group)
        if isinstance(error, OSError):
            raise cannot_start(error) from error
        raise


def _give_back(group: Group | None) -> None:
    if group is not None:
        group.remove()


@contextmanager
def opened(group: Group | None) -> Iterator[list[int]]:
    """Yield a descriptor of the group, to pass it on; an empty list without a group."""
    descriptors = [] if group is None else [group.open()]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def exit_code(process: Started) -> int | None:
    """Return the exit code of a process whose connections are closed. It ends within moments, so wait for it."""
    try:
        return process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        return None
