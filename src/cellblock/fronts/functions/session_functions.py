"""Named sessions as functions: `get_or_create`, `execute`, `undo` and others are methods of one `DaemonClient`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.common.environments import Environment
from cellblock.common.urls import is_url
from cellblock.errors import (
    CellblockError,
    DaemonError,
    InvalidInputError,
    NotFoundError,
    NotRunError,
    OutcomeUnknownError,
    shown,
)
from cellblock.fronts.functions.connection import call, connection
from cellblock.fronts.given_options import as_meant
from cellblock.model import CodeExecutionResult
from cellblock.model.attempts import Attempts
from cellblock.model.files import FileInfo
from cellblock.model.sessions import SessionRecord
from cellblock.operations.asking import as_bytes, as_code
from cellblock.operations.base import Request
from cellblock.operations.base_client import BaseClient
from cellblock.operations.data import milliseconds, session_of
from cellblock.operations.executions import Lookup, Submit
from cellblock.operations.file_parts import FileReading
from cellblock.operations.files import WritePart
from cellblock.operations.saving import Export, Load, Save
from cellblock.operations.sessions import Create, Interrupt, Status
from cellblock.service import settings

if TYPE_CHECKING:
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.sessions import Language

_TRIES, _PAUSE = 20, 0.01
_PART = 4 * 1024 * 1024


class DaemonClient(BaseClient):
    """The sessions of the daemon (started if needed), of a cluster, or of this process, as the settings say."""

    def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        return call(request, body)

    def get_or_create(self, name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Return the session with this name, and create it if it does not exist. It outlives this program.

        Args:
            name: The session's name.
            tags: Labels of a new session.
            options: Options of the session, which an existing session must have: the options of `CodeExecutor` that are
                data, and options of `NamedOptions` (docs/named-sessions.md). Settings provide the defaults.

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
        return self._ask(Create(name, created_options(options), dict(labels), chosen=tuple(options)))

    def execute(
        self, kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
    ) -> CodeExecutionResult:
        """Run code in a session and return its result, whether or not it succeeded.

        Ctrl-C stops the code, and then raises `KeyboardInterrupt` here.

        Args:
            kernel: The session.
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
        return self._execute(kernel, code, language, timeout)

    def _execute(
        self, kernel: SessionRecord | str, code: str, language: Language, timeout: float | None, *, retry: bool = False
    ) -> CodeExecutionResult:
        if language not in ("python", "bash"):
            raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
        body = as_code(code)
        session, key, chosen = session_of(kernel), secrets.token_hex(16), settings.current()
        limit = milliseconds(chosen.execution_timeout if timeout is None else timeout)
        request = Submit(session, language=language, timeout=limit, key=key, wait=True, retry=retry)
        try:
            return CodeExecutionResult.from_dict(_submit(request, body, chosen))
        except KeyboardInterrupt:
            _stop(Interrupt(session, key))
            raise

    def execute_with_retry(
        self,
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
            kernel: The session.
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
            result = self._execute(kernel, attempts.code, language, timeout, retry=True)
            if (ended := attempts.add(result)) is not None:
                return ended
            attempts.repair(on_error_fn(result, attempts.number))

    def read_file(self, kernel: SessionRecord | str, path: str) -> bytes:
        """Return the content of a file of a session.

        Raises:
            NotFoundError: The session does not exist.
            FilesError: The file cannot be read, or changed meanwhile.
        """
        reading, parts = FileReading(session_of(kernel), path), []
        while (request := reading.next) is not None:
            parts.append(reading.take(self._call(request)))
        return b"".join(parts)

    def write_file(self, kernel: SessionRecord | str, path: str, data: bytes | str) -> FileInfo:
        """Write a file of a session atomically. Missing parent folders are created.

        Args:
            kernel: The session.
            path: The file. An existing file is replaced.
            data: The content; text is encoded as UTF-8.

        Raises:
            NotFoundError: The session does not exist.
            FilesError: The file cannot be written.
        """
        content, session, upload = as_bytes(data, "data"), session_of(kernel), secrets.token_hex(16)
        try:
            for start in range(0, len(content), _PART):
                self._call(WritePart(session, path, upload), content[start : start + _PART])
            written = self._call(WritePart(session, path, upload, more=False))
        except BaseException:  # also Ctrl-C: received parts are dropped
            with suppress(CellblockError):
                self._call(WritePart(session, path, upload, abort=True))
            raise
        assert written is not None, "a complete file has a description"
        return FileInfo.from_dict(written)

    def save(
        self, kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
    ) -> SaveReport:
        """Save a session to a file, as `Session.save` does.

        Args:
            kernel: The session.
            path: The file. An existing file is replaced when the new one is complete.
            workspace: Whether to save the files of the workspace, too.
            timeout: Limit of pickling in seconds.

        Returns:
            The saved items, and the items that could not be saved.

        Raises:
            CellblockError: As for `Session.save`.
        """
        return self._ask(Save(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))

    def load(
        self, kernel: SessionRecord | str, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float = 120.0
    ) -> LoadReport:
        """Load a saved session into a session, as `Session.load` does. It replaces the session's state.

        Args:
            kernel: The session.
            path: The file.
            workspace: Whether to unpack the saved files. They replace files with the same names.
            timeout: Limit of loading in seconds.

        Returns:
            The restored items, and the items that could not be restored.

        Raises:
            CellblockError: As for `Session.load`.
        """
        return self._ask(Load(session_of(kernel), _absolute(path), workspace, milliseconds(timeout)))

    def export(self, kernel: SessionRecord | str, path: str | os.PathLike[str]) -> Path:
        """Write the cells of a session and their output as a notebook (``.ipynb``) or a script (``.py``).

        Args:
            kernel: The session.
            path: The file, which is replaced if it exists.

        Returns:
            The file's path.

        Raises:
            CellblockError: As for `Session.export`.
        """
        asked = Export(session_of(kernel), _absolute(path))
        self._ask(asked)
        return Path(asked.path)


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
        call(Lookup("", request.session, request.key))
        return True  # it has the execution
    try:
        record = SessionRecord.from_dict(call(Status(request.session)))
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


def _absolute(path: str | os.PathLike[str]) -> str:
    """Make a path absolute for the daemon, whose current directory differs; leave a URL unchanged."""
    if isinstance(path, str) and is_url(path):
        return path
    return os.path.abspath(os.path.expanduser(path))


_client = DaemonClient()
adopt = _client.adopt
change_network = _client.change_network
checkpoint = _client.checkpoint
checkpoints = _client.checkpoints
clone_apply = _client.clone_apply
clone_diff = _client.clone_diff
clone_fetch = _client.clone_fetch
destroy = _client.destroy
diff = _client.diff
drop_checkpoint = _client.drop_checkpoint
exec_process = _client.exec_process
execute = _client.execute
execute_with_retry = _client.execute_with_retry
export = _client.export
file_info = _client.file_info
file_versions = _client.file_versions
fork = _client.fork
get_or_create = _client.get_or_create
list_files = _client.list_files
list_kernels = _client.list_kernels
load = _client.load
make_folder = _client.make_folder
network = _client.network
processes = _client.processes
read_file = _client.read_file
read_process = _client.read_process
redo = _client.redo
remove_file = _client.remove_file
rename_file = _client.rename_file
resize_process = _client.resize_process
restart = _client.restart
restore = _client.restore
restore_trash = _client.restore_trash
save = _client.save
signal_process = _client.signal_process
spawn_process = _client.spawn_process
status = _client.status
stop_process = _client.stop_process
trash = _client.trash
undo = _client.undo
variables = _client.variables
wipe = _client.wipe
write_file = _client.write_file
write_process = _client.write_process
