"""Decides about the HTTP requests of a session, by its rules and its approval broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cellblock.tools.approvals.call import Call
from cellblock.tools.approvals.rules import Outcome, Rules, decide, http_authorities

if TYPE_CHECKING:
    from cellblock.tools.approvals.broker import Broker


class RequestApprover:
    """The rules about requests of one session, and the broker that asks a person.

    Args:
        rules: The session's rules, which say the hosts.
        broker: The session's broker.
    """

    def __init__(self, rules: Rules | None, broker: Broker) -> None:
        self._authorities = frozenset(() if rules is None else http_authorities(rules))
        self._broker = broker

    def authorities(self) -> Iterable[str]:
        return self._authorities

    def by_rule(self, host: str, method: str, path: str) -> Outcome | None:
        call = Call.freeze("http", host, method, {"host": host, "method": method, "path": path})
        verdict = decide(self._broker.rules, call)
        return None if verdict.rule == "default" else verdict.outcome

    async def decide(self, arguments: dict[str, Any], *, by_person: bool) -> str | None:
        host, method = arguments["host"], arguments["method"]
        decision = await self._broker.decide("http", host, method, arguments, by_person=by_person)
        if decision.allowed:
            return None
        return decision.reason.removeprefix("rejected: ") or "no person allowed it"
