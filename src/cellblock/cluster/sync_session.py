"""One session of a cluster, for plain synchronous Python, with the operations of named sessions."""

# Made from session.py by tests/unasync.py: do not edit it.

from __future__ import annotations

import inspect
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cellblock.errors import CellblockError, DaemonError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.files import FileInfo
from cellblock.model.sessions import ExecutionEvent, ExecutionRecord, Language, SessionRecord, outcome_of
from cellblock.operations.asking import as_bytes, as_code
from cellblock.operations.base import Request
from cellblock.operations.base_client import BaseClient
from cellblock.operations.data import execution_of, milliseconds, read_answer
from cellblock.operations.executions import Follow, Submit
from cellblock.operations.files import Install, ReadFile, WriteFile, WritePart
from cellblock.operations.reading import FileReading
from cellblock.operations.saving import Load, Save
from cellblock.operations.sessions import Destroy, Interrupt
from cellblock.operations.tools import RegisterServer

if TYPE_CHECKING:
    from cellblock.cluster.cluster_connection import ClusterConnection
    from cellblock.model.checkpoints import Changes, FilesMode
    from cellblock.model.saving import LoadReport, SaveReport

_P = ParamSpec("_P")
_T = TypeVar("_T")
_TRIES, _PAUSE = 10, 0.01


class _Client(BaseClient):
    def __init__(self, link: ClusterConnection) -> None:
        self._link = link

    def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        return self._link.call(request, body)


