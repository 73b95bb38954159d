"""Named sessions for plain synchronous Python: `get_or_create`, `execute`, `destroy` and their like.

From a script, a thread, a notebook or inside a running event loop. Sessions live in the per-user daemon, which is started on
first use, so that later programs find them; with ``CELLBLOCK_STORE_BACKEND=memory`` they live in this process alone.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock import config, settings
from cellblock.errors import CellblockError, DaemonError, InvalidInputError, NotFoundError, NotRunError, OutcomeUnknownError
from cellblock.model import AttemptSnapshot, CodeExecutionResult
from cellblock.model.sessions import Language, SessionRecord

if TYPE_CHECKING:
    from cellblock.model.checkpoints import Changes, CheckpointRecord, FilesMode, StateChanges, Undone
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable

_PATHS = ("working_dir", "images_dir", "spill_dir", "rules", "sandbox_config")
"""Options that can be paths, which are this program's: the daemon has another current directory."""

_TRIES, _PAUSE = 20, 0.01

_local = threading.local()


def get_or_create(name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
    """Return the session of this name, which is made if there is none. It outlives this program.

    Args:
        name: Its name.
        tags: Labels, if it is made.
        options: Its options, if it is made: those of `CodeExecutor` that are data, and those of `NamedOptions`
            (docs/named-sessions.md). What is left out is as the settings say.

    Raises:
        InvalidInputError: The name, an option or a setting is wrong.
        LaunchError: Its kernel could not be started.
        DaemonError: The daemon cannot be started or reached.
    """
    from cellblock.daemon.messages import Create

    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"the name of a session is a string that is not empty, not {name!r}")
    labels = {} if tags is None else tags
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise InvalidInputError(f"tags must be a dict of strings, not {tags!r}")
    return SessionRecord.from_dict(_call(Create(name, created_options(options), dict(labels))))


def created_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a session that this program makes: as given, as the settings say, and as suits this program.

    Raises:
        InvalidInputError: An option is not JSON data, or a setting is wrong.
    """
    here = {"working_dir": os.getcwd(), "python": sys.executable}
    options = settings.current().session_options({**here, **given})
    for name, value in options.items():
        if name in _PATHS and isinstance(value, str):
            options[name] = os.path.abspath(os.path.expanduser(value))
        else:
            options[name] = _checked(name, value)
    return options


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option, which must be JSON data, as it is sent to the daemon."""
    import json

    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_path))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{name}={value!r} cannot be an option of a named session, which is JSON data: {error}"
        ) from None


