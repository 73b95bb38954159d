"""The specification of a session's kernels."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory
from cellblock.model import Recovery, StreamName
from cellblock.model.decisions import CommandRequest
from cellblock.walls.sandbox.policy import Policy
from cellblock.wire.control import Setup

if TYPE_CHECKING:
    from cellblock.host.launch.control import Control
    from cellblock.walls.sandbox.tiers import Tier
    from cellblock.wire.messages import Install


@dataclass(frozen=True, slots=True)
class RunningKernel:
    """The parts of a kernel that handlers of its code's requests use.

    Attributes:
        wanted: Its specification.
        control: The connection to its init, for actions outside the kernel.
        packages: The directory for its session's packages, if any.
        show: Adds text to the output of its running or next cell.
    """

    wanted: KernelSpec
    control: Control
    packages: str | None
    show: Callable[[StreamName, bytes], None]


Installer: TypeAlias = Callable[[RunningKernel, "Install"], Awaitable[int]]
"""Installs packages for a session: takes its kernel and the request, returns the number of the installation."""

OnListener: TypeAlias = Callable[[int, str, socket.socket], None]
"""Takes ownership of a listener: takes the number of the sandbox's first kernel, its name, and the listener."""

OnCommand: TypeAlias = Callable[[CommandRequest], Awaitable[bool | str]]
"""Decides whether a command may run: only True allows it; a string is the reason for a refusal."""


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """A report, in the next result, of a kernel that died while no cell ran.

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
        interpreter: Path of the interpreter.
        preload: Modules imported before the start.
        tier: Isolation.
        policy: Policy of the sandbox, if any.
        setup: The setup for init, except the sandbox: environment, directories, packages.
        limits: Limits on retained output.
        spill_to: The directory for output above the limits.
        on_listener: Serves on the listeners that init opens, ``egress`` or ``tools``.
        installer: Installs packages on request.
        on_command: Decides about the commands of cells; None if all are allowed.
        forbid_programs: Whether Linux prevents the kernel from executing programs, so that init runs approved ones.
        session: The session's name in messages.
        kept: The number of the session, if it should outlive this process.
        environment: The directory of the trusted environment that `preload` is imported from; empty for the interpreter's
            packages.
        notice: The death notice of the kernel that it replaces, reported even if this process is killed first.
    """

    interpreter: str
    preload: tuple[str, ...]
    tier: Tier
    policy: Policy
    setup: Setup
    limits: Limits
    spill_to: SpillDirectory | None
    on_listener: OnListener
    installer: Installer
    on_command: OnCommand | None = None
    forbid_programs: bool = False
    session: str = ""
    kept: int | None = None
    environment: str = ""
    notice: DeathNotice | None = None
