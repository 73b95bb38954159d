"""The changed networks of named sessions, which branches share and which outlive this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cellblock.service.store.session_registry import SessionRegistry

if TYPE_CHECKING:
    from cellblock.host.options import SharedNetwork, ShareNetwork


class Networks:
    """The networks of all named sessions, by the ids of the sessions."""

    def __init__(self, registry: SessionRegistry) -> None:
        """Load the stored networks."""
        self._registry = registry
        self._networks: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._live: dict[str, SharedNetwork] = {}
        for session, network, state in registry.networks():
            self._networks[session], self._states[network] = network, state

    def joining(self, session: str) -> ShareNetwork:
        """Return a function that replaces new rules of a session with those that it shares or had (`SessionHooks.network`)."""
        return partial(self._join, session)

    def _join(self, session: str, fresh: SharedNetwork) -> SharedNetwork:
        network = self._networks.setdefault(session, session)
        if network not in self._live:
            if state := self.state(session):
                fresh.resume(**json.loads(state))
            fresh.keep = partial(self._keep, network)
            self._live[network] = fresh
        return self._live[network]

    def share(self, session: str, branch: str) -> None:
        """Have a branch share a session's network, if it has one. It is written when this returns.

        Raises:
            StoreError: The store cannot be written.
        """
        if (network := self._networks.get(session)) is not None:
            self._networks[branch] = network
            self._registry.set_networks((session, branch), network, self._states.get(network, ""))

    def state(self, session: str) -> str:
        """Return the changed state of a session's network, as text; empty if it was not changed."""
        return self._states.get(self._networks.get(session, session), "")

    def take(self, session: str, state: str) -> None:
        """Set the state of a session that comes from another node, before it starts.

        Raises:
            StoreError: The store cannot be written.
        """
        if state:
            self._registry.set_networks((session,), session, state)
            self._networks[session], self._states[session] = session, state

    def leave(self, session: str) -> None:
        """Forget the network of an ended session, unless branches share it."""
        network = self._networks.pop(session, session)
        if network not in self._networks.values():
            self._live.pop(network, None)
            self._states.pop(network, None)

    def _keep(self, network: str, state: Mapping[str, Any]) -> None:
        text = json.dumps(state)
        self._registry.set_networks([one for one, shared in self._networks.items() if shared == network], network, text)
        self._states[network] = text