def _path(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.path.abspath(str(value))
    raise TypeError(f"{type(value).__name__} is not JSON data")


def execute(
    kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
) -> CodeExecutionResult:
    """Run code in a session and return its result, whatever its outcome.

    Ctrl-C stops the code, and then raises `KeyboardInterrupt` here.

    Args:
        kernel: The session, its name or its id.
        code: Python as IPython takes it, or a script for bash.
        language: ``python`` or ``bash``.
        timeout: Seconds that it may run; None for what the settings say, by default a minute.

    Raises:
        NotFoundError: There is no such session.
        InvalidInputError: An argument or a setting is wrong.
        LaunchError: The session's kernel had died, and no new one could be started; the code did not run.
        BusyError: Too many executions wait in the session.
        StoreError: The daemon cannot write to its journal, perhaps because the disk is full; the code did not run.
        NotRunError: The daemon ended before the code began to run.
        OutcomeUnknownError: The daemon ended meanwhile, and nobody can say how far the code ran.
    """
    return _execute(kernel, code, language, timeout)


def _execute(
    kernel: SessionRecord | str, code: str, language: Language, timeout: float | None, *, retry: bool = False
) -> CodeExecutionResult:
    from cellblock.daemon.messages import Interrupt, Submit

    if language not in ("python", "bash"):
        raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    session, key, chosen = _name(kernel), secrets.token_hex(16), settings.current()
    limit = _milliseconds(chosen.execution_timeout if timeout is None else timeout)
    request = Submit(session, language=language, timeout=limit, key=key, wait=True, retry=retry)
    try:
        return CodeExecutionResult.from_dict(_submit(request, code.encode("utf-8", "surrogatepass"), chosen))
    except KeyboardInterrupt:
        _stop(Interrupt(session, key))
        raise


def _submit(request: Any, body: bytes, chosen: settings.Settings) -> Any:
    """Submit code and return its result. If the connection is lost, ask the daemon that is there then.

    The same request is sent again. Because of its key nothing runs twice: the daemon returns the result of the first one if it
    has it, says that the outcome is unknown if it does not, and runs the code if the first one never came to it.
    """
    from cellblock.daemon.messages import Status

    connection, began = _connection(chosen), time.time()
    try:
        return connection.call(request, body)
    except DaemonError as error:
        if connection.usable:
            raise
        lost = error
    if isinstance(lost, NotRunError):
        return _call(request, body)
    try:
        record = SessionRecord.from_dict(_call(Status(request.session)))
    except NotFoundError:
        record = None
    if record is None or datetime.fromisoformat(record.created_at).timestamp() > began:
        raise OutcomeUnknownError(
            f"{lost}; session {request.session!r} has ended meanwhile, and nobody knows how far the code ran"
        ) from lost
    return _call(request, body)


def _stop(interrupt: Any) -> None:
    """Stop an execution whose caller was interrupted; when this returns the code no longer runs.

    It is said on a new connection, and may overtake what was to be executed: so it is said again if there was nothing to stop.
    """
    with suppress(CellblockError):
        for _ in range(_TRIES):
            if _call(interrupt):
                return
            time.sleep(_PAUSE)


def _milliseconds(timeout: float) -> int:
    """Return a timeout as `Submit` has it."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidInputError(f"timeout must be a positive number of seconds, not {timeout!r}")
    return -1 if timeout > 1e9 else max(round(timeout * 1000), 1)


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
        max_attempts: How often to run it; None for what the settings say, by default five times.
        language: ``python`` or ``bash``.
        timeout: Seconds that each attempt may run.

    Returns:
        The result of the last attempt, with all of them in `attempts`. Its status is ``max_attempts_exceeded`` if none has
        succeeded.

    Raises:
        CellblockError: As for `execute`.
        Exception: What `on_error_fn` raises.
    """
    most = settings.current().max_retries if max_attempts is None else max_attempts
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidInputError(f"max_attempts must be a number from 1, not {max_attempts!r}")
    if not callable(on_error_fn):
        raise InvalidInputError(f"on_error_fn must be a function of a result and a number, not {on_error_fn!r}")
    attempts: list[AttemptSnapshot] = []
    for number in range(1, most + 1):
        result = _execute(kernel, code, language, timeout, retry=True)
        attempts.append(AttemptSnapshot(number, code, result.status, result.output, result.stderr, result.error))
        if result.ok:
            return replace(result, attempts=attempts)
        if number < most:
            repaired = on_error_fn(result, number)
            code = code if repaired is None else repaired
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


def variables(kernel: SessionRecord | str) -> list[Variable]:
    """Return the variables of a session: type, size, shape, and a short text of each.

    Raises:
        NotFoundError: There is no such session.
        UnsupportedError: It is not a session of Python.
    """
    from cellblock.daemon.messages import Variables
    from cellblock.model.variables import Variable

    return [Variable.from_dict(data) for data in _call(Variables(_name(kernel)))]


def checkpoint(kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
    """Keep the state that a session has now, as `Session.checkpoint` does. It lives as long as the session's daemon.

    Args:
        kernel: The session, its name or its id.
        name: What to call it.
        files: Whether the state of the workspace's files belongs to it.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.checkpoint`.
    """
    from cellblock.daemon.messages import MakeCheckpoint
    from cellblock.model.checkpoints import CheckpointRecord

    return CheckpointRecord.from_dict(_call(MakeCheckpoint(_name(kernel), name, files)))


def checkpoints(kernel: SessionRecord | str) -> list[CheckpointRecord]:
    """Return the checkpoints of a session, oldest first.

    Raises:
        NotFoundError: There is no such session.
    """
    from cellblock.daemon.messages import Checkpoints
    from cellblock.model.checkpoints import CheckpointRecord

    return [CheckpointRecord.from_dict(data) for data in _call(Checkpoints(_name(kernel)))]


def restore(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
    """Go back to a checkpoint of a session, as `Session.restore` does.

    Args:
        kernel: The session, its name or its id.
        checkpoint: The checkpoint, its id or its name.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.restore`.
    """
    from cellblock.daemon.messages import Restore

    _call(Restore(_name(kernel), _id(checkpoint)))


def drop_checkpoint(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
    """Drop a checkpoint of a session, and free its memory.

    Raises:
        NotFoundError, CheckpointError: There is no such session, or checkpoint.
    """
    from cellblock.daemon.messages import DropCheckpoint

    _call(DropCheckpoint(_name(kernel), _id(checkpoint)))


def undo(kernel: SessionRecord | str, count: int = 1) -> Undone:
    """Go back over the last cells of a session, as `Session.undo` does.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.undo`.
    """
    from cellblock.daemon.messages import Undo
    from cellblock.model.checkpoints import Undone

    return Undone.from_dict(_call(Undo(_name(kernel), count)))


def diff(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> StateChanges:
    """Return what has changed in a session since a checkpoint, as `Session.diff` does.

    Args:
        kernel: The session, its name or its id.
        checkpoint: The checkpoint, its id or its name.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.diff`.
    """
    from cellblock.daemon.messages import Diff
    from cellblock.model.checkpoints import StateChanges

    return StateChanges.from_dict(_call(Diff(_name(kernel), _id(checkpoint))))


def fork(
    kernel: SessionRecord | str,
    names: Sequence[str],
    *,
    files: FilesMode | None = None,
    seeds: Sequence[int] | None = None,
    same_random_state: bool = False,
) -> list[SessionRecord]:
    """Make sessions that begin with the state that another one has now, as `Session.fork` does.

    Args:
        kernel: The other session, its name or its id.
        names: What to call them. None of them may exist.
        files: As for `Session.fork`.
        seeds: As for `Session.fork`.
        same_random_state: As for `Session.fork`.

    Raises:
        NotFoundError: There is no such session.
        ConflictError: One of them exists.
        CellblockError: As for `Session.fork`.
    """
    from cellblock.daemon.messages import Fork

    wanted = Fork(_name(kernel), tuple(names), files or "", tuple(seeds or ()), same_random_state)
    return [SessionRecord.from_dict(data) for data in _call(wanted)]


def adopt(kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
    """Go on with the state of another session, mostly a branch, which is ended by that, as `Session.adopt` does.

    Args:
        kernel: The session that goes on, its name or its id.
        branch: The other one.

    Returns:
        Which files have changed, if the branch had files of its own.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.adopt`.
    """
    from cellblock.daemon.messages import Adopt
    from cellblock.model.checkpoints import Changes

    return Changes.from_dict(_call(Adopt(_name(kernel), _name(branch))))


def save(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> SaveReport:
    """Save a session to a file, as `Session.save` does.

    Args:
        kernel: The session, its name or its id.
        path: The file. If it exists it is replaced, but not before the new one is complete.
        workspace: Whether to save the files of the workspace, too.
        timeout: Seconds that pickling may take.

    Returns:
        What was saved, and what could not be.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.save`.
    """
    from cellblock.daemon.messages import Save
    from cellblock.model.saving import SaveReport

    asked = Save(_name(kernel), _absolute(path), workspace, _milliseconds(timeout))
    return SaveReport.from_dict(_call(asked))


def load(
    kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
) -> LoadReport:
    """Continue what was saved to a file in a session, as `Session.load` does. What the session was before is gone.

    Args:
        kernel: The session, its name or its id.
        path: The file.
        workspace: Whether to unpack the files that were saved. They replace files of the same names.
        timeout: Seconds that loading may take.

    Returns:
        What was brought back, and what could not be.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.load`.
    """
    from cellblock.daemon.messages import Load
    from cellblock.model.saving import LoadReport

    asked = Load(_name(kernel), _absolute(path), workspace, _milliseconds(timeout))
    return LoadReport.from_dict(_call(asked))


def export(kernel: SessionRecord | str, path: str | os.PathLike[str]) -> Path:
    """Write the cells of a session and what they showed as a notebook (``.ipynb``) or a script (``.py``).

    Args:
        kernel: The session, its name or its id.
        path: The file, which is replaced if it exists.

    Returns:
        Its path.

    Raises:
        NotFoundError: There is no such session.
        CellblockError: As for `Session.export`.
    """
    from cellblock.daemon.messages import Export

    asked = Export(_name(kernel), _absolute(path))
    _call(asked)
    return Path(asked.path)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as the daemon needs it, which has another current directory."""
    return os.path.abspath(os.path.expanduser(path))


def wipe() -> list[str]:
    """End all sessions; return their ids."""
    from cellblock.daemon.messages import Wipe

    return list(_call(Wipe()))


def _id(checkpoint: CheckpointRecord | str) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id


def _name(kernel: SessionRecord | str) -> str:
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, SessionRecord):
        return kernel.kernel_id
    raise InvalidInputError(f"a session is a SessionRecord, a name or an id, not {kernel!r}")


def _call(request: Any, body: bytes = b"") -> Any:
    """Ask for something that may be asked for twice: if the daemon has ended since the last call, the next one is asked."""
    connection = _connection()
    try:
        return connection.call(request, body)
    except DaemonError:
        if connection.usable:
            raise
    return _connection().call(request, body)


def _connection(chosen: settings.Settings | None = None) -> Any:
    """Return this thread's connection to the sessions: those of the daemon, which is started if there is none, or our own."""
    memory = (chosen or settings.current()).store_backend == "memory"
    place = None if memory else config.state_directory()
    known: dict[Path | None, Any] = _local.__dict__.setdefault("connections", {})
    found = known.get(place)
    if found is None or not found.usable:
        found = known[place] = _connect(memory)
    return found


def _connect(memory: bool) -> Any:
    from cellblock import __version__
    from cellblock.daemon.connection import Connection

    if memory:
        from cellblock.daemon import in_process

        return Connection(in_process.shared().connect(), __version__)
    from cellblock.daemon.place import Place
    from cellblock.daemon.starting import open_connection

    return open_connection(Place())
