"""The record of a session's state changes for a later host; a null object without a custodian."""

from __future__ import annotations


class StateRecord:
    """A null recorder of one session's state changes.

    Attributes:
        recalled: Whether an earlier host recorded the session's history.
    """

    recalled = False

    def write(self, word: str, *rest: object) -> None:
        """Record an event, as `Past.apply` and `Recalled` read it."""

    def settle(self) -> None:
        """Flush all events before anything else happens."""

    def rewrite(self) -> None:
        """Record the whole state again, because more has changed than single events express."""


NO_RECORD = StateRecord()
