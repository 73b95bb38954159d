"""`Client`: a gateway's client for plain synchronous Python."""

# Made from async_client.py by tests/unasync.py: do not edit it.

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from cellblock.common.extras import require_extra
from cellblock.common.urls import is_url
from cellblock.errors import BusyError, DaemonError, NotFoundError
from cellblock.fronts.client import calls
from cellblock.fronts.client.calls import Call
from cellblock.fronts.client.transport import (
    EVENTS,
    Reconnecting,
    Watching,
    arriving,
    errors,
    http_client,
    opened,
    pieces,
    read_answer,
    read_error,
)
from cellblock.model import CodeExecutionResult, Completions, HistoryEntry
from cellblock.model.attempts import Attempts
from cellblock.model.files import FileInfo
from cellblock.model.programs import MAX_OUTPUT, ExecResult, Keep, ProcessInfo, ProcessOutput, Scope
from cellblock.model.programs import Processes as ProcessesMode
from cellblock.model.saving import LoadReport
from cellblock.model.sessions import (
    ExecutionEvent,
    ExecutionRecord,
    Language,
    PendingApproval,
    Permission,
    SessionRecord,
    outcome_of,
)
from cellblock.operations.approvals import Allowed, Decide, Pending, Precedents, Revoke
from cellblock.operations.asking import change_of, exec_of, fork_of, read_of, spawn_of, stop_of
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
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.data import Data, checkpoint_of, execution_of, process_of, session_of
from cellblock.operations.environments import CreateEnvironment, ListEnvironments, RemoveEnvironment, ShowEnvironment
from cellblock.operations.executions import Answer, Cancel, Executions, Lookup, Source
from cellblock.operations.files import ListFiles, MakeFolder, RemoveFile, RenameFile, StatFile
from cellblock.operations.network import ShowNetwork
from cellblock.operations.overview import Cells, Decisions, SearchSessions
from cellblock.operations.programs import (
    Ports,
    Processes,
    ResizeProcess,
    SignalProcess,
    WriteProcess,
)
from cellblock.operations.saving import Load, Save, Variables
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests
from cellblock.operations.sessions import Complete, Destroy, History, Inspect, Interrupt, List, Restart, Status, Wipe

if TYPE_CHECKING:
    from cellblock.common.environments import Environment
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
    from cellblock.model.environments import EnvironmentRecord
    from cellblock.model.network import SessionNetwork
    from cellblock.model.overview import CellRecord, Change, DecisionRecord, FoundSession, RequestRecord, SecretRecord
    from cellblock.model.saving import SaveReport
    from cellblock.model.variables import Variable

_ModelT = TypeVar("_ModelT")


