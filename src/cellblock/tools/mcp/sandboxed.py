"""The host's side of an MCP server's native sandbox: planning, the proxy, and clean-up.

The server's keeper creates and ends the sandbox itself (`cellblock.launch.keeper.sandboxed`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace

from cellblock.common import config
from cellblock.errors import InvalidInputError, ProtocolError, SandboxError, StoreError
from cellblock.walls.proxy.network import SandboxNetwork, live_network
from cellblock.walls.sandbox import causes, cgroups, probe
from cellblock.walls.sandbox.fitting import fit
from cellblock.walls.sandbox.placeholders import Hold
from cellblock.walls.sandbox.plan import EGRESS_PORT, base_steps, make_plan
from cellblock.walls.sandbox.policy import Network, Policy
from cellblock.walls.sandbox.repositories import protect_repositories
from cellblock.walls.sandbox.steps import Failure, told_failure
from cellblock.walls.sandbox.surroundings import look_around
from cellblock.wire.control import FROM_SERVER, FromServer, Made, Refused, ServerSetup
from cellblock.wire.datagrams import MAX_CONTROL, encode_control

_LOG = logging.getLogger("cellblock.tools")


class ServerSandbox:
    """The sandbox of one process of a server.

    Args:
        server: The server's name, for the log.
        policy: The server's policy.
        cwd: The working directory; None for its home directory in the sandbox, which is empty and in memory.

    Attributes:
        policy: The server's policy, without rights that no sandbox gives.
        refused: Why the sandbox was not created; None if it was.

    Raises:
        InvalidInputError: The policy is impossible.
        StoreError: The state directory cannot be used.
    """

    def __init__(self, server: str, policy: Policy, cwd: str | None) -> None:
        workspace = None if cwd is None else os.path.realpath(cwd)
        facts, own = probe.look(), probe.own_directories()
        _make_state()
        self.policy = fit(policy)
        self._plan = protect_repositories(make_plan(self.policy, facts, workspace, own))
        if policy.network.judges:
            raise InvalidInputError("request lines (network.http) are possible for sessions only")
        if policy.devices:
            raise InvalidInputError("devices are possible for sessions only")
        # Its policy is fixed: the ceiling allows no further host.
        live = live_network(policy.network, Network())
        self._network = SandboxNetwork(live, functools.partial(_LOG.info, "MCP server %r: %s", server))
        self._setup = ServerSetup(
            user=(facts.uid, facts.gid),
            base=tuple(base_steps(facts, own)),
            plan=self._plan,
            cwd=workspace or self._plan.home,
            port=EGRESS_PORT if self._network.reaches else None,
        )
        self._held, self._theirs = ExitStack(), ExitStack()
        self._control: socket.socket | None = None
        self._group: cgroups.Group | None = None
        self.refused: Refused | None = None
        self._over_memory = False
        self._hidden: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the variables that differ in the sandbox."""
        proxies = self._network.environment()
        if self._network.reaches:
            proxies["NODE_USE_ENV_PROXY"] = "1"  # without this, Node ignores the others
        return {**proxies, "HOME": self._plan.home, "USER": "user", "LOGNAME": "user"}

    def prepare(self) -> tuple[int, list[int]]:
        """Acquire the sandbox's resources. Blocks while another process has locked a directory.

        Returns:
            The keeper's end of the control socket, and all descriptors that the keeper inherits, until `started`.

        Raises:
            SandboxError: They are not available.
        """
        if sys.platform != "linux":
            raise SandboxError("the native sandbox needs Linux: give srt as the server's command (docs/tools.md)")
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._held.enter_context(self._control)
            self._theirs.enter_context(theirs)
            self._control.setblocking(False)
            holds = self._hold()
            group = self._limit()
            held = tuple((hold.descriptor, hold.names) for hold in holds)
            self._control.send(encode_control(replace(self._setup, holds=held, group=group)))
        except (OSError, ProtocolError) as error:
            raise SandboxError(f"its sandbox cannot be made: {error}") from error
        passed = [theirs.fileno(), *(hold.descriptor for hold in holds)]
        return theirs.fileno(), passed if group is None else [*passed, group]

    def _hold(self) -> list[Hold]:
        """Prevent the creation of protected names. The keeper holds them, too, in case this process is killed."""
        holds = []
        for top, names in self._plan.reserve.items():
            if (hold := Hold.take(top, names)) is not None:
                self._held.callback(hold.close)
                self._held.callback(hold.release)
                holds.append(hold)
                hold.fill()
        return holds

    def _limit(self) -> int | None:
        """Create a control group for the server, if possible; return its descriptor."""
        if (place := cgroups.find().directory) is None:
            return None  # the plan limits each process only
        groups = cgroups.Groups(place)
        self._held.callback(groups.close)
        self._group = groups.make()
        self._group.limit(self.policy.resources)
        descriptor = self._group.open()
        self._theirs.callback(os.close, descriptor)
        return descriptor

    def started(self) -> None:
        """Close the inherited descriptors, and listen to the keeper."""
        assert self._control is not None
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._hear)

    async def close(self) -> None:
        """Release all resources, once nothing runs in the sandbox."""
        if self._control is not None and self._control.fileno() >= 0:
            self._hear()  # the reason may have arrived just now
            asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._over_memory = self._group is not None and self._group.ran_out_of_memory()
        self._theirs.close()
        self._held.close()
        await self._network.close()

    def explain(self) -> str:
        """Return how the sandbox may have ended the server; empty if it has not."""
        if self.refused is not None:
            told = self.refused
            failure = told_failure(told.step, told.code, told.error)
            what = "its sandbox cannot be made"
            return f"{what}: {told.error}" if failure is None else _explained(what, failure)
        if self._over_memory:
            return f"it used more than the {self.policy.resources.memory:,} bytes of memory that its sandbox allows"
        if self._hidden:
            shown = ", ".join(self._hidden)
            return f"its sandbox does not show {shown}, which its arguments name: add that to filesystem.allowRead"
        return ""

    def _hear(self) -> None:
        assert self._control is not None
        message: FromServer | None = None
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_CONTROL, 1)
            message = FROM_SERVER.decode(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            _LOG.debug("a sandbox sent no message: %s", error)
        asyncio.get_running_loop().remove_reader(self._control.fileno())  # there is only one message
        for descriptor in descriptors:
            self._network.serve(socket.socket(fileno=descriptor))
        match message:
            case Made(hidden):
                self._hidden = hidden
            case Refused():
                self.refused = message


def _make_state() -> None:
    """Create cellblock's state directory: a server that may write around it could otherwise plant a registry there."""
    state = config.state_directory()
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{state}, where cellblock keeps its state, cannot be made: {error.strerror}") from error


def _explained(what: str, failure: Failure) -> str:
    """Return the failure and its remedies, without Landlock, which is only available for sessions."""
    around = replace(look_around(), landlock=False)
    native = "An MCP server's sandbox= is always the native one, also with isolate='landlock' (docs/tools.md)"
    return f"{causes.tell(what, failure, around)}. {native}"
