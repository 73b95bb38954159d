"""Named sessions for plain synchronous Python: `get_or_create`, `execute`, `destroy` and their like.

From a script, a thread, a notebook or inside a running event loop. Sessions live in the per-user daemon, which is started on
first use, so that later programs find them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.model import AttemptSnapshot, CodeExecutionResult
from cellblock.model.sessions import Language, SessionRecord

_MAX_ATTEMPTS = 5
_local = threading.local()


def get_or_create(name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
    """Return the session of this name, which is made if there is none. It outlives this program.

    Args:
        name: Its name.
        tags: Labels, if it is made.
        options: Its options, if it is made: those of `CodeExecutor` that are data, and those of `NamedOptions`.

    Raises:
        InvalidInputError: The name or an option is wrong.
        LaunchError: Its kernel could not be started.
        DaemonError: The daemon cannot be started or reached.
    """
    from cellblock.daemon.messages import Create

    here = {"working_dir": os.getcwd(), "python": sys.executable}
    return SessionRecord.from_dict(_call(Create(name, {**here, **options}, dict(tags or {}))))


def execute(
    kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
) -> CodeExecutionResult:
    """Run code in a session and return its result, whatever its outcome.

    Args:
        kernel: The session, its name or its id.
        code: Python as IPython takes it, or a script for bash.
        language: ``python`` or ``bash``.
        timeout: Seconds that it may run; None for the default, a minute.

    Raises:
        NotFoundError: There is no such session.
        InvalidInputError: An argument is wrong.
        LaunchError: The session's kernel had died, and no new one could be started; the code did not run.
        OutcomeUnknownError: The daemon ended meanwhile, and nobody can say how far the code ran.
    """
    from cellblock.daemon.messages import Submit

    if language not in ("python", "bash"):
        raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
    limit = 0 if timeout is None else max(round(timeout * 1000), 1)
    request = Submit(_name(kernel), language=language, timeout=limit, wait=True)
    return CodeExecutionResult.from_dict(_call(request, code.encode("utf-8", "surrogatepass")))


def execute_with_retry(
    kernel: SessionRecord | str,
    code: str,
    on_error_fn: Callable[[CodeExecutionResult, int], str | None],
    *,
    max_attempts: int | None = None,
    language: Language = "python",
    timeout: float | None = None,
) -> CodeExecutionResult:
    """Run code, and have it repaired and run again if it fails.

    Args:
        kernel: The session, its name or its id.
        code: The code of the first attempt.
        on_error_fn: Given the result of a failed attempt and its number, from 1 on; returns the code of the next one, or None
            to run the same again.
        max_attempts: How often to run it; five times by default.
        language: ``python`` or ``bash``.
        timeout: Seconds that each attempt may run.

    Returns:
        The result of the last attempt, with all of them in `attempts`. Its status is ``max_attempts_exceeded`` if none has
        succeeded.

    Raises:
        As `execute`, and what `on_error_fn` raises.
    """
    most = _MAX_ATTEMPTS if max_attempts is None else max_attempts
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidInputError(f"max_attempts must be a number from 1, not {max_attempts!r}")
    attempts: list[AttemptSnapshot] = []
    for number in range(1, most + 1):
        result = execute(kernel, code, language=language, timeout=timeout)
        attempts.append(AttemptSnapshot(number, code, result.status, result.output, result.stderr, result.error))
        if result.ok:
            return replace(result, attempts=attempts)
        if number < most:
            code = on_error_fn(result, number) or code
    return replace(result, status="max_attempts_exceeded", attempts=attempts)


def destroy(name: SessionRecord | str) -> bool:
    """End a session; return whether there was one."""
    from cellblock.daemon.messages import Destroy

    return bool(_call(Destroy(_name(name))))


def list_kernels(*, refresh: bool = False) -> list[SessionRecord]:
    """Return all sessions, oldest first; with `refresh`, look first whether their kernels are alive."""
    from cellblock.daemon.messages import List

    return [SessionRecord.from_dict(data) for data in _call(List(refresh))]


def status(kernel: SessionRecord | str) -> SessionRecord:
    """Return how a session is now.

    Raises:
        NotFoundError: There is no such session.
    """
    from cellblock.daemon.messages import Status

    return SessionRecord.from_dict(_call(Status(_name(kernel))))


def restart(kernel: SessionRecord | str) -> SessionRecord:
    """Give a session a fresh kernel, without variables.

    Raises:
        NotFoundError: There is no such session.
        LaunchError: No kernel could be started.
    """
    from cellblock.daemon.messages import Restart

    return SessionRecord.from_dict(_call(Restart(_name(kernel))))


def wipe() -> list[str]:
    """End all sessions; return their ids."""
    from cellblock.daemon.messages import Wipe

    return list(_call(Wipe()))


def _name(kernel: SessionRecord | str) -> str:
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, SessionRecord):
        return kernel.kernel_id
    raise InvalidInputError(f"a session is a SessionRecord, a name or an id, not {kernel!r}")


def _call(request: Any, body: bytes = b"") -> Any:
    return _connection().call(request, body)


def _connection() -> Any:
    """Return this thread's connection to the daemon, which is started if there is none."""
    from cellblock import __version__
    from cellblock.daemon.connection import Connection
    from cellblock.daemon.place import Place
    from cellblock.daemon.starting import connect_or_start

    place = Place()
    known: dict[str, Connection] = _local.__dict__.setdefault("connections", {})
    found = known.get(str(place.directory))
    if found is None or not found.usable:
        found = known[str(place.directory)] = Connection(connect_or_start(place), __version__)
    return found
