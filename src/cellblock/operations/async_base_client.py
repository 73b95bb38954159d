"""What all clients share, for asyncio: a method for each operation. `base_client.py` is made of it, by tests/unasync.py."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, overload

from cellblock.errors import NotFoundError
from cellblock.model.checkpoints import branch_names, check_seeds
from cellblock.model.programs import MAX_OUTPUT, as_command, check_size
from cellblock.operations.approvals import Allowed, Decide, Pending, Precedents, Revoke
from cellblock.operations.asking import as_bytes, as_code, change_of
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    Fork,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.data import checkpoint_of, execution_of, milliseconds, process_of, read_answer, session_of
from cellblock.operations.executions import Answer, Cancel, Executions, Lookup, Source
from cellblock.operations.files import ListFiles, MakeFolder, RemoveFile, RenameFile, StatFile
from cellblock.operations.network import ShowNetwork
from cellblock.operations.overview import Cells, Decisions, SearchSessions
from cellblock.operations.programs import (
    Exec,
    Ports,
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WriteProcess,
)
from cellblock.operations.saving import Variables
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests
from cellblock.operations.sessions import Complete, Destroy, History, Inspect, Interrupt, List, Restart, Status, Wipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellblock.model import Completions, HistoryEntry
    from cellblock.model.checkpoints import (
        Changes,
        CheckpointRecord,
        FilesMode,
        FileVersions,
        StateChanges,
        TrashEntry,
        Undone,
    )
    from cellblock.model.clones import Applied, CloneChanges, Fetched
    from cellblock.model.files import FileInfo
    from cellblock.model.network import SessionNetwork
    from cellblock.model.overview import CellRecord, DecisionRecord, FoundSession, RequestRecord, SecretRecord
    from cellblock.model.programs import ExecResult, Keep, ProcessInfo, ProcessOutput, Scope
    from cellblock.model.programs import Processes as ProcessesMode
    from cellblock.model.sessions import ExecutionRecord, PendingApproval, Permission, SessionRecord
    from cellblock.model.variables import Variable
    from cellblock.operations.base import AnswerT, Request
    from cellblock.operations.data import Data

_ModelT = TypeVar("_ModelT")


class AsyncBaseClient(ABC):
    """A client of named sessions, over a transport that a subclass has.

    A session is given by its record, its name or its id. Each method that takes one raises `NotFoundError` if it does not
    exist, beside the errors of the method of `Session` that it names.
    """

    @abstractmethod
    async def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        """Run an operation, and return its answer as JSON data.

        Args:
            request: The operation.
            body: Its body: code, or the input of a program.
        """

    @overload
    async def _ask(self, request: Request[Data[_ModelT]], body: bytes = b"") -> _ModelT: ...
    @overload
    async def _ask(self, request: Request[list[Data[_ModelT]]], body: bytes = b"") -> list[_ModelT]: ...
    @overload
    async def _ask(self, request: Request[AnswerT], body: bytes = b"") -> AnswerT: ...
    async def _ask(self, request: Request[Any], body: bytes = b"") -> Any:
        """Run an operation, and return its answer as `model` objects."""
        return read_answer(type(request), await self._call(request, body))

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def list_kernels(self, *, refresh: bool = False) -> list[SessionRecord]:
        """Return all sessions, oldest first. With `refresh`, first check whether their kernels are alive."""
        return await self._ask(List(refresh))

    async def status(self, kernel: SessionRecord | str) -> SessionRecord:
        """Return the current record of a session."""
        return await self._ask(Status(session_of(kernel)))

    async def restart(self, kernel: SessionRecord | str) -> SessionRecord:
        """Restart a session with a fresh kernel, without variables.

        Raises:
            LaunchError: No kernel could be started.
        """
        return await self._ask(Restart(session_of(kernel)))

    async def interrupt(self, kernel: SessionRecord | str) -> bool:
        """Stop the running code of a session; return whether any was running."""
        return await self._ask(Interrupt(session_of(kernel)))

    async def destroy(self, name: SessionRecord | str) -> bool:
        """End a session; return whether it existed."""
        try:
            return await self._ask(Destroy(session_of(name)))
        except NotFoundError:
            return False

    async def wipe(self) -> list[str]:
        """End all sessions; return their ids."""
        return await self._ask(Wipe())

    async def search_sessions(self, words: str = "", count: int = 100) -> list[FoundSession]:
        """Return sessions whose name, labels, directory or code contains all words, the last used first.

        Ended sessions are found as long as the journal has them (``history_days``). Their ids can be passed to `cells`.
        """
        return await self._ask(SearchSessions(words, count))

    # -- executions ----------------------------------------------------------------------------------------------------

    async def executions(self, kernel: SessionRecord | str, count: int = 100) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first."""
        return await self._ask(Executions(session_of(kernel), count))

    async def lookup(self, execution: ExecutionRecord | str) -> ExecutionRecord:
        """Return the current record of an execution."""
        return await self._ask(Lookup(execution_of(execution)))

    async def source(self, execution: ExecutionRecord | str) -> str:
        """Return the code of an execution."""
        return await self._ask(Source(execution_of(execution)))

    async def cancel(self, execution: ExecutionRecord | str) -> bool:
        """Stop an execution, or remove it from the queue; return whether it had not ended."""
        return await self._ask(Cancel(execution_of(execution)))

    async def answer(self, execution: ExecutionRecord | str, line: str) -> bool:
        """Answer `input()`; return whether a line was requested."""
        return await self._ask(Answer(execution_of(execution)), as_code(line))

    async def cells(self, kernel: SessionRecord | str, count: int = 200) -> list[CellRecord]:
        """Return the last cells of a session, oldest first, including undone and unfinished cells."""
        return await self._ask(Cells(session_of(kernel), count))

    async def history(self, kernel: SessionRecord | str, count: int = 1000) -> list[HistoryEntry]:
        """Return the cells that a session ran, oldest first."""
        return await self._ask(History(session_of(kernel), count))

    async def variables(self, kernel: SessionRecord | str) -> list[Variable]:
        """Return the variables of a session: type, size, shape, and a short text of each.

        Raises:
            UnsupportedError: It is not a session of Python.
        """
        return await self._ask(Variables(session_of(kernel)))

    async def complete(self, kernel: SessionRecord | str, code: str, cursor: int | None = None) -> Completions:
        """Return completions of the code at a cursor, by default at its end."""
        return await self._ask(Complete(session_of(kernel), -1 if cursor is None else cursor), as_code(code))

    async def inspect(
        self, kernel: SessionRecord | str, code: str, cursor: int | None = None, *, detail: int = 0
    ) -> str | None:
        """Describe the name at a cursor; return None if it is unknown."""
        return await self._ask(Inspect(session_of(kernel), -1 if cursor is None else cursor, detail), as_code(code))

    # -- programs beside the kernel ------------------------------------------------------------------------------------

    async def exec_process(
        self,
        kernel: SessionRecord | str,
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
        """Run a program in addition to a session's kernel, as `Session.exec` does.

        Args:
            kernel: The session.
            command: The program and its arguments; a text is a command for ``sh -c``.
            cwd: The working directory in the session; the workspace by default.
            env: Variables to set, or to remove (None).
            input: Data for standard input; over HTTP, text.
            timeout: Limit in seconds; None for no limit.
            merge: Whether standard error goes into standard output.
            log: A file in the session that gets all output instead.
            max_output: The maximum number of bytes to keep of each stream.
            stop: The processes to stop at the time limit.

        Raises:
            OutcomeUnknownError: The connection was lost, and whether the program ran is unknown.
        """
        run = session_of(kernel), as_command(command), os.fspath(cwd), env or {}, milliseconds(timeout)
        return await self._ask(Exec(*run, merge, log, max_output, stop), as_bytes(input, "input"))

    async def spawn_process(
        self,
        kernel: SessionRecord | str,
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
        """Start a program in addition to a session's kernel, as `Session.spawn` does. It runs until it or its session ends.

        By default, unread output is dropped when buffers are full, so that the program does not wait for a reader.
        """
        run = session_of(kernel), as_command(command), os.fspath(cwd), env or {}, stdin
        size = (0, 0) if pty is None else check_size(pty)
        return await self._ask(Spawn(*run, *size, merge, log, keep, label))

    async def processes(self, kernel: SessionRecord | str) -> list[ProcessInfo]:
        """Return the programs of a session, oldest first: running ones, and the last ones that ended."""
        return await self._ask(Processes(session_of(kernel)))

    async def read_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, since: int = 0, wait: float = 0.0
    ) -> ProcessOutput:
        """Return a program's output from a position on, and its outcome if it has ended.

        Args:
            kernel: The session.
            process: The program, or its id.
            since: The position: the number of bytes of earlier output.
            wait: Seconds to wait for output, or for the end; 30 at most.

        Raises:
            NotFoundError: The session or the program does not exist.
        """
        limit = milliseconds(wait, "wait", may_be_zero=True)
        return await self._ask(ReadProcess(session_of(kernel), process_of(process), since, limit))

    async def write_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, data: bytes | str, *, end: bool = False
    ) -> bool:
        """Write to a program's standard input or terminal; return whether the program still reads.

        Args:
            kernel: The session.
            process: The program, or its id.
            data: The bytes; over HTTP, text.
            end: Whether to close standard input afterwards.

        Raises:
            NotFoundError: The session or the program does not exist.
        """
        return await self._ask(WriteProcess(session_of(kernel), process_of(process), end), as_bytes(data, "data"))

    async def signal_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, number: int, scope: Scope = "group"
    ) -> None:
        """Send a signal to a program, as `Process.signal` does."""
        await self._ask(SignalProcess(session_of(kernel), process_of(process), number, scope))

    async def resize_process(self, kernel: SessionRecord | str, process: ProcessInfo | str, rows: int, columns: int) -> None:
        """Change the size of a program's terminal."""
        await self._ask(ResizeProcess(session_of(kernel), process_of(process), rows, columns))

    async def stop_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, grace: float = 0.5, *, scope: Scope = "tree"
    ) -> ExecResult:
        """Stop a program and all processes that it started, as `Process.stop` does."""
        limit = milliseconds(grace, "grace", may_be_zero=True)
        return await self._ask(StopProcess(session_of(kernel), process_of(process), limit, scope))

    async def ports(self, kernel: SessionRecord | str) -> list[int]:
        """Return the ports at which servers of a session listen."""
        return await self._ask(Ports(session_of(kernel)))

    # -- approvals -----------------------------------------------------------------------------------------------------

    async def pending(self, kernel: SessionRecord | str | None = None) -> list[PendingApproval]:
        """Return pending decisions, oldest first; in one session, or in all."""
        return await self._ask(Pending("" if kernel is None else session_of(kernel)))

    async def precedents(self, approval: PendingApproval | str, count: int = 1) -> list[DecisionRecord]:
        """Return the last allowed calls of the tool that waits for a decision, newest first, in all sessions."""
        return await self._ask(Precedents(approval if isinstance(approval, str) else approval.id, "", count))

    async def decide(
        self, *ids: str, allow: bool, always: str = "", answer: Mapping[str, Any] | None = None, reason: str = ""
    ) -> list[str]:
        """Decide pending requests, and answer questions of MCP servers. The operation is idempotent.

        Args:
            ids: The ids of `pending`.
            allow: Whether to allow the requests.
            always: ``tool`` or ``call``: allow the same from now on.
            answer: The values of the form, by field, for questions (kind ``question``).
            reason: The reason for a denial, shown to the code that asked.

        Returns:
            The ids of requests that are now decided this way, including those that already were.
        """
        return await self._ask(Decide(ids, allow, always, answer=dict(answer or {}), reason=reason))

    async def allowed(self, kernel: SessionRecord | str | None = None) -> list[Permission]:
        """Return permissions for the rest of a session, oldest first; in one session, or in all."""
        return await self._ask(Allowed("" if kernel is None else session_of(kernel)))

    async def revoke(self, *ids: str) -> list[str]:
        """Revoke permissions by the ids of `allowed`; return the ids that existed."""
        return await self._ask(Revoke(ids))

    async def decisions(self, kernel: SessionRecord | str, count: int = 200) -> list[DecisionRecord]:
        """Return the last decisions about requests of a session's code, oldest first."""
        return await self._ask(Decisions(session_of(kernel), count))

    # -- network and secrets -------------------------------------------------------------------------------------------

    async def network(self, kernel: SessionRecord | str) -> SessionNetwork:
        """Return the hosts that a session and its branches can reach.

        Raises:
            UnsupportedError: cellblock does not enforce its network.
        """
        return await self._ask(ShowNetwork(session_of(kernel)))

    async def change_network(
        self,
        kernel: SessionRecord | str,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        http: Sequence[str] = (),
        remove: Sequence[str] = (),
        expect: int | None = None,
    ) -> SessionNetwork:
        """Change the hosts and requests that a session and its branches can reach, as `Session.change_network` does."""
        return await self._ask(change_of(kernel, allow, deny, http, remove, expect))

    async def requests(self, kernel: SessionRecord | str, count: int = 200) -> list[RequestRecord]:
        """Return the last requests to hosts with secrets or request lines, oldest first."""
        return await self._ask(Requests(session_of(kernel), count))

    async def secrets(self, kernel: SessionRecord | str) -> list[SecretRecord]:
        """Return the secrets of a session without their values."""
        return await self._ask(ListSecrets(session_of(kernel)))

    async def refresh_secret(self, kernel: SessionRecord | str, name: str) -> bool:
        """Read the value of a secret again from its source. The placeholder stays."""
        return await self._ask(RefreshSecret(session_of(kernel), name))

    async def remove_secret(self, kernel: SessionRecord | str, name: str) -> bool:
        """Remove a secret from a session and its branches. Undo does not reverse it."""
        return await self._ask(RemoveSecret(session_of(kernel), name))

    # -- files ---------------------------------------------------------------------------------------------------------

    async def list_files(self, kernel: SessionRecord | str, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """List a folder of a session.

        A path is relative to the workspace. An absolute path outside the workspace names a file as the session's own code
        sees it, and is accessed with that code's rights.

        Args:
            kernel: The session.
            path: The folder.
            recursive: Whether to include the contents of subfolders.

        Raises:
            FilesError: The path is not a folder, or cannot be read.
        """
        return await self._ask(ListFiles(session_of(kernel), path, recursive))

    async def file_info(self, kernel: SessionRecord | str, path: str) -> FileInfo:
        """Describe a file, a folder, or anything else of a session.

        Raises:
            FilesError: Nothing exists at this path.
        """
        return await self._ask(StatFile(session_of(kernel), path))

    async def make_folder(self, kernel: SessionRecord | str, path: str) -> bool:
        """Create a folder of a session, and missing parent folders. An existing folder is no error.

        Raises:
            FilesError: The folder cannot be created.
        """
        return await self._ask(MakeFolder(session_of(kernel), path))

    async def rename_file(self, kernel: SessionRecord | str, path: str, to: str) -> bool:
        """Rename a file or a folder of a session. An existing file with the new name is replaced.

        Raises:
            FilesError: The file cannot be renamed.
        """
        return await self._ask(RenameFile(session_of(kernel), path, to))

    async def remove_file(self, kernel: SessionRecord | str, path: str, *, recursive: bool = False) -> bool:
        """Remove a file of a session, an empty folder, or a folder with its content if `recursive` is set.

        Raises:
            FilesError: Nothing exists at this path, or it cannot be removed.
        """
        return await self._ask(RemoveFile(session_of(kernel), path, recursive))

    # -- states --------------------------------------------------------------------------------------------------------

    async def checkpoint(
        self, kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared"
    ) -> CheckpointRecord:
        """Create a checkpoint of a session's current state, as `Session.checkpoint` does. It lives as long as the daemon.

        Args:
            kernel: The session.
            name: The checkpoint's name.
            files: Whether to include the files of the workspace.
        """
        return await self._ask(MakeCheckpoint(session_of(kernel), name, files))

    async def checkpoints(self, kernel: SessionRecord | str) -> list[CheckpointRecord]:
        """Return the checkpoints of a session, oldest first."""
        return await self._ask(Checkpoints(session_of(kernel)))

    async def restore(
        self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, *, processes: ProcessesMode = "keep"
    ) -> Changes:
        """Restore a checkpoint of a session, as `Session.restore` does.

        Args:
            kernel: The session.
            checkpoint: The checkpoint, its id or its name.
            processes: Whether programs outside the kernel continue (``keep``), or are stopped first (``stop``).

        Returns:
            The changed files, if the checkpoint includes files.
        """
        restored = await self._ask(Restore(session_of(kernel), checkpoint_of(checkpoint), processes))
        return restored.changes

    async def drop_checkpoint(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
        """Delete a checkpoint of a session, and free its memory.

        Raises:
            CheckpointError: The checkpoint does not exist.
        """
        await self._ask(DropCheckpoint(session_of(kernel), checkpoint_of(checkpoint)))

    async def undo(
        self, kernel: SessionRecord | str, count: int = 1, *, partial: bool = False, processes: ProcessesMode = "keep"
    ) -> Undone:
        """Undo the last cells of a session, as `Session.undo` does."""
        return await self._ask(Undo(session_of(kernel), count, partial, processes))

    async def redo(self, kernel: SessionRecord | str) -> Undone:
        """Revert the last undo of a session, until its next cell begins, as `Session.redo` does."""
        return await self._ask(Redo(session_of(kernel)))

    async def trash(self, kernel: SessionRecord | str) -> list[TrashEntry]:
        """Return files that undo, redo, restore and adopt replaced or removed, newest first, as `Session.trash` does."""
        return await self._ask(Trash(session_of(kernel)))

    async def restore_trash(self, kernel: SessionRecord | str, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash, as `Session.restore_trash` does.

        Args:
            kernel: The session.
            path: A file or folder, relative to the workspace; empty for everything in the entry.
            entry: The id of the entry; empty for the newest entry that contains the path.
        """
        return await self._ask(RestoreTrash(session_of(kernel), path, entry))

    async def diff(
        self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = ""
    ) -> StateChanges:
        """Return the changes in a session since a checkpoint, as `Session.diff` does.

        Args:
            kernel: The session.
            checkpoint: The checkpoint, its id or its name.
            until: The checkpoint that ends the comparison; empty for the current state.
        """
        return await self._ask(Diff(session_of(kernel), checkpoint_of(checkpoint), checkpoint_of(until)))

    async def file_versions(
        self,
        kernel: SessionRecord | str,
        path: str,
        checkpoint: CheckpointRecord | str,
        until: CheckpointRecord | str = "",
    ) -> FileVersions:
        """Return a file of the workspace at a checkpoint and at a later state, as `Session.file_versions` does.

        Args:
            kernel: The session.
            path: The file, relative to the workspace.
            checkpoint: The checkpoint, its id or its name.
            until: The checkpoint of the later version; empty for the current file.
        """
        return await self._ask(VersionsOfFile(session_of(kernel), checkpoint_of(checkpoint), path, checkpoint_of(until)))

    async def fork(
        self,
        kernel: SessionRecord | str,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SessionRecord]:
        """Create sessions from the current state of a session, as `Session.fork` does.

        Args:
            kernel: The session to fork.
            names: Names of the new sessions, none of which may exist.
            files: As for `Session.fork`.
            seeds: As for `Session.fork`.
            same_random_state: As for `Session.fork`.

        Raises:
            ConflictError: A name already exists.
        """
        check_seeds(seeds or ())
        branches = session_of(kernel), branch_names(names), files or "", tuple(seeds or ())
        return await self._ask(Fork(*branches, same_random_state))

    async def adopt(self, kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
        """Continue from another session's state (usually a branch) and close that session, as `Session.adopt` does.

        Args:
            kernel: The session that continues.
            branch: The session whose state to take.

        Returns:
            The changed files, if the branch had files of its own.
        """
        return await self._ask(Adopt(session_of(kernel), session_of(branch)))

    async def clone_diff(self, kernel: SessionRecord | str) -> CloneChanges:
        """Return the changes in the clone of a session, committed or not, since it was made."""
        return await self._ask(CloneDiff(session_of(kernel)))

    async def clone_fetch(self, kernel: SessionRecord | str) -> Fetched:
        """Fetch the commits of a session's clone into the project's repository. Over HTTP, it needs the scope ``admin``."""
        return await self._ask(CloneFetch(session_of(kernel)))

    async def clone_apply(
        self, kernel: SessionRecord | str, *, three_way: bool = False, allow_protected: bool = False
    ) -> Applied:
        """Apply the changes of a session's clone to the project's working copy. Over HTTP, it needs the scope ``admin``."""
        return await self._ask(CloneApply(session_of(kernel), three_way, allow_protected))
