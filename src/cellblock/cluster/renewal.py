"""The renewal of a host's lease, only by the newest director that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cellblock.errors import ConflictError
from cellblock.service.daemon.lease import Lease

Outcome = Literal["renewed", "lost", "join", "older"]
"""``join``: the director does not know this host, or has just begun. ``older``: another director has taken over from it."""


class Renewal:
    """The lease of one host.

    Attributes:
        epoch: The number of the director that it obeys; 0 before the first.
    """

    def __init__(self, lease: Lease, seconds: float) -> None:
        """Set up without a director.

        Args:
            lease: The lease, which only this object writes.
            seconds: The duration of the lease.
        """
        self.epoch = 0
        self._lease = lease
        self._seconds = seconds

    def answered(self, answer: Mapping[str, Any], asked: int) -> Outcome:
        """Handle the answer to a report.

        Args:
            answer: The result of `Director.report`.
            asked: When the report was sent (`service.daemon.lease.now`).
        """
        if answer["epoch"] < self.epoch:
            return "older"
        if answer["lost"]:
            return "lost"
        if answer["epoch"] > self.epoch:  # obey only the new director, and report the sessions to it
            self.epoch = answer["epoch"]
            self._lease.renew(self._lease.until, self.epoch)
            return "join"
        self._lease.renew(asked + int(self._seconds * 1e9), self.epoch)
        return "renewed"

    def check(self, epoch: int) -> None:
        """Check that a director may send a request.

        Raises:
            ConflictError: A later director has taken over.
        """
        if epoch < self.epoch:
            raise ConflictError(f"director {epoch} has been replaced by director {self.epoch}: nothing was done")