def _of_session(
    method: Callable[Concatenate[BaseClient, SessionRecord | str, _P], _T],
) -> Callable[Concatenate[SyncClusterSession, _P], _T]:
    """Return a client's method on a session as a method of the session."""

    @wraps(method)
    def of_session(self: SyncClusterSession, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return method(self._client, self.id, *args, **options)

    signature = inspect.signature(method)
    own, _, *others = signature.parameters.values()
    vars(of_session)["__signature__"] = signature.replace(parameters=[own, *others])
    return of_session


def _of_client(
    method: Callable[Concatenate[BaseClient, _P], _T],
) -> Callable[Concatenate[SyncClusterSession, _P], _T]:
    """Return a client's method on an execution, or on permissions, as a method of the session."""

    @wraps(method)
    def of_client(self: SyncClusterSession, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return method(self._client, *args, **options)

    return of_client


class SyncClusterSession:
    """A session on one of the cluster's nodes. Its paths are the node's.

    What is only assigned here is a method of `BaseClient`, without its first argument.

    Attributes:
        record: The session's record when it was created or found.
    """

    def __init__(self, link: ClusterConnection, record: SessionRecord) -> None:
        self._link = link
        self._client = _Client(link)
        self.record = record

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def id(self) -> str:
        """The session's id, which is never reused."""
        return self.record.kernel_id

    @property
    def workspace(self) -> str:
        """The session's workspace on its node."""
        return self.record.workspace

    # -- code ------------------------------------------------------------------------------------------------------------

    def execute(self, code: str, *, language: Language = "python", timeout: float | None = 120.0) -> CodeExecutionResult:
        """Run code and return its result, whether or not it succeeded.

        Args:
            code: IPython code, or a bash script.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds; None for no limit.

        If the caller is cancelled, the code is stopped.

        Raises:
            SessionLostError: The session's node has ended; the code did not run.
            OutcomeUnknownError: The session's node ended meanwhile, and how far the code ran is unknown.
        """
        request = Submit(self.id, language=language, timeout=milliseconds(timeout), key=secrets.token_hex(16), wait=True)
        try:
            return CodeExecutionResult.from_dict(self._link.call(request, as_code(code)))
        except KeyboardInterrupt:
            self._stop(request.key)
            raise

    def _stop(self, key: str) -> None:
        """Stop an execution whose caller no longer waits for it. The execution may arrive after this request."""
        with suppress(CellblockError):
            for _ in range(_TRIES):
                if self._link.call(Interrupt(self.id, key)):
                    return
                time.sleep(_PAUSE)

    def submit(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = 120.0,
        key: str = "",
        stdin: bool = False,
    ) -> ExecutionRecord:
        """Submit code. It runs even if this program ends.

        Args:
            code: The code.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds; None for no limit.
            key: An idempotency key. If it was used before, return the earlier execution instead of running the code again.
            stdin: Whether `input()` waits for `answer`.
        """
        request = Submit(
            self.id,
            language=language,
            timeout=milliseconds(timeout),
            key=key or secrets.token_hex(16),
            live=True,
            stdin=stdin,
        )
        return ExecutionRecord.from_dict(self._link.call(request, as_code(code)))

    def stream(
        self, code: str, *, language: Language = "python", timeout: float | None = 120.0
    ) -> Generator[ExecutionEvent, None, None]:
        """Run code, and yield its events as they happen, until the last, which has the result.

        If the connection is lost, the client reconnects, and no event is missed. Calls that wait for a decision are events
        of the kind ``approval``; `decide` decides them.
        """
        execution = self.submit(code, language=language, timeout=timeout)
        with closing(self.attach(execution)) as events:
            yield from events

    def attach(self, execution: ExecutionRecord | str, from_event: int = 0) -> Generator[ExecutionEvent, None, None]:
        """Yield the events of an execution after a given one, until the last. Reconnect if the connection is lost.

        Args:
            execution: The execution, or its id.
            from_event: The number of the last known event.

        Raises:
            SessionLostError: The session's node has ended.
        """
        known, again = from_event, False
        while True:
            request = Follow(execution_of(execution), known, answers=True)
            try:
                with closing(self._link.follow(request)) as parts:
                    for part in parts:
                        event = ExecutionEvent.from_dict(part)
                        known, again = event.seq, False
                        yield event
                return
            except DaemonError as error:
                if again or isinstance(error, OutcomeUnknownError):
                    raise
                again = True

    def result(self, execution: ExecutionRecord | str) -> CodeExecutionResult:
        """Wait for the end of an execution, and return its result.

        Raises:
            OutcomeUnknownError: How far it ran is unknown.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        with closing(self.attach(execution)) as events:
            for event in events:
                last = event
        return outcome_of(last, execution_of(execution))

    executions = _of_session(BaseClient.executions)
    history = _of_session(BaseClient.history)
    interrupt = _of_session(BaseClient.interrupt)
    restart = _of_session(BaseClient.restart)
    status = _of_session(BaseClient.status)
    variables = _of_session(BaseClient.variables)
    lookup = _of_client(BaseClient.lookup)
    cancel = _of_client(BaseClient.cancel)
    answer = _of_client(BaseClient.answer)

    def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages; return the result with pip's output."""
        request = Install(self.id, requirements, milliseconds(timeout))
        return CodeExecutionResult.from_dict(self._link.call(request))

    def register_mcp_server(self, name: str, params: Mapping[str, Any]) -> list[str]:
        """Offer the tools of an MCP server to the code, as ``mcptools.NAME.TOOL``; return the names of these modules.

        The server runs on the node, outside of the sandbox.

        Args:
            name: The server's name in code.
            params: As for `generate_mcp_sources`. Relative paths start in the workspace, and ``${NAME}`` is a variable of
                the node's daemon (`ClusterOptions.environment`).

        Raises:
            McpServerError: The server could not be started or reached.
        """
        registered = self._link.call(RegisterServer(self.id, name, params))
        return [*registered["tools"]]

    def close(self) -> None:
        """End the session, with its variables. The operation is idempotent."""
        self._link.call(Destroy(self.id))

    # -- states ----------------------------------------------------------------------------------------------------------

    checkpoint = _of_session(BaseClient.checkpoint)
    checkpoints = _of_session(BaseClient.checkpoints)
    restore = _of_session(BaseClient.restore)
    drop_checkpoint = _of_session(BaseClient.drop_checkpoint)
    undo = _of_session(BaseClient.undo)
    redo = _of_session(BaseClient.redo)
    trash = _of_session(BaseClient.trash)
    restore_trash = _of_session(BaseClient.restore_trash)
    diff = _of_session(BaseClient.diff)
    file_versions = _of_session(BaseClient.file_versions)

    def fork(
        self,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SyncClusterSession]:
        """Create sessions with these names from the current state, on the same node, as `Session.fork` does."""
        records = self._client.fork(self.id, names, files=files, seeds=seeds, same_random_state=same_random_state)
        return [SyncClusterSession(self._link, record) for record in records]

    def adopt(self, branch: SyncClusterSession | SessionRecord | str) -> Changes:
        """Continue from another session's state on the same node (usually a branch), and close that session."""
        return self._client.adopt(self.id, branch.record if isinstance(branch, SyncClusterSession) else branch)

    def save(self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0) -> SaveReport:
        """Save the session to an absolute path on its node; return the saved items, and those that could not be saved."""
        request = Save(self.id, os.fspath(path), workspace, milliseconds(timeout))
        report: SaveReport = read_answer(Save, self._link.call(request))
        return report

    def load(self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0) -> LoadReport:
        """Load a saved session from a file on the node, into a fresh kernel."""
        request = Load(self.id, os.fspath(path), workspace, milliseconds(timeout))
        report: LoadReport = read_answer(Load, self._link.call(request))
        return report

    # -- files -----------------------------------------------------------------------------------------------------------

    list_files = _of_session(BaseClient.list_files)
    file_info = _of_session(BaseClient.file_info)
    make_folder = _of_session(BaseClient.make_folder)
    rename_file = _of_session(BaseClient.rename_file)
    remove_file = _of_session(BaseClient.remove_file)

    def read_file(self, path: str) -> bytes:
        """Return the content of a file of up to 64 MiB; `read_parts` reads larger ones."""
        return self._link.call(ReadFile(self.id, path))

    def read_parts(self, path: str) -> Generator[bytes, None, None]:
        """Yield the content of a file of any size, part by part.

        Raises:
            FilesError: The file cannot be read, or changed meanwhile.
        """
        reading = FileReading(self.id, path)
        while (request := reading.next) is not None:
            yield reading.take(self._link.call(request))

    def write_file(self, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file atomically. Text is encoded as UTF-8. Large data can be passed in pieces."""
        if isinstance(data, bytes | str):
            return FileInfo.from_dict(self._link.call(WriteFile(self.id, path), as_bytes(data, "data")))
        upload = secrets.token_hex(16)
        try:
            for piece in data:
                self._link.call(WritePart(self.id, path, upload), piece)
            written = self._link.call(WritePart(self.id, path, upload, more=False))
        except BaseException:  # also a cancellation: received parts are dropped
            with suppress(CellblockError):
                self._link.call(WritePart(self.id, path, upload, abort=True))
            raise
        assert written is not None, "a complete file has a description"
        return FileInfo.from_dict(written)

    # -- programs beside the kernel, approvals, network ------------------------------------------------------------------

    exec = _of_session(BaseClient.exec_process)
    spawn = _of_session(BaseClient.spawn_process)
    processes = _of_session(BaseClient.processes)
    read_process = _of_session(BaseClient.read_process)
    write_process = _of_session(BaseClient.write_process)
    signal_process = _of_session(BaseClient.signal_process)
    resize_process = _of_session(BaseClient.resize_process)
    stop_process = _of_session(BaseClient.stop_process)
    pending = _of_session(BaseClient.pending)
    allowed = _of_session(BaseClient.allowed)
    network = _of_session(BaseClient.network)
    change_network = _of_session(BaseClient.change_network)
    decide = _of_client(BaseClient.decide)
    revoke = _of_client(BaseClient.revoke)
