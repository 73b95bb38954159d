"""The specification of a session's kernels."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.model import Recovery, StreamName
from cellblock.model.decisions import CommandRequest
from cellblock.walls.sandbox.policy import Policy
from cellblock.wire.control import Setup

if TYPE_CHECKING:
    from cellblock.host.launch.control import Control
    from cellblock.walls.sandbox.tiers import Tier


class Output(Protocol):
    """The part of `cellblock.host.kernels.kernel_output.KernelOutput` that serves others than its kernel."""

    def insert(self, name: StreamName, text: bytes) -> None:
        """Add text from elsewhere to the output of the running cell, or of the next one."""


class RunningKernel(Protocol):
    """The part of `cellblock.host.kernels.kernel.Kernel` that is needed to serve requests of its code.

    Attributes:
        wanted: Its specification.
        control: The connection to its init, for actions that the kernel itself does not perform.
    """

    wanted: KernelSpec
    control: Control

    @property
    def packages(self) -> str | None:
        """The directory for its session's packages, if its sandbox has one."""

    @property
    def output(self) -> Output:
        """Its output, as shown to the reader of its cells."""


Installer: TypeAlias = Callable[[RunningKernel, tuple[str, ...]], Awaitable[int]]
"""Installs packages for a session: takes its kernel and pip's arguments, returns pip's wait status."""

OnListener: TypeAlias = Callable[[socket.socket], None]
"""Takes ownership of a listener."""

OnCommand: TypeAlias = Callable[[CommandRequest], Awaitable[bool | str]]
"""Decides whether a command may run: only True allows it; a string is the reason for a refusal."""


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """Reports, in the next result, a kernel that died while no cell ran.

    Attributes:
        text: A line for people.
        recovery: How the session continues, if variables were lost.
    """

    text: str
    recovery: Recovery | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSpec:
    """The specification of a kernel, the same for every kernel of a session.

    Attributes:
        interpreter: Path of its interpreter.
        preload: Modules that it has already imported at its start.
        tier: How it is isolated.
        policy: The policy of its sandbox, if it has one.
        setup: The setup for its init, except the sandbox: environment, directories, packages.
        limits: How much output is kept.
        spill_to: The directory for output that is too large to keep.
        takers: Take the listeners that its init makes, ``egress`` or ``tools``, and serve on them.
        installer: Installs packages on its request.
        on_command: Decides about the commands of its cells; None if all are allowed.
        forbid_programs: Whether the system forbids it to execute programs, and its init runs the approved ones instead.
        session: The session's name in messages.
        kept: The number of its session, if it should outlive this process.
        notice: The death notice of the kernel that it replaces; reported even if this process is killed first.
    """

    interpreter: str
    preload: tuple[str, ...]
    tier: Tier
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
        """Bytes that all of its processes may use together, if that is enforced."""
        return self.policy.resources.memory if self.tier.ours else None
