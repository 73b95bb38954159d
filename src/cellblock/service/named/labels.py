"""What the custodian calls a named session: enough to go on with its kernel if the stored sessions are lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cellblock.model.sessions import SessionRecord

_LONGEST = 16 * 1024
"""Characters of a label with a record: the custodian holds the session's environment beside it, and has a limit for both."""

_ENDED = "ended "


@dataclass(frozen=True, slots=True)
class Label:
    """A label, as the next process reads it.

    Attributes:
        session: The session's id.
        ended: Whether somebody has ended the session: it is not to go on, whatever else is known of it.
        record: The session's record; None if it must be in the store to go on: it ends with its process, or its options were
            too long.
        options: Its options.
    """

    session: str
    ended: bool = False
    record: SessionRecord | None = None
    options: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, label: str) -> Self:
        """Return what a label says. One that an earlier version has written is a session's id."""
        if label.startswith(_ENDED):
            return cls(label.removeprefix(_ENDED), ended=True)
        if not label.startswith("{"):
            return cls(label)
        said = json.loads(label)
        record = SessionRecord.from_dict(said["record"])
        return cls(record.kernel_id, record=record, options=said["options"])


def label_of(record: SessionRecord, options: Mapping[str, Any], *, lasting: bool) -> str:
    """Return the label of a session that begins.

    Args:
        record: Its record.
        options: Its options, as its maker has given them.
        lasting: Whether the next process goes on with it.
    """
    label = json.dumps({"record": record.to_dict(), "options": options}) if lasting else ""
    return label if 0 < len(label) <= _LONGEST else record.kernel_id


def ended(session: str) -> str:
    """Return the label of a session, by its id, that is being ended."""
    return f"{_ENDED}{session}"