class Client:
    """A client of a gateway, with the names of `cellblock`'s own functions. Threads may share it.

    It raises the same errors. An unreachable server raises `DaemonError`, a refused token `AccessError`.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", token: str = "", *, verify: ssl.SSLContext | bool = True) -> None:
        """Configure a client. It connects on first use.

        Args:
            url: The gateway's URL.
            token: A token from `cellblock tokens create`; empty if the gateway needs none.
            verify: How to verify the certificate of an ``https`` server.

        Raises:
            InvalidInputError: The URL is invalid.
        """
        require_extra("client", "HTTP clients")
        import httpx2

        self._http = http_client(httpx2.Client, url, token, verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Executions continue."""
        self._http.close()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def get_or_create(self, name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Return the session with this name, and create it if it does not exist.

        Args:
            name: The session's name.
            tags: Labels of a new session.
            options: Options of the session, which an existing session must have; they need a token with the scope admin.

        Raises:
            InvalidInputError: The name or an option is invalid, or the existing session has another option.
            AccessError: The token does not permit creating the session.
            LaunchError: The session's kernel could not be started.
        """
        body = {"tags": dict(tags or {}), "options": calls.options(options)}
        return SessionRecord.from_dict(self._send(Call("POST", calls.session(name), body)))

    def create(self, name: str = "", *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Create a session, as `get_or_create` does. Without a name, it gets a unique one.

        Raises:
            ConflictError: A session with this name exists.
        """
        body = {"name": name or None, "tags": dict(tags or {}), "options": calls.options(options)}
        return SessionRecord.from_dict(self._send(Call("POST", "/kernels", body)))

    def list_kernels(self, *, refresh: bool = False) -> list[SessionRecord]:
        """Return the sessions, oldest first. With `refresh`, first check whether their kernels are alive."""
        return self._ask(List(refresh))

    def status(self, kernel: SessionRecord | str) -> SessionRecord:
        """Return the current record of a session.

        Raises:
            NotFoundError: The session does not exist.
        """
        return self._ask(Status(session_of(kernel)))

    def restart(self, kernel: SessionRecord | str) -> SessionRecord:
        """Restart a session with a fresh kernel, without variables."""
        return self._ask(Restart(session_of(kernel)))

    def interrupt(self, kernel: SessionRecord | str) -> bool:
        """Stop the running code of a session; return whether any was running."""
        return self._ask(Interrupt(session_of(kernel)))

    def destroy(self, name: SessionRecord | str) -> bool:
        """End a session; return whether it existed."""
        try:
            return self._ask(Destroy(session_of(name)))
        except NotFoundError:
            return False

    def wipe(self) -> list[str]:
        """End all sessions; return their ids."""
        return self._ask(Wipe())

    # -- environments --------------------------------------------------------------------------------------------------

    def create_environment(
        self, name: str, environment: Environment | None = None, *, upgrade: bool = False
    ) -> EnvironmentRecord:
        """Create an environment, for ``environment="NAME"`` of new sessions. It needs a token with the scope admin.

        Args:
            name: Its name.
            environment: Its packages. Its files are read here. None: the packages that it was made from, for `upgrade`.
            upgrade: Whether an existing environment is replaced, by the newest versions. Its sessions keep their packages.

        Raises:
            ConflictError: The name exists with other packages.
            InvalidInputError: The packages cannot be installed.
        """
        data = {} if environment is None else environment.read("empty").for_daemon()
        return self._ask(CreateEnvironment(name, data, upgrade))

    def environments(self) -> list[EnvironmentRecord]:
        """Return the environments with names, without their locks."""
        return self._ask(ListEnvironments())

    def environment(self, name: str) -> EnvironmentRecord:
        """Return an environment with its lock.

        Raises:
            NotFoundError: The environment does not exist.
        """
        return self._ask(ShowEnvironment(name))

    def remove_environment(self, name: str) -> str:
        """Remove an environment; return its lock, for ``Environment(lock=FILE)``. Its sessions continue."""
        return self._ask(RemoveEnvironment(name))

    # -- executions ----------------------------------------------------------------------------------------------------

    def execute(
        self, kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
    ) -> CodeExecutionResult:
        """Run code in a session and return its result, whether or not it succeeded.

        Args:
            kernel: The session's record, name or id.
            code: IPython code, or a bash script.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds; None for the server's default.

        Raises:
            NotFoundError: The session does not exist.
            OutcomeUnknownError: The connection or the daemon was lost, and how far the code ran is unknown.
        """
        call = Call("POST", calls.session(kernel, "execute", "kernels"), calls.code(code, language, timeout), once=True)
        return CodeExecutionResult.from_dict(self._send(call))

    def execute_with_retry(
        self,
        kernel: SessionRecord | str,
        code: str,
        on_error_fn: Callable[[CodeExecutionResult, int], str | None],
        *,
        max_attempts: int = 5,
        language: Language = "python",
        timeout: float | None = None,
    ) -> CodeExecutionResult:
        """Run code; after a failure, repair it and run it again, as `cellblock.execute_with_retry` does."""
        attempts = Attempts(code, max_attempts)
        while True:
            result = self.execute(kernel, attempts.code, language=language, timeout=timeout)
            if (ended := attempts.add(result)) is not None:
                return ended
            attempts.repair(on_error_fn(result, attempts.number))

    def submit(
        self,
        kernel: SessionRecord | str,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        key: str = "",
        stdin: bool = False,
    ) -> ExecutionRecord:
        """Submit code. It runs even if this program ends.

        Args:
            kernel: The session's record, name or id.
            code: The code.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds.
            key: An idempotency key. If it was used before, return the earlier execution instead of running the code again.
            stdin: Whether `input()` waits for `answer`.
        """
        body = {**calls.code(code, language, timeout), "key": key, "stdin": stdin}
        call = Call("POST", calls.session(kernel, "executions"), body, once=True)
        return ExecutionRecord.from_dict(self._send(call))

    def follow(self, execution: ExecutionRecord | str, after: int = 0) -> Generator[ExecutionEvent, None, None]:
        """Yield the events of an execution as they happen, until the last. Reconnect if the connection is lost.

        Args:
            execution: The execution, or its id.
            after: The number of the last known event.

        Yields:
            The events after that.
        """
        import httpx2

        again = Reconnecting(after)
        while not again.ended:
            try:
                with self._http.stream("GET", calls.events(execution), params=again.query, timeout=EVENTS) as response:
                    if response.status_code != 200:
                        response.read()
                        raise read_error(response)
                    lines = calls.EventLines()
                    for line in response.iter_lines():
                        if (found := lines.take(line)) is not None and (event := again.event(*found)) is not None:
                            yield event
            except httpx2.TransportError as error:
                time.sleep(again.pause(error))

    def wait(self, execution: ExecutionRecord | str) -> CodeExecutionResult:
        """Wait for the end of an execution, and return its result.

        Raises:
            OutcomeUnknownError: How far it ran is unknown.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        with closing(self.follow(execution)) as events:
            for event in events:
                last = event
        return outcome_of(last, execution_of(execution))

    def lookup(self, execution: ExecutionRecord | str) -> ExecutionRecord:
        """Return the current record of an execution."""
        return self._ask(Lookup(execution_of(execution)))

    def source(self, execution: ExecutionRecord | str) -> str:
        """Return the code of an execution."""
        return self._ask(Source(execution_of(execution)))

    def cells(self, kernel: SessionRecord | str, count: int = 200) -> list[CellRecord]:
        """Return the last cells of a session, oldest first, including undone and unfinished cells."""
        return self._ask(Cells(session_of(kernel), count))

    def decisions(self, kernel: SessionRecord | str, count: int = 200) -> list[DecisionRecord]:
        """Return the last decisions about requests of a session's code, oldest first."""
        return self._ask(Decisions(session_of(kernel), count))

    def requests(self, kernel: SessionRecord | str, count: int = 200) -> list[RequestRecord]:
        """Return the last requests to hosts with secrets or request lines, oldest first."""
        return self._ask(Requests(session_of(kernel), count))

    def secrets(self, kernel: SessionRecord | str) -> list[SecretRecord]:
        """Return the secrets of a session without their values."""
        return self._ask(ListSecrets(session_of(kernel)))

    def refresh_secret(self, kernel: SessionRecord | str, name: str) -> bool:
        """Read the value of a secret again from its source. The placeholder stays."""
        return self._ask(RefreshSecret(session_of(kernel), name))

    def remove_secret(self, kernel: SessionRecord | str, name: str) -> bool:
        """Remove a secret from a session and its branches. Undo does not reverse it."""
        return self._ask(RemoveSecret(session_of(kernel), name))

    def search_sessions(self, words: str = "", count: int = 100) -> list[FoundSession]:
        """Return sessions whose name, labels, directory or code contains all words, the last used first.

        Ended sessions are found as long as the journal has them (``history_days``). Their ids can be passed to `cells`.
        """
        return self._ask(SearchSessions(words, count))

    def watch(self, after: str = "") -> Generator[Change, None, None]:
        """Yield changes of all sessions that the token permits, without an end.

        If the connection is lost, the client reconnects, and no change is missed. If the daemon was replaced, or the
        position is too old, `Change.fresh` says that earlier changes are obsolete.

        Args:
            after: The position of the last known change; if empty, the first change has the full state.

        Yields:
            The changes after that: activity of sessions, pending decisions, refusals, and figures.
        """
        import httpx2

        again = Watching(after)
        while True:
            try:
                with self._http.stream("GET", "/events", params=again.query, timeout=EVENTS) as response:
                    if response.status_code != 200:
                        response.read()
                        raise read_error(response)
                    lines = calls.EventLines()
                    for line in response.iter_lines():
                        again.heard()
                        if (found := lines.take(line)) is not None:
                            yield again.change(*found)
                again.left()
            except (httpx2.TransportError, DaemonError, BusyError) as error:
                time.sleep(again.pause(error))

    def executions(self, kernel: SessionRecord | str, count: int = 100) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first."""
        return self._ask(Executions(session_of(kernel), count))

    def cancel(self, execution: ExecutionRecord | str) -> bool:
        """Stop an execution, or remove it from the queue; return whether it had not ended."""
        return self._ask(Cancel(execution_of(execution)))

    def answer(self, execution: ExecutionRecord | str, line: str) -> bool:
        """Answer `input()`; return whether a line was requested."""
        return self._ask(Answer(execution_of(execution)), line)

    # -- programs beside the kernel ------------------------------------------------------------------------------------

    def exec_process(
        self,
        kernel: SessionRecord | str,
        command: Sequence[str] | str,
        *,
        cwd: str = "",
        env: Mapping[str, str | None] | None = None,
        input: str = "",  # noqa: A002  # the name that `subprocess.run` has
        timeout: float | None = 120.0,
        merge: bool = False,
        log: str = "",
        max_output: int = MAX_OUTPUT,
        stop: Scope = "tree",
    ) -> ExecResult:
        """Run a program in addition to a session's kernel, as `cellblock.exec_process` does. Its input is text.

        Raises:
            NotFoundError: The session does not exist.
            OutcomeUnknownError: The connection was lost, and whether the program ran is unknown.
        """
        return self._ask(exec_of(kernel, command, cwd, env, timeout, merge, log, max_output, stop), input)

    def spawn_process(
        self,
        kernel: SessionRecord | str,
        command: Sequence[str] | str,
        *,
        cwd: str = "",
        env: Mapping[str, str | None] | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        merge: bool = False,
        log: str = "",
        keep: Keep = "tail",
        label: str = "",
    ) -> ProcessInfo:
        """Start a program in addition to a session's kernel, as `cellblock.spawn_process` does."""
        return self._ask(spawn_of(kernel, command, cwd, env, stdin, pty, merge, log, keep, label))

    def processes(self, kernel: SessionRecord | str) -> list[ProcessInfo]:
        """Return the programs of a session, oldest first: running ones, and the last ones that ended."""
        return self._ask(Processes(session_of(kernel)))

    def read_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, since: int = 0, wait: float = 0.0
    ) -> ProcessOutput:
        """Return a program's output from a position on, as `cellblock.read_process` does."""
        return self._ask(read_of(kernel, process, since, wait))

    def write_process(self, kernel: SessionRecord | str, process: ProcessInfo | str, data: str, *, end: bool = False) -> bool:
        """Write text to a program's standard input or terminal; return whether the program still reads."""
        return self._ask(WriteProcess(session_of(kernel), process_of(process), end), data)

    def signal_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, number: int, scope: Scope = "group"
    ) -> None:
        """Send a signal to a program."""
        self._ask(SignalProcess(session_of(kernel), process_of(process), number, scope))

    def resize_process(self, kernel: SessionRecord | str, process: ProcessInfo | str, rows: int, columns: int) -> None:
        """Change the size of a program's terminal."""
        self._ask(ResizeProcess(session_of(kernel), process_of(process), rows, columns))

    def stop_process(
        self, kernel: SessionRecord | str, process: ProcessInfo | str, grace: float = 0.5, *, scope: Scope = "tree"
    ) -> ExecResult:
        """Stop a program and all processes that it started."""
        return self._ask(stop_of(kernel, process, grace, scope))

    def ports(self, kernel: SessionRecord | str) -> list[int]:
        """Return the ports at which servers of a session listen."""
        return self._ask(Ports(session_of(kernel)))

    def open_port(self, kernel: SessionRecord | str, port: int, *, bare: bool = False) -> str:
        """Return a URL at which a browser on the gateway's machine shows the page of a server, once, within two minutes.

        Args:
            kernel: The session.
            port: The server's port.
            bare: Whether to show the page without a frame, so that it can load from other servers and navigate.
        """
        path = f"{calls.session(session_of(kernel))}/ports/{port}"
        return str((self._send(Call("POST", path, {"bare": bare})))["url"])

    # -- questions -----------------------------------------------------------------------------------------------------

    def complete(self, kernel: SessionRecord | str, code: str, cursor: int | None = None) -> Completions:
        """Return completions of the code at a cursor, by default at its end."""
        return self._ask(Complete(session_of(kernel), -1 if cursor is None else cursor), code)

    def inspect(self, kernel: SessionRecord | str, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Describe the name at a cursor; return None if it is unknown."""
        return self._ask(Inspect(session_of(kernel), -1 if cursor is None else cursor, detail), code)

    def history(self, kernel: SessionRecord | str, count: int = 1000) -> list[HistoryEntry]:
        """Return the cells that a session ran, oldest first."""
        return self._ask(History(session_of(kernel), count))

    def install(self, kernel: SessionRecord | str, *requirements: str, timeout: float | None = None) -> CodeExecutionResult:
        """Install packages for a session; return the result with pip's output."""
        body = {"requirements": list(requirements), "timeout": timeout}
        call = Call("POST", calls.session(kernel, "install"), body, once=True)
        return CodeExecutionResult.from_dict(self._send(call))

    def search_tools(self, kernel: SessionRecord | str, words: str = "", limit: int = 20) -> list[str]:
        """Return the signatures of tools that match words."""
        call = Call("GET", calls.session(kernel, "tools"), query={"query": words, "limit": str(limit)})
        answer = self._send(call)
        return list(answer["tools"])

    # -- approvals -----------------------------------------------------------------------------------------------------

    def pending(self, kernel: SessionRecord | str | None = None) -> list[PendingApproval]:
        """Return pending decisions, oldest first; in one session, or in all."""
        return self._ask(Pending("" if kernel is None else session_of(kernel)))

    def precedents(self, approval: PendingApproval | str, count: int = 1) -> list[DecisionRecord]:
        """Return the last allowed calls of the tool that waits for a decision, newest first, in all sessions."""
        return self._ask(Precedents(approval if isinstance(approval, str) else approval.id, "", count))

    def decide(
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
        return self._ask(Decide(ids, allow, always, answer=dict(answer or {}), reason=reason))

    def allowed(self, kernel: SessionRecord | str | None = None) -> list[Permission]:
        """Return permissions for the rest of a session, oldest first; in one session, or in all."""
        return self._ask(Allowed("" if kernel is None else session_of(kernel)))

    def revoke(self, *ids: str) -> list[str]:
        """Revoke permissions by the ids of `allowed`; return the ids that existed."""
        return self._ask(Revoke(ids))

    # -- network -------------------------------------------------------------------------------------------------------

    def network(self, kernel: SessionRecord | str) -> SessionNetwork:
        """Return the hosts that a session and its branches can reach."""
        return self._ask(ShowNetwork(session_of(kernel)))

    def change_network(
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
        return self._ask(change_of(kernel, allow, deny, http, remove, expect))

    # -- files ---------------------------------------------------------------------------------------------------------

    def list_files(self, kernel: SessionRecord | str, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """List a folder of a session. An absolute path outside the workspace is resolved as the session's own code sees it."""
        return self._ask(ListFiles(session_of(kernel), path, recursive))

    def remove_file(self, kernel: SessionRecord | str, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or a folder with its content if `recursive` is set."""
        return self._ask(RemoveFile(session_of(kernel), path, recursive))

    def file_info(self, kernel: SessionRecord | str, path: str) -> FileInfo:
        """Describe a file, a folder, or anything else of a session."""
        return self._ask(StatFile(session_of(kernel), path))

    def make_folder(self, kernel: SessionRecord | str, path: str) -> bool:
        """Create a folder of a session, and missing parent folders. An existing folder is no error."""
        return self._ask(MakeFolder(session_of(kernel), path))

    def rename_file(self, kernel: SessionRecord | str, path: str, to: str) -> bool:
        """Rename a file or a folder of a session. An existing file with the new name is replaced."""
        return self._ask(RenameFile(session_of(kernel), path, to))

    def read_file(self, kernel: SessionRecord | str, path: str) -> bytes:
        """Return the content of a file."""
        with errors():
            response = self._http.get(calls.file(kernel, path))
        if response.status_code != 200:
            raise read_error(response)
        return bytes(response.content)

    def write_file(self, kernel: SessionRecord | str, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file atomically. Text is encoded as UTF-8. Large data can be passed in pieces."""
        content = data.encode() if isinstance(data, str) else data
        return FileInfo.from_dict(self._upload("PUT", calls.file(kernel, path), content))

    def download(self, kernel: SessionRecord | str, path: str, local: str | os.PathLike[str]) -> None:
        """Copy a file of a session to the local disk. The local file appears when it is complete."""
        self._receive("GET", calls.file(kernel, path), local)

    def upload(self, kernel: SessionRecord | str, local: str | os.PathLike[str], path: str = "") -> FileInfo:
        """Copy a local file to a session, by default under its name."""
        with opened(local) as file:
            return self.write_file(kernel, path or os.path.basename(local), pieces(file))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self, kernel: SessionRecord | str, name: str = "", *, files: FilesMode = "shared") -> CheckpointRecord:
        """Create a checkpoint of a session's current state, as `cellblock.checkpoint` does."""
        return self._ask(MakeCheckpoint(session_of(kernel), name, files))

    def checkpoints(self, kernel: SessionRecord | str) -> list[CheckpointRecord]:
        """Return the checkpoints of a session, oldest first."""
        return self._ask(Checkpoints(session_of(kernel)))

    def restore(
        self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, *, processes: ProcessesMode = "keep"
    ) -> Changes:
        """Restore a checkpoint of a session; return the changed files, if the checkpoint includes files."""
        restored = self._ask(Restore(session_of(kernel), checkpoint_of(checkpoint), processes))
        return restored.changes

    def drop_checkpoint(self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> None:
        """Delete a checkpoint of a session, and free its memory."""
        self._ask(DropCheckpoint(session_of(kernel), checkpoint_of(checkpoint)))

    def undo(
        self, kernel: SessionRecord | str, count: int = 1, *, partial: bool = False, processes: ProcessesMode = "keep"
    ) -> Undone:
        """Undo the last cells of a session."""
        return self._ask(Undo(session_of(kernel), count, partial, processes))

    def redo(self, kernel: SessionRecord | str) -> Undone:
        """Revert the last undo of a session, until its next cell begins."""
        return self._ask(Redo(session_of(kernel)))

    def trash(self, kernel: SessionRecord | str) -> list[TrashEntry]:
        """Return files of the workspace that undo, redo, restore and adopt replaced or removed, newest first."""
        return self._ask(Trash(session_of(kernel)))

    def restore_trash(self, kernel: SessionRecord | str, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash; by default everything in the newest entry."""
        return self._ask(RestoreTrash(session_of(kernel), path, entry))

    def clone_diff(self, kernel: SessionRecord | str) -> CloneChanges:
        """Return the changes in the clone of a session, committed or not, since it was made."""
        return self._ask(CloneDiff(session_of(kernel)))

    def clone_fetch(self, kernel: SessionRecord | str) -> Fetched:
        """Fetch the commits of a session's clone into the project's repository. It needs the scope ``admin``."""
        return self._ask(CloneFetch(session_of(kernel)))

    def clone_apply(self, kernel: SessionRecord | str, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
        """Apply the changes of a session's clone to the project's working copy. It needs the scope ``admin``."""
        return self._ask(CloneApply(session_of(kernel), three_way, allow_protected))

    def diff(
        self, kernel: SessionRecord | str, checkpoint: CheckpointRecord | str, until: CheckpointRecord | str = ""
    ) -> StateChanges:
        """Return the changes in a session from a checkpoint to another one, or to the current state."""
        return self._ask(Diff(session_of(kernel), checkpoint_of(checkpoint), checkpoint_of(until)))

    def file_versions(
        self,
        kernel: SessionRecord | str,
        path: str,
        checkpoint: CheckpointRecord | str,
        until: CheckpointRecord | str = "",
    ) -> FileVersions:
        """Return a file at a checkpoint, and at another checkpoint or now. `diff` shows the changed lines."""
        return self._ask(VersionsOfFile(session_of(kernel), checkpoint_of(checkpoint), path, checkpoint_of(until)))

    def fork(
        self,
        kernel: SessionRecord | str,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[SessionRecord]:
        """Create sessions with these names from the current state of a session, as `Session.fork` does."""
        return self._ask(fork_of(kernel, names, files, seeds, same_random_state))

    def adopt(self, kernel: SessionRecord | str, branch: SessionRecord | str) -> Changes:
        """Continue from another session's state (usually a branch), and close that session; return the changed files."""
        return self._ask(Adopt(session_of(kernel), session_of(branch)))

    # -- files of a whole session --------------------------------------------------------------------------------------

    def variables(self, kernel: SessionRecord | str) -> list[Variable]:
        """Return the variables of a session: type, size, shape, and a short text of each."""
        return self._ask(Variables(session_of(kernel)))

    def save(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> SaveReport:
        """Save a session to the local disk; return the saved items, and the items that could not be saved.

        If `local` is a URL, such as ``s3://bucket/file``, the gateway's machine writes there. This needs the scope
        ``admin``.
        """
        if isinstance(local, str) and is_url(local):
            return self._ask(Save(session_of(kernel), local, workspace))
        from cellblock.host.saved_file import report

        self._receive("POST", calls.session(kernel, "save"), local, calls.files(workspace))
        return report(local)

    def load(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> LoadReport:
        """Load a saved session into a session, which gets a fresh kernel. `local` is as for `save`."""
        if isinstance(local, str) and is_url(local):
            return self._ask(Load(session_of(kernel), local, workspace))
        with opened(local) as file:
            answer = self._upload("POST", calls.session(kernel, "load"), pieces(file), calls.files(workspace))
        return LoadReport.from_dict(answer)

    def export(self, kernel: SessionRecord | str, local: str | os.PathLike[str]) -> None:
        """Write the cells of a session to the local disk: ``.ipynb`` for a notebook, ``.py`` for a script."""
        self._receive("GET", calls.session(kernel, "export"), local, calls.format_of(local))

    # -- requests -------------------------------------------------------------------------------------------------------

    def _upload(self, method: str, path: str, content: bytes | Iterable[bytes], query: Mapping[str, str] | None = None) -> Any:
        """Send bytes, and return the JSON answer."""
        with errors():
            response = self._http.request(method, path, content=content, params=query)
        return read_answer(response)

    def _receive(self, method: str, path: str, local: str | os.PathLike[str], query: Mapping[str, str] | None = None) -> None:
        """Write a downloaded body to a file."""
        with errors(), self._http.stream(method, path, params=query) as response:
            if response.status_code != 200:
                response.read()
                raise read_error(response)
            with arriving(local) as file:
                for piece in response.iter_bytes():
                    file.write(piece)

    def _send(self, call: Call) -> Any:
        """Send a call, and return the JSON answer."""
        with errors(once=call.once):
            response = self._http.request(call.method, call.path, json=call.body, params=call.query)
        return read_answer(response)

    @overload
    def _ask(self, request: Request[Data[_ModelT]], text: str = "") -> _ModelT: ...
    @overload
    def _ask(self, request: Request[list[Data[_ModelT]]], text: str = "") -> list[_ModelT]: ...
    @overload
    def _ask(self, request: Request[AnswerT], text: str = "") -> AnswerT: ...
    def _ask(self, request: Request[Any], text: str = "") -> Any:
        """Run an operation, and return its answer."""
        return calls.answer(request, self._send(calls.of(request, text)))
