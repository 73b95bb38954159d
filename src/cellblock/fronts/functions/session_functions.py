"""Named sessions and their code: `get_or_create`, `execute`, `destroy` and related functions."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cellblock.common.environments import Environment
from cellblock.errors import (
    CellblockError,
    DaemonError,
    InvalidInputError,
    NotFoundError,
    NotRunError,
    OutcomeUnknownError,
    shown,
)
from cellblock.fronts.functions.connection import ask, call, connection
from cellblock.fronts.given_options import as_meant
from cellblock.model import CodeExecutionResult
from cellblock.model.attempts import Attempts
from cellblock.operations.asking import change_of
from cellblock.operations.data import milliseconds, session_of
from cellblock.operations.executions import Lookup, Submit
from cellblock.operations.network import ShowNetwork
from cellblock.operations.saving import Variables
from cellblock.operations.sessions import Create, Destroy, Interrupt, List, Restart, Status, Wipe
from cellblock.service import settings

if TYPE_CHECKING:
    from cellblock.model.network import SessionNetwork
    from cellblock.model.sessions import Language, SessionRecord
    from cellblock.model.variables import Variable

_TRIES, _PAUSE = 20, 0.01


def get_or_create(name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
    """Return the session with this name, and create it if it does not exist. It outlives this program.

    Args:
        name: The session's name.
        tags: Labels of a new session.
        options: Options of the session, which an existing session must have: the options of `CodeExecutor` that are data, and
            options of `NamedOptions` (docs/named-sessions.md). Settings provide the defaults.

    Raises:
        InvalidInputError: The name, an option or a setting is invalid, or the existing session has another option.
        LaunchError: The session's kernel could not be started.
        DaemonError: The daemon cannot be started or reached.
    """
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"the name of a session must be a string that is not empty, not {name!r}")
    labels = {} if tags is None else tags
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise InvalidInputError(f"tags must be a dict of strings, not {tags!r}")
    return ask(Create(name, created_options(options), dict(labels), chosen=tuple(options)))


def created_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a new session: the given ones, then settings, then defaults for this program.

    Raises:
        InvalidInputError: An option is not JSON data, or a setting is invalid.
    """
    here = {"current_dir": os.getcwd(), "python": sys.executable}
    options = settings.current().session_options({**here, **given})
    return as_meant({name: _checked(name, value) for name, value in options.items()})


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option in the form sent to the daemon, which must be JSON data."""
    import json

    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_data))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{name}={shown(value)} cannot be an option of a named session, which is JSON data: {error}"
        ) from None


def _data(value: object) -> object:
    if isinstance(value, Environment):
        return value.read().to_dict()
    if isinstance(value, os.PathLike):
        return os.path.abspath(str(value))
    raise TypeError(f"{type(value).__name__} is not JSON data")


def execute(
    kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
) -> CodeExecutionResult:
    """Run code in a session and return its result, whether or not it succeeded.

    Ctrl-C stops the code, and then raises `KeyboardInterrupt` here.

    Args:
        kernel: The session's record, name or id.
        code: IPython code, or a bash script.
        language: ``python`` or ``bash``.
        timeout: Limit in seconds; None for the setting, by default a minute.

    Raises:
        NotFoundError: The session does not exist.
        InvalidInputError: An argument or a setting is invalid.
        LaunchError: The session's kernel had died, and no new one could be started; the code did not run.
        BusyError: Too many executions are queued in the session.
        StoreError: The daemon cannot write to its journal, perhaps because the disk is full; the code did not run.
        NotRunError: The daemon ended before the code started.
        OutcomeUnknownError: The daemon ended meanwhile, and how far the code ran is unknown.
    """
    return _execute(kernel, code, language, timeout)


def _execute(
    kernel: SessionRecord | str, code: str, language: Language, timeout: float | None, *, retry: bool = False
) -> CodeExecutionResult:

    if language not in ("python", "bash"):
        raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    session, key, chosen = session_of(kernel), secrets.token_hex(16), settings.current()
    limit = milliseconds(chosen.execution_timeout if timeout is None else timeout)
    request = Submit(session, language=language, timeout=limit, key=key, wait=True, retry=retry)
    try:
        return CodeExecutionResult.from_dict(_submit(request, code.encode("utf-8", "surrogatepass"), chosen))
    except KeyboardInterrupt:
        _stop(Interrupt(session, key))
        raise


def _submit(request: Submit, body: bytes, chosen: settings.Settings) -> Any:
    """Submit code and return its result. If the connection is lost, ask the next daemon.

    The same request is sent again. Its key prevents a second run: the daemon returns the first result if it has it, reports
    an unknown outcome if not, and runs the code only if it never received the first request.
    """
    first, began = connection(chosen), time.time()
    try:
        return first.call(request, body)
    except DaemonError as error:
        if first.usable:
            raise
        lost = error
    if isinstance(lost, NotRunError):
        return call(request, body)
    if not _is_still_there(request, began):
        raise OutcomeUnknownError(
            f"{lost}; session {request.session!r} has ended, and the code may have run in part"
        ) from lost
    return call(request, body)


def _is_still_there(request: Submit, began: float) -> bool:
    """Return whether a name or an id still refers to the session that it referred to at some time."""
    with suppress(NotFoundError):
        ask(Lookup("", request.session, request.key))
        return True  # it has the execution
    try:
        record = ask(Status(request.session))
    except NotFoundError:
        return False
    # Another session may have been created with the same name. If the clock was set back, this session seems to be another
    # one.
    return record.kernel_id == request.session or datetime.fromisoformat(record.created_at).timestamp() <= began


def _stop(interrupt: Interrupt) -> None:
    """Stop an execution whose caller was interrupted; when this returns the code no longer runs.

    The request uses a new connection and may arrive before the execution. Then nothing was stopped, and the request is
    repeated.
    """
    with suppress(CellblockError):
        for _ in range(_TRIES):
            if call(interrupt):
                return
            time.sleep(_PAUSE)


def execute_with_retry(
    kernel: SessionRecord | str,
    code: str,
    on_error_fn: Callable[[CodeExecutionResult, int], str | None],
    *,
    max_attempts: int | None = None,
    language: Language = "python",
    timeout: float | None = None,
) -> CodeExecutionResult:
    """Run code; after a failure, repair it and run it again.

    Args:
        kernel: The session's record, name or id.
        code: The code of the first attempt.
        on_error_fn: Called with the result and the number (from 1) of a failed attempt; returns the code of the next
            attempt, or None to run the same code again.
        max_attempts: The maximum number of attempts; None for the setting, by default five.
        language: ``python`` or ``bash``.
        timeout: Limit of each attempt in seconds.

    Returns:
        The result of the last attempt, with all of them in `attempts`. Its status is ``max_attempts_exceeded`` if none
        succeeded.

    Raises:
        CellblockError: As for `execute`.
        Exception: Any exception of `on_error_fn`.
    """
    attempts = Attempts(code, settings.current().max_retries if max_attempts is None else max_attempts)
    if not callable(on_error_fn):
        raise InvalidInputError(f"on_error_fn must be a function of a result and a number, not {on_error_fn!r}")
    while True:
        result = _execute(kernel, attempts.code, language, timeout, retry=True)
        if (ended := attempts.add(result)) is not None:
            return ended
        attempts.repair(on_error_fn(result, attempts.number))


def destroy(name: SessionRecord | str) -> bool:
    """End a session; return whether it existed."""
    return ask(Destroy(session_of(name)))


def list_kernels(*, refresh: bool = False) -> list[SessionRecord]:
    """Return all sessions, oldest first. With `refresh`, first check whether their kernels are alive."""
    return ask(List(refresh))


def status(kernel: SessionRecord | str) -> SessionRecord:
    """Return the current record of a session.

    Raises:
        NotFoundError: The session does not exist.
    """
    return ask(Status(session_of(kernel)))


def restart(kernel: SessionRecord | str) -> SessionRecord:
    """Restart a session with a fresh kernel, without variables.

    Raises:
        NotFoundError: The session does not exist.
        LaunchError: No kernel could be started.
    """
    return ask(Restart(session_of(kernel)))


def variables(kernel: SessionRecord | str) -> list[Variable]:
    """Return the variables of a session: type, size, shape, and a short text of each.

    Raises:
        NotFoundError: The session does not exist.
        UnsupportedError: It is not a session of Python.
    """
    return ask(Variables(session_of(kernel)))


def network(kernel: SessionRecord | str) -> SessionNetwork:
    """Return the hosts that a session and its branches can reach.

    Raises:
        NotFoundError: The session does not exist.
        UnsupportedError: cellblock does not enforce its network.
    """
    return ask(ShowNetwork(session_of(kernel)))


def change_network(
    kernel: SessionRecord | str,
    *,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    http: Sequence[str] = (),
    remove: Sequence[str] = (),
    expect: int | None = None,
) -> SessionNetwork:
    """Change the hosts and requests that a session and its branches can reach, as `Session.change_network` does.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.change_network`.
    """
    return ask(change_of(kernel, allow, deny, http, remove, expect))


def wipe() -> list[str]:
    """End all sessions; return their ids."""
    return ask(Wipe())
