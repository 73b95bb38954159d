"""Labels that the custodian stores for named sessions: enough to adopt a kernel if the store is lost."""

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
        ended: Whether a client ended the session, so that it must not continue.
        record: The session's record. None if only a stored session can continue, because it ends with its process or its
            options were too long.
        options: The session's options.
        since: The last execution that had ended when the session's history began (`NamedSession.since`).
    """

    session: str
    ended: bool = False
    record: SessionRecord | None = None
    options: Mapping[str, Any] | None = None
    since: str = ""

    @classmethod
    def read(cls, label: str) -> Self:
        """Parse a label. Labels of earlier versions consist of a session's id."""
        if label.startswith(_ENDED):
            return cls(label.removeprefix(_ENDED), ended=True)
        if not label.startswith("{"):
            return cls(label)
        said = json.loads(label)
        if "record" not in said:
            return cls(said["session"], since=said["since"])
        record = SessionRecord.from_dict(said["record"])
        return cls(record.kernel_id, record=record, options=said["options"], since=said["since"])


def described(record: SessionRecord, options: Mapping[str, Any], since: str) -> str:
    """Return the label of a session that a later process can recreate, without a length limit. For the parts, see `Label`."""
    return json.dumps({"record": record.to_dict(), "options": options, "since": since})


def label_of(record: SessionRecord, options: Mapping[str, Any], since: str, *, lasting: bool) -> str:
    """Return the label of a session.

    Args:
        record: The session's record.
        options: The options as the creator gave them.
        since: As in `Label`.
        lasting: Whether the next process adopts the session.
    """
    label = described(record, options, since) if lasting else ""
    return label if 0 < len(label) <= _LONGEST else json.dumps({"session": record.kernel_id, "since": since})


def ended(session: str) -> str:
    """Return the label of a session that is being ended."""
    return f"{_ENDED}{session}"
