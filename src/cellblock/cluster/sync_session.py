"""One session of a cluster, for plain synchronous Python: what can be asked of it, by the operations of named sessions."""

# Made from session.py by tests/unasync.py: do not edit it.

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from cellblock.errors import CellblockError, DaemonError, InvalidInputError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.programs import MAX_OUTPUT, ExecResult, Keep, ProcessInfo, ProcessOutput, Scope
from cellblock.model.programs import Processes as ProcessesMode
from cellblock.model.sessions import (
    ExecutionEvent,
    ExecutionRecord,
    Language,
    PendingApproval,
    Permission,
    SessionRecord,
    outcome_of,
)
from cellblock.operations.approvals import Allowed, Decide, Pending, Revoke
from cellblock.operations.asking import as_bytes, exec_of, fork_of, read_of, spawn_of, stop_of
from cellblock.operations.base import AnswerT, Request
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.data import Data, checkpoint_of, execution_of, milliseconds, process_of, read_answer
from cellblock.operations.executions import Answer, Cancel, Executions, Follow, Lookup, Submit
from cellblock.operations.files import Install, ListFiles, ReadFile, RemoveFile, WriteFile, WritePart
from cellblock.operations.programs import (
    Processes,
    ResizeProcess,
    SignalProcess,
    WriteProcess,
)
from cellblock.operations.reading import FileReading
from cellblock.operations.saving import Load, Save, Variables
from cellblock.operations.sessions import Destroy, History, Interrupt, Restart, Status
from cellblock.operations.tools import RegisterServer

if TYPE_CHECKING:
    from cellblock.cluster.connection import ClusterConnection
    from cellblock.model import HistoryEntry
    from cellblock.model.checkpoints import (
        Changes,
        CheckpointRecord,
        FilesMode,
        FileVersions,
        StateChanges,
        TrashEntry,
        Undone,
    )
    from cellblock.model.files import FileInfo
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable

_ModelT = TypeVar("_ModelT")
_TRIES, _PAUSE = 10, 0.01


