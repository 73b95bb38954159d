"""Converts errors to problem documents (RFC 9457) for the gateway, and back for its clients."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cellblock import errors
from cellblock.errors import AccessError, BusyError, CellblockError, DaemonError, FilesError, InvalidInputError

MEDIA_TYPE = "application/problem+json"

_STATUS: dict[type[CellblockError], int] = {
    errors.InvalidInputError: 422,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.StateError: 409,
    errors.CheckpointError: 409,
    errors.UnknownCheckpointError: 404,
    errors.BusyError: 503,
    errors.DaemonError: 503,
    errors.OutcomeUnknownError: 502,
    errors.UnsupportedError: 501,
    errors.InterpreterError: 422,
    errors.PreloadError: 422,
    errors.KernelDiedError: 502,
    errors.ProtocolError: 502,
    errors.ToolRunnerError: 502,
    errors.McpServerError: 502,
    errors.FilesError: 422,
    errors.ProcessError: 422,
    errors.AccessError: 403,
}
"""Class → HTTP status; the nearest base class counts, and 500 otherwise."""

_FILE_STATUS = {
    errno.ENOENT: 404,
    errno.EACCES: 403,
    errno.EEXIST: 409,
    errno.ENOTEMPTY: 409,
    errno.EFBIG: 413,
    errno.ENOSPC: 507,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of one request, as sent to the client.

    Attributes:
        status: The HTTP status.
        code: The stable code of the kind of problem.
        detail: An explanation of what happened and what to do.
        retry_after: Seconds after which to retry, or None.
        details: Other attributes of the error, by name.
    """

    status: int
    code: str
    detail: str
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        after = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {
            "type": f"urn:cellblock:problem:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            **after,
            **self.details,
        }


def problem_of(error: CellblockError) -> Problem:
    """Convert an error to a problem."""
    status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    if isinstance(error, FilesError):
        status = _FILE_STATUS.get(error.errno or 0, status)
    details = error.details()
    return Problem(status, code_of(type(error)), str(error), details.pop("retry_after", None), details)


def error_of(status: int, body: Any) -> CellblockError:
    """Convert a problem document to an error.

    Args:
        status: The HTTP status of the answer.
        body: The document, or anything else if an intermediary answered.
    """
    data = body if isinstance(body, dict) else {}
    detail = data.get("detail")
    message = detail if isinstance(detail, str) else f"the server answered with the status {status}"
    kind = _KINDS.get(str(data.get("code")))
    if status == 429:
        kind = BusyError
    elif kind is None and status in (401, 403):
        kind = AccessError
    elif kind is None:
        kind = InvalidInputError if 400 <= status < 500 else DaemonError
    return kind.remade(message, data)


def code_of(kind: type[CellblockError]) -> str:
    """Return the stable code of a class of errors: ``not_found`` of `NotFoundError`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()


_KINDS = {code_of(kind): kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CellblockError)}
