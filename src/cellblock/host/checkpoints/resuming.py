"""Creates kernels from checkpoints of one session, to continue or to inspect, and stops the current one meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cellblock.errors import CheckpointError, LaunchError
from cellblock.host.kernels.family import Anew

if TYPE_CHECKING:
    from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
    from cellblock.host.kernels.family import Copy
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.kernel_spec import DeathNotice, KernelSpec
    from cellblock.host.launch.session_listeners import SessionListeners
    from cellblock.wire.control import Listener

    Resume: TypeAlias = Callable[[Copy, KernelSpec, Anew], Awaitable[Kernel]]
    """Creates a kernel from a copy, and waits until it accepts cells."""


class Resuming:
    """Creates kernels from checkpoints.

    Attributes:
        can_double: Returns whether a session can have a second kernel next to this one.
        go_to: Called with each state to which the session returns, for its packages: in programs and fresh kernels.
    """

    def __init__(
        self,
        make: Resume,
        can_double: Callable[[Kernel], bool],
        wanted: KernelSpec,
        environment: Callable[[int], Mapping[str, str]],
        go_to: Callable[[int], None],
        listeners: SessionListeners,
    ) -> None:
        """Set up.

        Args:
            make: As for `Resume`.
            can_double: As for the attribute.
            wanted: The specification of the session's kernels.
            environment: Returns the environment variables for a proxy on a port of the session.
            go_to: As for the attribute.
            listeners: The listeners of the session's sandboxes.
        """
        self._make = make
        self.can_double = can_double
        self._wanted = wanted
        self._environment = environment
        self.go_to = go_to
        self._listeners = listeners

    async def resume(
        self, checkpoint: Checkpoint, beginning: Beginning | None = None, notice: DeathNotice | None = None
    ) -> Kernel:
        """Create a kernel from a checkpoint for this session.

        Args:
            checkpoint: The checkpoint.
            beginning: The start of the session's first kernel, which decides whether it shares the random state.
            notice: The death notice of the kernel that it replaces, if that kernel died.
        """
        family = checkpoint.moment.copy.family
        listeners: dict[str, Listener] = {}
        env: dict[str, str] = {}
        if ports := self._listeners.ports(family.number):
            env = {self._wanted.setup.listeners[name].variable: str(port) for name, port in ports.items()}
        else:
            listeners = dict(self._wanted.setup.listeners)
            if "egress" in listeners:
                if family.sealed:
                    raise CheckpointError(
                        "the network of this sandbox is closed permanently (close_egress), so it accepts no other "
                        "session: use a checkpoint from before"
                    )
                port = family.next_port(listeners["egress"].port)
                listeners["egress"] = replace(listeners["egress"], port=port)
                env = dict(self._environment(port))
        how = Anew(
            env=env,
            listeners=listeners,
            stay_in=self._wanted.setup.stay_in,
            seed=None if beginning is None else beginning.seed,
            same_random_state=beginning is None or beginning.same_random_state,
        )
        try:
            kernel = await self._make(checkpoint.moment.copy, replace(self._wanted, notice=notice), how)
        except BaseException as error:  # includes cancellation: the session's kernel stays
            self._listeners.settle()
            if not isinstance(error, LaunchError):
                raise
            most = self._wanted.policy.resources.processes
            room = (
                f" Each checkpoint is a process, and {most} may run at once (Resources(processes=…)): drop some checkpoints."
            )
            reason = room if self._wanted.tier.sandboxed and checkpoint.alive else ""
            raise CheckpointError(f"no kernel could be made from checkpoint {checkpoint.id}: {error}.{reason}") from error
        kernel.count, kernel.of_copy = checkpoint.execution_count, True
        self.go_to(checkpoint.moment.state)
        return kernel

    async def look_at(self, checkpoint: Checkpoint) -> Kernel:
        """Create an isolated kernel from a checkpoint to inspect its variables. The caller discards it."""
        wanted = replace(self._wanted, kept=None)  # no later host continues it
        try:
            return await self._make(checkpoint.moment.copy, wanted, Anew(stay_in=wanted.setup.stay_in, to_inspect=True))
        except LaunchError as error:
            raise CheckpointError(f"no kernel could be made from checkpoint {checkpoint.id}: {error}") from error


@asynccontextmanager
async def stopped(kernel: Kernel | None) -> AsyncIterator[None]:
    """Stop all processes of a session during a restore, because they could write to its files.

    Args:
        kernel: The session's kernel, possibly dead; None without a kernel or files to restore.

    Raises:
        CheckpointError: A process cannot be stopped.
    """
    if kernel is None or kernel.death is not None:
        yield
        return
    try:
        if left := await kernel.freeze():
            raise CheckpointError(
                f"{left} of the session's processes cannot be stopped, and could write to files during the restore: "
                "wait a moment, or end them"
            )
        yield
    except BaseException:  # includes cancellation: the processes continue, if the kernel is still the session's
        kernel.thaw()
        raise
