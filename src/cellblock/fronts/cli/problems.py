"""Exit statuses (docs/cli.md), and errors in one line."""

from __future__ import annotations

import sys

from cellblock.common.terminal import printable
from cellblock.errors import (
    BusyError,
    CellblockError,
    CheckpointError,
    ConflictError,
    InvalidInputError,
    McpServerError,
    NotFoundError,
    OutcomeUnknownError,
)

OK = 0
FAILED = 1
"""The code failed, the name is unknown, or the session's state does not allow it."""
USAGE = 2
BUSY = 3
UNAVAILABLE = 4
"""cellblock failed: no daemon, no kernel, no sandbox."""
UNKNOWN = 5
"""It is unknown whether the code ran."""
TIMED_OUT = 124
INTERRUPTED = 130

_STATUSES: dict[type[CellblockError], int] = {
    InvalidInputError: USAGE,
    NotFoundError: FAILED,
    CheckpointError: FAILED,
    ConflictError: FAILED,
    BusyError: BUSY,
    OutcomeUnknownError: UNKNOWN,
}


def status_of(error: CellblockError) -> int:
    """Return the exit status for an error."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), UNAVAILABLE)


def report(error: CellblockError) -> int:
    """Print an error on standard error; return the exit status."""
    message = str(error)
    if isinstance(error, BusyError):
        message += f"; try again in {error.retry_after:g} s"
    if isinstance(error, McpServerError):
        message = _in_one_line(message)
    if isinstance(error, OutcomeUnknownError) and error.execution:
        message += f"; 'cellblock logs --execution {error.execution}' has what it printed"
    say(f"cellblock: {message}")
    return status_of(error)


def _in_one_line(message: str) -> str:
    """Return a message about an MCP server with the last line of its output, which usually has the cause."""
    head, *written = [line for line in message.splitlines() if line.strip()]
    if len(written) < 2:  # the first line introduces the others
        return message
    return f"{head}; the last line it wrote to stderr: {written[-1].strip()} (run its command yourself to see all lines)"


def say(message: str) -> None:
    """Print a line for people on standard error."""
    sys.stdout.flush()
    print(printable(message), file=sys.stderr, flush=True)
