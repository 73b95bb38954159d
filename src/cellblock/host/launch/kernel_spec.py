"""Specifies the kernels of a session."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cellblock.host.checks import OURS, Isolate
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.model import Recovery, StreamName
from cellblock.model.decisions import CommandRequest
from cellblock.sandbox.policy import Policy
from cellblock.wire.control import Setup

if TYPE_CHECKING:
    from cellblock.host.launch.control import Control


class Output(Protocol):
    """The part of `cellblock.host.kernels.kernel_output.KernelOutput` that serves others than its kernel."""

    def insert(self, name: StreamName, text: bytes) -> None:
        """Take text from elsewhere for the output of the running cell, or of the next one."""


class RunningKernel(Protocol):
    """The part of `cellblock.host.kernels.kernel.Kernel` that is needed to serve requests of its code.

    Attributes:
        wanted: What it was asked to be.
        control: Its init, for what is done in the session and not by the kernel.
    """

    wanted: KernelSpec
    control: Control

    @property
    def packages(self) -> str | None:
        """The directory for the packages of its session, if its sandbox has one."""

    @property
    def output(self) -> Output:
        """What the reader of its cells is shown."""


Installer: TypeAlias = Callable[[RunningKernel, tuple[str, ...]], Awaitable[int]]
"""Installs packages for a session: takes its kernel and pip's arguments, returns pip's wait status."""

OnListener: TypeAlias = Callable[[socket.socket], None]
"""Takes a listener, which is then its own to close."""

OnCommand: TypeAlias = Callable[[CommandRequest], Awaitable[bool | str]]
"""Decides whether a command may run: nothing but True is a yes, and text says why not."""


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """What the next result says of a kernel that died while no cell ran.

    Attributes:
        text: A line for a person.
        recovery: What the session goes on from, if variables were lost.
    """

    text: str
    recovery: Recovery | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSpec:
    """The specification of a kernel, the same for every kernel of a session.

    Attributes:
        interpreter: Path of the interpreter that it runs in.
        preload: Modules that it has imported when it starts.
        isolate: How it is isolated.
        policy: What it may do, if it is sandboxed.
        setup: What its init is told, except the sandbox: environment, directories, packages.
        limits: How much output is kept.
        spill_to: Where output that is too large to keep is written.
        takers: Each is given a listener that its init makes, ``egress`` or ``tools``, to serve on it.
        installer: Installs packages when it asks.
        on_command: Decides about the commands of its cells; None if nobody has to be asked.
        forbid_programs: Whether the system forbids it to execute programs, and its init runs those that were let through.
        session: The session that it is for, as messages call it.
        kept: The number of its session, if it is to outlive this process.
        notice: What is to be said of the kernel that it replaces, if that died: also if this process is killed before that.
    """

    interpreter: str
    preload: tuple[str, ...]
    isolate: Isolate
    policy: Policy
    setup: Setup
    limits: Limits
    spill_to: SpillDirectory | None
    takers: Mapping[str, OnListener]
    installer: Installer
    on_command: OnCommand | None = None
    forbid_programs: bool = False
    session: str = ""
    kept: int | None = None
    notice: DeathNotice | None = None

    @property
    def memory(self) -> int | None:
        """Bytes that all of its processes may use together, if somebody watches."""
        return self.policy.resources.memory if self.isolate in OURS else None
