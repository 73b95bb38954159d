"""Serves the proxy of a session or of an MCP server, on the listeners of its sandboxes."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.common.telemetry import MakeStep, untraced
from cellblock.errors import UnsupportedError
from cellblock.walls.sandbox.plan import EGRESS_PORT

if TYPE_CHECKING:
    from cellblock.walls.egress.judge import Approver, RequestJudge
    from cellblock.walls.egress.live import LiveNetwork
    from cellblock.walls.egress.rules import Denial
    from cellblock.walls.keys.session_keys import SessionKeys
    from cellblock.walls.proxy.proxy import EgressProxy
    from cellblock.walls.sandbox.policy import Network

_LOG = 1000
_NO_RETRIES = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_HTTP_RETRIES": "0"}
"""With these, pip and uv fail at once without a network. By default, they retry for seconds."""

OnHost: TypeAlias = Callable[[str, int], Awaitable[bool]]
"""Decides whether a host and a port that the policy does not name may be reached."""

Hold: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when a connection may be made; raises `StateError` if it is no longer wanted."""


async def nothing_held() -> None:
    """Do not block connections."""


def live_network(policy: Network, ceiling: Network | None = None) -> LiveNetwork | None:
    """Return the rules of a sandbox (`LiveNetwork.of`).

    Raises:
        InvalidInputError: A pattern is invalid. The message names it.
    """
    if not (policy.allow or policy.ask):
        return None  # as for most sessions
    from cellblock.walls.egress.live import LiveNetwork

    return LiveNetwork.of(policy, ceiling)


class SandboxNetwork:
    """The proxy of one sandbox: of a session, for each of its kernels, or of an MCP server.

    Attributes:
        live: The rules about hosts; None if no host can be reached.
        denials: The last refused attempts, oldest first.
    """

    def __init__(
        self,
        live: LiveNetwork | None,
        note: Callable[[str], None],
        ask: OnHost | None = None,
        hold: Hold = nothing_held,
        step: MakeStep = untraced,
        keys: SessionKeys | None = None,
        policy: Network | None = None,
        approver: Approver | None = None,
    ) -> None:
        """Set up without serving.

        Args:
            live: The rules about hosts.
            note: Called with a line for each refused attempt.
            ask: Decides about hosts that the policy does not name, if the policy says to ask.
            hold: Returns when a connection may be made.
            step: Begins the traced step of a connection.
            keys: Serves the connections to hosts that receive secrets, or that request lines name.
            policy: The policy with the request lines of broader policies.
            approver: The rules about requests, and the person.

        Raises:
            InvalidInputError: A request line is invalid, or the hosts include all. The message names it.
        """
        self.live = live
        self.denials: deque[Denial] = deque(maxlen=_LOG)
        self._note = note
        self._ask = ask
        self._hold = hold
        self._step = step
        self._keys = keys
        self._proxies: set[EgressProxy] = set()
        self._changing: asyncio.Task[None] | None = None
        self._judge: RequestJudge | None = None
        if live is not None and keys is not None and policy is not None:
            from cellblock.walls.egress.judge import RequestJudge
            from cellblock.walls.egress.lines import Lines

            within = [Lines.parse(lines) for lines in policy.within]
            self._judge = RequestJudge(live, within, approver, on_denied=self._on_denied)

    @property
    def reaches(self) -> bool:
        """Whether any host may be reached or asked for."""
        return self.live is not None

    def environment(self, port: int = EGRESS_PORT) -> dict[str, str]:
        """Return the variables that make programs use the proxy, or prevent useless retries if nothing may be reached.

        Without a proxy, name resolution fails in programs, as on any machine without a network.

        Args:
            port: The port of the proxy's listener, in the session.
        """
        if self.live is None:
            return dict(_NO_RETRIES)
        from cellblock.walls.proxy.proxy import environment

        return environment(port)

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        """Serve on a listener. Return a function that closes the listener and its connections."""
        from cellblock.walls.proxy.proxy import EgressProxy

        if self.live is None:
            listener.close()
            return lambda: None
        proxy = EgressProxy(
            listener,
            self.live,
            on_denied=self._on_denied,
            ask=self._ask,
            hold=self._hold,
            step=self._step,
            keys=self._keys,
            judge=self._judge,
        )
        self._proxies.add(proxy)
        self._then(proxy.start())

        def stop() -> None:
            self._proxies.discard(proxy)
            self._then(proxy.close())

        return stop

    def _then(self, step: Coroutine[Any, Any, None]) -> None:
        """Start or close a proxy, after all earlier steps."""

        async def change(before: asyncio.Task[None] | None) -> None:
            if before is not None:
                await before
            await step

        self._changing = asyncio.get_running_loop().create_task(change(self._changing))

    def withdraw_questions(self) -> None:
        """Withdraw open questions about hosts, because the code that asked was stopped, or has ended."""
        for proxy in self._proxies:
            proxy.withdraw_questions()

    async def make_ready(self) -> None:
        """Prepare for request lines, if the session was made without any.

        Raises:
            StateError, UnsupportedError: The session cannot get any. The message says what to do.
        """
        if self._keys is None:
            raise UnsupportedError("request lines need isolate='native': nothing else can read requests (http=, --allow-http)")
        await self._keys.make_ready()

    async def close(self) -> None:
        """Close all connections."""
        if self._changing is not None:
            await self._changing
        for proxy in self._proxies:
            await proxy.close()

    def _on_denied(self, denial: Denial) -> None:
        self.denials.append(denial)
        self._note(f"[cellblock] {denial.message}")
