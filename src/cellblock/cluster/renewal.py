"""The renewal of a host's lease: by the newest director that it knows, and never by an older one."""

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
        """Begin without a director.

        Args:
            lease: The lease, which this alone writes.
            seconds: How long it lasts.
        """
        self.epoch = 0
        self._lease = lease
        self._seconds = seconds

    def answered(self, answer: Mapping[str, Any], asked: int) -> Outcome:
        """Take the answer to a report.

        Args:
            answer: As `Director.report` gives it.
            asked: When it was asked (`service.daemon.lease.now`).
        """
        if answer["epoch"] < self.epoch:
            return "older"
        if answer["lost"]:
            return "lost"
        if answer["epoch"] > self.epoch:  # obey only the new director, and report our sessions to it
            self.epoch = answer["epoch"]
            self._lease.renew(self._lease.until, self.epoch)
            return "join"
        self._lease.renew(asked + int(self._seconds * 1e9), self.epoch)
        return "renewed"

    def check(self, epoch: int) -> None:
        """Check that a director may ask for something.

        Raises:
            ConflictError: Another one has taken over from it.
        """
        if epoch < self.epoch:
            raise ConflictError(f"director {epoch} has been replaced by {self.epoch}: nothing was done")
