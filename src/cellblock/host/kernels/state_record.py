"""Where changes of a session's states are recorded for a later host: nowhere, unless the host has a custodian."""

from __future__ import annotations


class StateRecord:
    """Records changes of the states of one session. This one records nothing.

    Attributes:
        recalled: Whether the session's past was recorded by an earlier host.
    """

    recalled = False

    def write(self, word: str, *rest: object) -> None:
        """Record an event, in the words of `Past.apply` and `Recalled`."""

    def settle(self) -> None:
        """Make sure that all events are recorded before anything else happens."""

    def rewrite(self) -> None:
        """Record the whole state anew: more has changed than single events express."""


NO_RECORD = StateRecord()
