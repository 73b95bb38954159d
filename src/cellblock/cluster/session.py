"""One session of a cluster, for asyncio, with the operations of named sessions."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import aclosing, suppress
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
from cellblock.operations.asking import as_bytes, change_of, exec_of, fork_of, read_of, spawn_of, stop_of
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
from cellblock.operations.network import ShowNetwork
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
    from cellblock.cluster.link import ClusterLink
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
    from cellblock.model.network import SessionNetwork
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable

_ModelT = TypeVar("_ModelT")
_TRIES, _PAUSE = 10, 0.01


class ClusterSession:
    """A session on one of the cluster's nodes. Its paths are the node's.

    Attributes:
        record: The session's record when it was created or found.
    """

    def __init__(self, link: ClusterLink, record: SessionRecord) -> None:
        self._link = link
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

    async def execute(self, code: str, *, language: Language = "python", timeout: float | None = 120.0) -> CodeExecutionResult:
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
            return CodeExecutionResult.from_dict(await self._link.call(request, _bytes(code)))
        except asyncio.CancelledError:
            await asyncio.shield(self._stop(request.key))
            raise

    async def _stop(self, key: str) -> None:
        """Stop an execution whose caller no longer waits for it. The execution may arrive after this request."""
        with suppress(CellblockError):
            for _ in range(_TRIES):
                if await self._link.call(Interrupt(self.id, key)):
                    return
                await asyncio.sleep(_PAUSE)

    async def submit(
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
        return ExecutionRecord.from_dict(await self._link.call(request, _bytes(code)))

    async def stream(
        self, code: str, *, language: Language = "python", timeout: float | None = 120.0
    ) -> AsyncGenerator[ExecutionEvent, None]:
        """Run code, and yield its events as they happen, until the last, which has the result.

        If the connection is lost, the client reconnects, and no event is missed. Calls that wait for a decision are events
        of the kind ``approval``; `decide` decides them.
        """
        execution = await self.submit(code, language=language, timeout=timeout)
        async with aclosing(self.attach(execution)) as events:
            async for event in events:
                yield event

    async def attach(self, execution: ExecutionRecord | str, from_event: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
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
                async with aclosing(self._link.follow(request)) as parts:
                    async for part in parts:
                        event = ExecutionEvent.from_dict(part)
                        known, again = event.seq, False
                        yield event
                return
            except DaemonError as error:
                if again or isinstance(error, OutcomeUnknownError):
                    raise
                again = True

    async def result(self, execution: ExecutionRecord | str) -> CodeExecutionResult:
        """Wait for the end of an execution, and return its result.

        Raises:
            OutcomeUnknownError: How far it ran is unknown.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        async with aclosing(self.attach(execution)) as events:
            async for event in events:
                last = event
        return outcome_of(last, execution_of(execution))

    async def lookup(self, execution: ExecutionRecord | str) -> ExecutionRecord:
        """Return the current record of an execution."""
        return await self._ask(Lookup(execution_of(execution)))

    async def executions(self, count: int = 100) -> list[ExecutionRecord]:
        """Return the last executions, newest first."""
        return await self._ask(Executions(self.id, count))

    async def cancel(self, execution: ExecutionRecord | str) -> bool:
        """Stop an execution, or remove it from the queue; return whether it had not ended."""
        return await self._ask(Cancel(execution_of(execution)))

    async def answer(self, execution: ExecutionRecord | str, line: str) -> bool:
        """Answer `input()`; return whether a line was requested."""
        return await self._ask(Answer(execution_of(execution)), line.encode())

    async def interrupt(self) -> bool:
        """Stop the running code; return whether any was running."""
        return await self._ask(Interrupt(self.id))

    async def restart(self) -> SessionRecord:
        """Restart the session with a fresh kernel, without variables."""
        return await self._ask(Restart(self.id))

    async def status(self) -> SessionRecord:
        """Return the current record."""
        return await self._ask(Status(self.id))

    async def history(self, count: int = 1000) -> list[HistoryEntry]:
        """Return the cells that the session ran, oldest first."""
        return await self._ask(History(self.id, count))

    async def variables(self) -> list[Variable]:
        """Return the variables: type, size, shape, and a short text of each."""
        return await self._ask(Variables(self.id))

    async def install(self, *requirements: str, timeout: float | None = 600.0) -> CodeExecutionResult:
        """Install packages; return the result with pip's output."""
        request = Install(self.id, requirements, milliseconds(timeout))
        return CodeExecutionResult.from_dict(await self._link.call(request))

    async def register_mcp_server(self, name: str, params: Mapping[str, Any]) -> list[str]:
        """Offer the tools of an MCP server to the code, as ``mcptools.NAME.TOOL``; return the names of these modules.

        The server runs on the node, outside of the sandbox.

        Args:
            name: The server's name in code.
            params: As for `generate_mcp_sources`. Relative paths start in the workspace, and ``${NAME}`` is a variable of
                the node's daemon (`ClusterOptions.environment`).

        Raises:
            McpServerError: The server could not be started or reached.
        """
        registered = await self._ask(RegisterServer(self.id, name, params))
        return [*registered["tools"]]

    async def close(self) -> None:
        """End the session, with its variables. The operation is idempotent."""
        await self._link.call(Destroy(self.id))

    # -- states ----------------------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
        """Create a checkpoint of the current state, as `Session.checkpoint` does. It stays on the session's node."""
        return await self._ask(MakeCheckpoint(self.id, name, files))

    async def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints, oldest first."""
        return await self._ask(Checkpoints(self.id))

    async def restore(self, checkpoint: CheckpointRecord | str, *, processes: ProcessesMode = "keep") -> Changes:
        """Restore a checkpoint, as `Session.restore` does; return the changed files, if it includes files."""
        return (await self._ask(Restore(self.id, checkpoint_of(checkpoint), processes))).changes

    async def drop_checkpoint(self, checkpoint: CheckpointRecord | str) -> None:
        """Delete a checkpoint, and free its memory."""
        await self._ask(DropCheckpoint(self.id, checkpoint_of(checkpoint)))

    async def undo(self, count: int = 1, *, partial: bool = False, processes: ProcessesMode = "keep") -> Undone:
        """Undo the last cells, as `Session.undo` does."""
        return await self._ask(Undo(self.id, count, partial, processes))

    async def redo(self) -> Undone:
        """Revert the last undo, until the next cell begins, as `Session.redo` does."""
        return await self._ask(Redo(self.id))

    async def trash(self) -> list[TrashEntry]:
        """Return files that undo, redo, restore and adopt replaced or removed, as `Session.trash` does."""
        return await self._ask(Trash(self.id))

    async def restore_trash(self, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash, as `Session.restore_trash` does."""
        return await self._ask(RestoreTrash(self.id, path, entry))

    async def diff(self, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = "") -> StateChanges:
        """Return the changes since a checkpoint, as `Session.diff` does."""
        return await self._ask(Diff(self.id, checkpoint_of(checkpoint), checkpoint_of(until)))

    async def file_versions(
        self, path: str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = ""
    ) -> FileVersions:
        """Return a file at a checkpoint and at a later state, as `Session.file_versions` does."""
        return await self._ask(VersionsOfFile(self.id, checkpoint_of(checkpoint), path, checkpoint_of(until)))

    async def fork(
        self,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[ClusterSession]:
        """Create sessions with these names from the current state, on the same node, as `Session.fork` does."""
        request = fork_of(self.id, names, files, seeds, same_random_state)
        return [ClusterSession(self._link, record) for record in await self._ask(request)]

    async def adopt(self, branch: ClusterSession | SessionRecord | str) -> Changes:
        """Continue from another session's state on the same node (usually a branch), and close that session."""
        other = branch if isinstance(branch, str) else branch.id if isinstance(branch, ClusterSession) else branch.kernel_id
        return await self._ask(Adopt(self.id, other))

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0
    ) -> SaveReport:
        """Save the session to an absolute path on its node; return the saved items, and those that could not be saved."""
        return await self._ask(Save(self.id, os.fspath(path), workspace, milliseconds(timeout)))

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0
    ) -> LoadReport:
        """Load a saved session from a file on the node, into a fresh kernel."""
        return await self._ask(Load(self.id, os.fspath(path), workspace, milliseconds(timeout)))

    # -- files -----------------------------------------------------------------------------------------------------------

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """List a folder of the workspace."""
        return await self._ask(ListFiles(self.id, path, recursive))

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file of up to 64 MiB; `read_parts` reads larger ones."""
        return await self._ask(ReadFile(self.id, path))

    async def read_parts(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file of any size, part by part.

        Raises:
            FilesError: The file cannot be read, or changed meanwhile.
        """
        reading = FileReading(self.id, path)
        while (request := reading.next) is not None:
            yield reading.take(await self._link.call(request))

    async def write_file(self, path: str, data: bytes | str | AsyncIterable[bytes]) -> FileInfo:
        """Write a file atomically. Text is encoded as UTF-8. Large data can be passed in pieces."""
        if isinstance(data, bytes | str):
            return await self._ask(WriteFile(self.id, path), data.encode() if isinstance(data, str) else data)
        upload = secrets.token_hex(16)
        try:
            async for piece in data:
                await self._link.call(WritePart(self.id, path, upload), piece)
            written = await self._link.call(WritePart(self.id, path, upload, more=False))
        except BaseException:  # also a cancellation: received parts are dropped
            with suppress(CellblockError):
                await asyncio.shield(self._link.call(WritePart(self.id, path, upload, abort=True)))
            raise
        info: FileInfo = read_answer(WriteFile, written)
        return info

    async def remove_file(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or a folder with its content if `recursive` is set."""
        return await self._ask(RemoveFile(self.id, path, recursive))

    # -- programs beside the kernel --------------------------------------------------------------------------------------

    async def exec(
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
        """Run a program in addition to the kernel, as `Session.exec` does."""
        request = exec_of(self.id, command, cwd, env, timeout, merge, log, max_output, stop)
        return ExecResult.from_dict(await self._link.call(request, as_bytes(input, "input")))

    async def spawn(
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
        """Start a program in addition to the kernel, as `Session.spawn` does. By default, unread output is dropped."""
        return await self._ask(spawn_of(self.id, command, cwd, env, stdin, pty, merge, log, keep, label))

    async def processes(self) -> list[ProcessInfo]:
        """Return the programs, oldest first: running ones, and the last ones that ended."""
        return await self._ask(Processes(self.id))

    async def read_process(self, process: ProcessInfo | str, since: int = 0, wait: float = 0.0) -> ProcessOutput:
        """Return a program's output from a position on, and its outcome if it has ended."""
        return await self._ask(read_of(self.id, process, since, wait))

    async def write_process(self, process: ProcessInfo | str, data: bytes | str, *, end: bool = False) -> bool:
        """Write to a program's standard input or terminal; return whether the program still reads."""
        return await self._ask(WriteProcess(self.id, process_of(process), end), as_bytes(data, "data"))

    async def signal_process(self, process: ProcessInfo | str, number: int, scope: Scope = "group") -> None:
        """Send a signal to a program."""
        await self._ask(SignalProcess(self.id, process_of(process), number, scope))

    async def resize_process(self, process: ProcessInfo | str, rows: int, columns: int) -> None:
        """Change the size of a program's terminal."""
        await self._ask(ResizeProcess(self.id, process_of(process), rows, columns))

    async def stop_process(self, process: ProcessInfo | str, grace: float = 0.5, *, scope: Scope = "tree") -> ExecResult:
        """Stop a program and all processes that it started."""
        return await self._ask(stop_of(self.id, process, grace, scope))

    # -- approvals -------------------------------------------------------------------------------------------------------

    async def pending(self) -> list[PendingApproval]:
        """Return pending decisions, oldest first."""
        return await self._ask(Pending(self.id))

    async def decide(self, *ids: str, allow: bool, always: str = "", answer: Mapping[str, Any] | None = None) -> list[str]:
        """Decide pending requests, and answer questions of MCP servers; return the ids that are now decided this way."""
        return await self._ask(Decide(ids, allow, always, answer=dict(answer or {})))

    async def allowed(self) -> list[Permission]:
        """Return permissions for the rest of the session, oldest first."""
        return await self._ask(Allowed(self.id))

    async def revoke(self, *ids: str) -> list[str]:
        """Revoke permissions by the ids of `allowed`; return the ids that existed."""
        return await self._ask(Revoke(ids))

    # -- network ---------------------------------------------------------------------------------------------------------

    async def network(self) -> SessionNetwork:
        """Return the hosts that the session and its branches can reach."""
        return await self._ask(ShowNetwork(self.id))

    async def change_network(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        http: Sequence[str] = (),
        remove: Sequence[str] = (),
        expect: int | None = None,
    ) -> SessionNetwork:
        """Change the hosts and requests that the session and its branches can reach, as `Session.change_network` does."""
        return await self._ask(change_of(self.id, allow, deny, http, remove, expect))

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    async def _ask(self, request: Request[Data[_ModelT]], body: bytes = b"") -> _ModelT: ...
    @overload
    async def _ask(self, request: Request[list[Data[_ModelT]]], body: bytes = b"") -> list[_ModelT]: ...
    @overload
    async def _ask(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT: ...
    async def _ask(self, request: Request[Any], body: bytes = b"") -> Any:
        """Run an operation, and return its answer as `model` objects."""
        return read_answer(type(request), await self._link.call(request, body))


def _bytes(code: str) -> bytes:
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be a string, not {type(code).__name__}")
    return code.encode("utf-8", "surrogatepass")