class SyncClusterSession:
    """A session on one of the cluster's nodes. Its paths are those of that node.

    Attributes:
        record: Its record when it was made or found.
    """

    def __init__(self, link: ClusterConnection, record: SessionRecord) -> None:
        self._link = link
        self.record = record

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def id(self) -> str:
        """Its id, which no other session ever has."""
        return self.record.kernel_id

    @property
    def workspace(self) -> str:
        """The directory of its node in which it works."""
        return self.record.workspace

    # -- code ------------------------------------------------------------------------------------------------------------

    def execute(self, code: str, *, language: Language = "python", timeout: float | None = 120.0) -> CodeExecutionResult:
        """Run code and return its result, whatever its outcome.

        Args:
            code: Python as IPython takes it, or a script for bash.
            language: ``python`` or ``bash``.
            timeout: Seconds that it may run; None for no limit.

        If the caller is cancelled, the code is stopped.

        Raises:
            SessionLostError: Its node is no more; the code did not run.
            OutcomeUnknownError: Its node ended meanwhile, and nobody can say how far the code ran.
        """
        request = Submit(self.id, language=language, timeout=milliseconds(timeout), key=secrets.token_hex(16), wait=True)
        try:
            return CodeExecutionResult.from_dict(self._link.call(request, _bytes(code)))
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
        """Submit code. It runs whether or not this program stays.

        Args:
            code: The code.
            language: ``python`` or ``bash``.
            timeout: Seconds that it may run; None for no limit.
            key: An idempotency key: what was submitted with it before does not run again, and is returned.
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
        return ExecutionRecord.from_dict(self._link.call(request, _bytes(code)))

    def stream(
        self, code: str, *, language: Language = "python", timeout: float | None = 120.0
    ) -> Generator[ExecutionEvent, None, None]:
        """Run code, and yield its events as they happen, until the last, which has the result.

        If the connection is lost, it is made again, and nothing is missing. Calls that wait for a decision come as events of
        the kind ``approval``; `decide` decides.
        """
        execution = self.submit(code, language=language, timeout=timeout)
        with closing(self.attach(execution)) as events:
            yield from events

    def attach(self, execution: ExecutionRecord | str, from_event: int = 0) -> Generator[ExecutionEvent, None, None]:
        """Yield the events of an execution that come after one, until the last. If the connection is lost, go on.

        Args:
            execution: The execution, or its id.
            from_event: The number of the last event that is known already.

        Raises:
            SessionLostError: Its node is no more.
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
            OutcomeUnknownError: Nobody can say how far it ran.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        with closing(self.attach(execution)) as events:
            for event in events:
                last = event
        return outcome_of(last, execution_of(execution))

    def lookup(self, execution: ExecutionRecord | str) -> ExecutionRecord:
        """Return how far an execution is."""
        return self._ask(Lookup(execution_of(execution)))

    def executions(self, count: int = 100) -> list[ExecutionRecord]:
        """Return the last executions, newest first."""
        return self._ask(Executions(self.id, count))

    def cancel(self, execution: ExecutionRecord | str) -> bool:
        """Stop an execution, or keep one that waits from running; return whether it had not ended."""
        return self._ask(Cancel(execution_of(execution)))

    def answer(self, execution: ExecutionRecord | str, line: str) -> bool:
        """Answer `input()`; return whether it had asked."""
        return self._ask(Answer(execution_of(execution)), line.encode())

    def interrupt(self) -> bool:
        """Stop what runs; return whether something did."""
        return self._ask(Interrupt(self.id))

    def restart(self) -> SessionRecord:
        """Give it a fresh kernel, without variables."""
        return self._ask(Restart(self.id))

    def status(self) -> SessionRecord:
        """Return how it is now."""
        return self._ask(Status(self.id))

    def history(self, count: int = 1000) -> list[HistoryEntry]:
        """Return the cells that it ran, oldest first."""
        return self._ask(History(self.id, count))

    def variables(self) -> list[Variable]:
        """Return its variables: type, size, shape, and a short text of each."""
        return self._ask(Variables(self.id))

    def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages; return what pip said."""
        request = Install(self.id, requirements, milliseconds(timeout))
        return CodeExecutionResult.from_dict(self._link.call(request))

    def register_mcp_server(self, name: str, params: Mapping[str, Any]) -> list[str]:
        """Offer the tools of an MCP server to the code, as ``mcptools.NAME.TOOL``; return the names of these modules.

        The server runs on the node, outside of the sandbox.

        Args:
            name: The server's name in code.
            params: As for `generate_mcp_sources`. Relative paths begin in the workspace, and ``${NAME}`` is a variable of the
                node's daemon (`ClusterOptions.environment`).

        Raises:
            McpServerError: The server could not be started or reached.
        """
        registered = self._ask(RegisterServer(self.id, name, params))
        return [*registered["tools"]]

    def close(self) -> None:
        """End it, with its variables. Ending one that has ended is fine."""
        self._link.call(Destroy(self.id))

    # -- states ----------------------------------------------------------------------------------------------------------

    def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
        """Keep the state that it has now, as `Session.checkpoint` does. It stays on its node."""
        return self._ask(MakeCheckpoint(self.id, name, files))

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return its checkpoints, oldest first."""
        return self._ask(Checkpoints(self.id))

    def restore(self, checkpoint: CheckpointRecord | str, *, processes: ProcessesMode = "keep") -> Changes:
        """Go back to a checkpoint, as `Session.restore` does; return which files have changed, if it holds any."""
        return (self._ask(Restore(self.id, checkpoint_of(checkpoint), processes))).changes

    def drop_checkpoint(self, checkpoint: CheckpointRecord | str) -> None:
        """Drop a checkpoint, and free its memory."""
        self._ask(DropCheckpoint(self.id, checkpoint_of(checkpoint)))

    def undo(self, count: int = 1, *, partial: bool = False, processes: ProcessesMode = "keep") -> Undone:
        """Go back over the last cells, as `Session.undo` does."""
        return self._ask(Undo(self.id, count, partial, processes))

    def redo(self) -> Undone:
        """Take back the last undo, until the next cell begins, as `Session.redo` does."""
        return self._ask(Redo(self.id))

    def trash(self) -> list[TrashEntry]:
        """Return what undo, redo, restore and adopt have replaced or removed, as `Session.trash` does."""
        return self._ask(Trash(self.id))

    def restore_trash(self, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash, as `Session.restore_trash` does."""
        return self._ask(RestoreTrash(self.id, path, entry))

    def diff(self, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = "") -> StateChanges:
        """Return what has changed since a checkpoint, as `Session.diff` does."""
        return self._ask(Diff(self.id, checkpoint_of(checkpoint), checkpoint_of(until)))

    def file_versions(self, path: str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = "") -> FileVersions:
        """Return a file as a checkpoint holds it, and as it was later, as `Session.file_versions` does."""
        return self._ask(VersionsOfFile(self.id, checkpoint_of(checkpoint), path, checkpoint_of(until)))

    def fork(
        self,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SyncClusterSession]:
        """Make sessions of these names that begin with the state that it has now, on its node; see `Session.fork`."""
        request = fork_of(self.id, names, files, seeds, same_random_state)
        return [SyncClusterSession(self._link, record) for record in self._ask(request)]

    def adopt(self, branch: SyncClusterSession | SessionRecord | str) -> Changes:
        """Go on with the state of another session of its node, mostly a branch, which is ended by that."""
        other = (
            branch if isinstance(branch, str) else branch.id if isinstance(branch, SyncClusterSession) else branch.kernel_id
        )
        return self._ask(Adopt(self.id, other))

    def save(self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0) -> SaveReport:
        """Save it to a file of its node, by an absolute path; return what was saved, and what could not be."""
        return self._ask(Save(self.id, os.fspath(path), workspace, milliseconds(timeout)))

    def load(self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0) -> LoadReport:
        """Continue in it what was saved to a file that its node can read; it gets a fresh kernel."""
        return self._ask(Load(self.id, os.fspath(path), workspace, milliseconds(timeout)))

    # -- files -----------------------------------------------------------------------------------------------------------

    def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """List a folder of its workspace."""
        return self._ask(ListFiles(self.id, path, recursive))

    def read_file(self, path: str) -> bytes:
        """Return the content of a file of up to 64 MiB; `read_parts` reads larger ones."""
        return self._ask(ReadFile(self.id, path))

    def read_parts(self, path: str) -> Generator[bytes, None, None]:
        """Yield the content of a file of any size, part by part.

        Raises:
            FilesError: It cannot be read, or changed meanwhile.
        """
        reading = FileReading(self.id, path)
        while (request := reading.next) is not None:
            yield reading.take(self._link.call(request))

    def write_file(self, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file, whole or not at all. Text is written as UTF-8. Large data can come in pieces."""
        if isinstance(data, bytes | str):
            return self._ask(WriteFile(self.id, path), data.encode() if isinstance(data, str) else data)
        upload = secrets.token_hex(16)
        try:
            for piece in data:
                self._link.call(WritePart(self.id, path, upload), piece)
            written = self._link.call(WritePart(self.id, path, upload, more=False))
        except BaseException:  # also a cancellation: what has come is dropped
            with suppress(CellblockError):
                self._link.call(WritePart(self.id, path, upload, abort=True))
            raise
        info: FileInfo = read_answer(WriteFile, written)
        return info

    def remove_file(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or a folder with all that is in it if `recursive` says so."""
        return self._ask(RemoveFile(self.id, path, recursive))

    # -- programs beside the kernel --------------------------------------------------------------------------------------

    def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | os.PathLike[str] = "",
        env: Mapping[str, str | None] | None = None,
        input: bytes | str = b"",  # noqa: A002  # the name that `subprocess.run` has
        timeout: float | None = 120.0,
        merge: bool = False,
        log: str = "",
        max_output: int = MAX_OUTPUT,
        stop: Scope = "tree",
    ) -> ExecResult:
        """Run a program beside its kernel, as `Session.exec` does."""
        request = exec_of(self.id, command, cwd, env, timeout, merge, log, max_output, stop)
        return ExecResult.from_dict(self._link.call(request, as_bytes(input, "input")))

    def spawn(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | os.PathLike[str] = "",
        env: Mapping[str, str | None] | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        merge: bool = False,
        log: str = "",
        keep: Keep = "tail",
        label: str = "",
    ) -> ProcessInfo:
        """Start a program beside its kernel, as `Session.spawn` does. Output that nobody has read is dropped by default."""
        return self._ask(spawn_of(self.id, command, cwd, env, stdin, pty, merge, log, keep, label))

    def processes(self) -> list[ProcessInfo]:
        """Return its programs, oldest first: those that run, and the last ones that have ended."""
        return self._ask(Processes(self.id))

    def read_process(self, process: ProcessInfo | str, since: int = 0, wait: float = 0.0) -> ProcessOutput:
        """Return what a program has printed from a position on, and how it ended if it has."""
        return self._ask(read_of(self.id, process, since, wait))

    def write_process(self, process: ProcessInfo | str, data: bytes | str, *, end: bool = False) -> bool:
        """Write to a program's standard input or terminal; return whether it reads on."""
        return self._ask(WriteProcess(self.id, process_of(process), end), as_bytes(data, "data"))

    def signal_process(self, process: ProcessInfo | str, number: int, scope: Scope = "group") -> None:
        """Send a signal to a program."""
        self._ask(SignalProcess(self.id, process_of(process), number, scope))

    def resize_process(self, process: ProcessInfo | str, rows: int, columns: int) -> None:
        """Change the size of a program's terminal."""
        self._ask(ResizeProcess(self.id, process_of(process), rows, columns))

    def stop_process(self, process: ProcessInfo | str, grace: float = 0.5, *, scope: Scope = "tree") -> ExecResult:
        """End a program and all that it has started."""
        return self._ask(stop_of(self.id, process, grace, scope))

    # -- approvals -------------------------------------------------------------------------------------------------------

    def pending(self) -> list[PendingApproval]:
        """Return what waits for a decision, oldest first."""
        return self._ask(Pending(self.id))

    def decide(self, *ids: str, allow: bool, always: str = "", answer: Mapping[str, Any] | None = None) -> list[str]:
        """Decide about what waits, and answer what MCP servers ask; return the ids to which it applies."""
        return self._ask(Decide(ids, allow, always, answer=dict(answer or {})))

    def allowed(self) -> list[Permission]:
        """Return what was allowed for the rest of the session, oldest first."""
        return self._ask(Allowed(self.id))

    def revoke(self, *ids: str) -> list[str]:
        """Revoke what was allowed, by the ids of `allowed`; return which of them there were."""
        return self._ask(Revoke(ids))

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    def _ask(self, request: Request[Data[_ModelT]], body: bytes = b"") -> _ModelT: ...
    @overload
    def _ask(self, request: Request[list[Data[_ModelT]]], body: bytes = b"") -> list[_ModelT]: ...
    @overload
    def _ask(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT: ...
    def _ask(self, request: Request[Any], body: bytes = b"") -> Any:
        """Ask for an operation, and return its answer as objects of `model`."""
        return read_answer(type(request), self._link.call(request, body))


def _bytes(code: str) -> bytes:
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    return code.encode("utf-8", "surrogatepass")
