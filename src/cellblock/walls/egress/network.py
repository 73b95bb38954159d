"""Serves the proxy of a sandbox, on the listeners of its successive kernels."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cellblock.common.telemetry import MakeStep, untraced
from cellblock.errors import InvalidInputError
from cellblock.walls.sandbox.plan import EGRESS_PORT
from cellblock.walls.sandbox.policy import Network

if TYPE_CHECKING:
    from cellblock.walls.egress.connection import Opener
    from cellblock.walls.egress.judge import Approver
    from cellblock.walls.egress.proxy import EgressProxy
    from cellblock.walls.egress.rules import Denial

_LOG = 1000
_NO_RETRIES = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_HTTP_RETRIES": "0"}
"""With these, pip and uv fail at once without a network. By default, they retry for seconds."""

OnHost: TypeAlias = Callable[[str, int], Awaitable[bool]]
"""Decides whether a host and a port that the policy does not name may be reached."""


Hold: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when a connection may be made; raises `StateError` if it is no longer wanted."""


async def nothing_held() -> None:
    """Do not block connections."""


class SandboxNetwork:
    """The proxy of one sandbox: of a session, for each of its kernels, or of an MCP server.

    Attributes:
        denials: The last refused attempts, oldest first.
    """

    def __init__(
        self,
        network: Network,
        note: Callable[[str], None],
        ask: OnHost | None = None,
        hold: Hold = nothing_held,
        step: MakeStep = untraced,
        opener: Opener | None = None,
        approver: Approver | None = None,
        may_ask: Callable[[], str] = lambda: "",
    ) -> None:
        """Parse the rules.

        Args:
            network: The allowed hosts.
            note: Called with a line for each refused attempt.
            ask: Decides about hosts that the policy does not name, if the policy says to ask.
            hold: Returns when a connection may be made.
            step: Begins the traced step of a connection.
            opener: Serves the connections to hosts that receive secrets, or about which there are request lines.
            approver: The rules about requests, and the person.
            may_ask: Returns why a person cannot be asked about a request; empty if possible.

        Raises:
            InvalidInputError: A pattern or a request line is invalid, or request lines need an opener. The message names it.
        """
        self.denials: deque[Denial] = deque(maxlen=_LOG)
        self._note = note
        self._ask = ask if network.ask else None
        self._hold = hold
        self._step = step
        self._opener = opener
        self._judge = None
        self._rules = None
        self._proxy: EgressProxy | None = None
        self._changing: asyncio.Task[None] | None = None
        if network.allow or network.ask:
            # most sessions have no network
            from cellblock.walls.egress.rules import Rules

            self._rules = Rules.parse(network.allow, network.deny)
        if opener is None and network.judges:
            raise InvalidInputError("request lines (network.http) are possible for sessions only")
        if opener is not None:
            from cellblock.walls.egress.judge import RequestJudge, check_open_hosts
            from cellblock.walls.egress.lines import Lines

            lines, *within = [Lines.parse(texts) for texts in (network.http, *network.within)]
            self._judge = RequestJudge(lines, within, approver, may_ask=may_ask, on_denied=self._on_denied)
            if self._judge.authorities:
                check_open_hosts(network.allow)

    @property
    def reaches(self) -> bool:
        """Whether any host may be reached or asked for."""
        return self._rules is not None

    def environment(self, port: int = EGRESS_PORT) -> dict[str, str]:
        """Return the variables that make programs use the proxy, or prevent useless retries if nothing may be reached.

        Without a proxy, name resolution fails in programs, as on any machine without a network.

        Args:
            port: The port of the proxy's listener, in the session.
        """
        if self._rules is None:
            return dict(_NO_RETRIES)
        from cellblock.walls.egress.proxy import environment

        return environment(port)

    def adopt(self, listener: socket.socket) -> None:
        """Serve on a new kernel's listener from now on."""
        from cellblock.walls.egress.proxy import EgressProxy

        if self._rules is None:
            listener.close()
            return
        before = self._proxy
        self._proxy = EgressProxy(
            listener,
            self._rules,
            on_denied=self._on_denied,
            ask=self._ask,
            hold=self._hold,
            step=self._step,
            opener=self._opener,
            judge=self._judge,
        )
        self._changing = asyncio.get_running_loop().create_task(_change(before, self._proxy))

    async def close_to(self, allow: Sequence[str]) -> None:
        """Restrict the network to some of the allowed hosts. Open connections end, and no one is asked.

        Args:
            allow: The hosts, as patterns.

        Raises:
            InvalidInputError: A pattern is invalid. Nothing has changed.
        """
        from cellblock.walls.egress.rules import Rules

        narrowed = replace(Rules.parse(allow), within=self._rules) if self._rules is not None else None
        if narrowed is None:
            return  # nothing could be reached
        self._rules, self._ask = narrowed, None
        if self._judge is not None:
            self._judge.ask_nobody()
        if self._changing is not None:
            await self._changing
        if self._proxy is not None:
            await self._proxy.change(narrowed)

    def withdraw_questions(self) -> None:
        """Withdraw open questions about hosts, because the code that asked was stopped, or has ended."""
        if self._proxy is not None:
            self._proxy.withdraw_questions()

    async def close(self) -> None:
        """Close all connections."""
        if self._changing is not None:
            await self._changing
        if self._proxy is not None:
            await self._proxy.close()

    def _on_denied(self, denial: Denial) -> None:
        self.denials.append(denial)
        self._note(f"[cellblock] {denial.message}")


async def _change(before: EgressProxy | None, after: EgressProxy) -> None:
    await after.start()
    if before is not None:
        await before.close()
