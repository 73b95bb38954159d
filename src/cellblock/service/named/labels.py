"""Labels of named sessions at the custodian: enough to adopt a kernel if the store is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cellblock.model.sessions import SessionRecord

_LONGEST = 16 * 1024
"""Characters of a label with a record: the custodian has one limit for the label and the session's environment."""

_ENDED = "ended "


@dataclass(frozen=True, slots=True)
class Label:
    """A parsed label.

    Attributes:
        session: The session's id.
        ended: Whether the session was ended by a client: it must not continue, whatever else is known.
        record: The session's record. None if only a stored session can continue: it ends with its process, or its options were
            too long.
        options: Its options.
    """

    session: str
    ended: bool = False
    record: SessionRecord | None = None
    options: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, label: str) -> Self:
        """Parse a label. Labels of earlier versions consist of a session's id."""
        if label.startswith(_ENDED):
            return cls(label.removeprefix(_ENDED), ended=True)
        if not label.startswith("{"):
            return cls(label)
        said = json.loads(label)
        record = SessionRecord.from_dict(said["record"])
        return cls(record.kernel_id, record=record, options=said["options"])


def label_of(record: SessionRecord, options: Mapping[str, Any], *, lasting: bool) -> str:
    """Return the label of a new session.

    Args:
        record: Its record.
        options: Its options, as its maker has given them.
        lasting: Whether the next process adopts it.
    """
    label = json.dumps({"record": record.to_dict(), "options": options}) if lasting else ""
    return label if 0 < len(label) <= _LONGEST else record.kernel_id


def ended(session: str) -> str:
    """Return the label of a session, given by its id, that is being ended."""
    return f"{_ENDED}{session}"
