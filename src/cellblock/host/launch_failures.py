"""Errors for kernels that could not be started: the failure, its likely cause, and remedies."""

from __future__ import annotations

import os
import re

from cellblock.errors import LaunchError, SandboxError
from cellblock.walls.sandbox.steps import Failure, StepName, failure_of, told_failure
from cellblock.wire.control import EXIT_UNCONFINED, Refused

_MAX_SAID = 1000  # maximum characters of a process's message about a system error

_NO_SANDBOX: tuple[StepName, ...] = ("process", "worker", "python", "cell")
"""Steps that can also fail without a sandbox."""


def cannot_start(error: OSError) -> LaunchError:
    """Return the error for a start that failed with a system error of this process."""
    return launch_error("no kernel can be started now", failure_of(error, "process"))


def launch_error(what: str, failure: Failure, said: str = "") -> LaunchError:
    """Return the error that explains a failure, its likely cause and remedies.

    Args:
        what: The failed operation, as a clause such as ``no kernel can be started now``.
        failure: The failure.
        said: Output of the processes.
    """
    kind = LaunchError if failure.step in _NO_SANDBOX else SandboxError
    return kind(_explained(what, failure) + quote(said), step=failure.step, code=failure.code, said=failure.said)


def _explained(what: str, failure: Failure) -> str:
    try:
        from cellblock.walls.sandbox import causes  # rarely used
    except OSError:  # no descriptor is left to read the module
        ways = "Solutions: close files, or allow more (ulimit -n)"
        return f"{what}: this program has too many files open ({failure.said}). {ways}. 'cellblock doctor' says more"
    except ImportError:
        if os.path.exists(__file__):
            raise
        ways = "Start this program again. For named sessions, 'cellblock daemon status' says what the daemon waits for"
        return f"{what}: cellblock was reinstalled or moved after this program started, so its files no longer exist. {ways}"
    return causes.tell(what, failure)


def refused(told: Refused) -> LaunchError:
    """Return the error for init's refusal of a session."""
    failure = told_failure(told.step, told.code, told.error)
    if failure is None:
        return SandboxError(f"the sandbox cannot be made: {told.error[:_MAX_SAID]}")
    what = "the kernel could not be started" if failure.step in _NO_SANDBOX else "the sandbox cannot be made"
    return launch_error(what, failure)


def died(cause: str, status: int | None, said: str) -> LaunchError:
    """Return the error for a kernel that ended before it accepted cells, without a reason.

    Args:
        cause: The cause as derived from its end.
        status: Its worker's wait status, if known.
        said: Its output.
    """
    step: StepName = "confinement" if status == EXIT_UNCONFINED << 8 else "worker"
    return launch_error("the kernel could not be started", Failure(step, _error_number(said), cause), said)


def ended(what: str, said: str) -> LaunchError:
    """Return the error for a launcher process that ended before it could start kernels.

    Args:
        what: How it ended, as a clause.
        said: Its output.
    """
    last = (said.strip().splitlines() or ["it printed nothing"])[-1][:_MAX_SAID]
    return launch_error(what, Failure("python", _error_number(last), last), said)


def _error_number(said: str) -> int:
    """Return the system error number at the end of a traceback; 0 if none."""
    found = re.findall(r"\[Errno (\d{1,3})\]", said[-_MAX_SAID:])
    return int(found[-1]) if found else 0


def quote(said: str) -> str:
    """Format a process's output for the end of a message."""
    return f":\n{said.strip()}" if said.strip() else ""
