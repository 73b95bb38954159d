"""Shows and changes the network of one running session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellblock.errors import StateError, UnsupportedError, with_host
from cellblock.model.network import SessionNetwork
from cellblock.walls.egress.lines import Lines

if TYPE_CHECKING:
    from cellblock.host.kernels.cells import Cells
    from cellblock.walls.egress.live import LiveNetwork
    from cellblock.walls.proxy.network import SandboxNetwork
    from cellblock.walls.sandbox.tiers import Tier


class NetworkChanges:
    """The changes of a session's network.

    Args:
        name: The session's name in messages.
        tier: Its isolation.
        network: Its network access; None if cellblock does not enforce it.
        cells: Its cells, which know whether it runs.
        recorded: As for `SessionHooks.network_changed`.
    """

    def __init__(
        self,
        name: str,
        tier: Tier,
        network: SandboxNetwork | None,
        cells: Cells,
        recorded: Callable[[Mapping[str, Any], str], Awaitable[None]] | None,
    ) -> None:
        self._name = name
        self._tier = tier
        self._network = network
        self._cells = cells
        self._recorded = recorded

    @property
    def shown(self) -> SessionNetwork:
        """The present lists."""
        if self._network is not None and self._network.live is None:
            return SessionNetwork()
        state = self._live().state
        return SessionNetwork(state.allow, state.deny, state.ask, state.revision, http=state.http)

    async def change(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        http: Sequence[str] = (),
        remove: Sequence[str] = (),
        expect: int | None = None,
        by: str = "caller",
    ) -> SessionNetwork:
        """Change the hosts and requests that the session and its branches can reach, at once and also for later kernels.

        Connections to hosts that are no longer allowed are reset, and so are unread connections to hosts that get a first
        request line. Other connections continue, and their next request is judged by the new lines. Undo does not
        reverse a change.

        Args:
            allow: Hosts to allow, as in `Network.allow`, within the host's policy.
            deny: Hosts to deny, even if they are allowed.
            http: Request lines to add, as in `Network.http`. Their hosts become allowed, and get no other requests.
            remove: Lines of all lists to remove. With the last line about a host, the host is removed, too.
            expect: The revision that the change is based on; None for any.
            by: Who changes it, for the audit record.

        Returns:
            The new lists, and how many connections the change closed.

        Raises:
            ConflictError: The network has another revision. Nothing has changed.
            InvalidInputError: A pattern is invalid, exceeds the host's policy, or is not there to be removed.
            StateError: `close_egress` has closed the network, or the session is closed, or was made without a network.
            StoreError: The change cannot be recorded. Nothing has changed.
            UnsupportedError: cellblock does not enforce its network, or the extra ``keys`` is not installed.
        """
        self._cells.check_running()
        live, recorded = self._live(), self._recorded
        if http and self._network is not None:
            Lines.parse(http)  # nothing is prepared for a wrong line
            await self._network.make_ready()

        async def record(lists: Mapping[str, Any]) -> None:
            if recorded is not None:
                await recorded(lists, by)

        closed = await live.change(allow=allow, deny=deny, http=http, remove=remove, expect=expect, record=record)
        return replace(self.shown, closed=closed)

    def _live(self) -> LiveNetwork:
        """Return the rules about hosts.

        Raises:
            StateError: The session was made without a network.
            UnsupportedError: cellblock does not enforce its network.
        """
        tier = self._tier
        if self._network is None:
            why = "srt reads the hosts only when it starts" if tier.wrapped else "without a sandbox, nothing restricts it"
            raise UnsupportedError(f"the network of {self._name} (isolate={tier.name!r}) cannot be changed: {why}")
        if self._network.live is None:
            if not tier.own_network:
                raise UnsupportedError(f"{self._name} has no network, and isolate={tier.name!r} can give it none")
            remedy = f"make a session with {with_host('NAME')}, or whose policy has network.ask"
            raise StateError(f"{self._name} was made without a network, which cannot be added later: {remedy}")
        return self._network.live
