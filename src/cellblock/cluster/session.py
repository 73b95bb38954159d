"""One session of a cluster, for asyncio, with the operations of named sessions."""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cellblock.errors import DaemonError, OutcomeUnknownError
from cellblock.model import CodeExecutionResult
from cellblock.model.files import FileInfo
from cellblock.model.sessions import ExecutionEvent, ExecutionRecord, Language, SessionRecord, outcome_of
from cellblock.operations.asking import as_bytes, as_code, stop_submission
from cellblock.operations.async_base_client import AsyncBaseClient
from cellblock.operations.base import Request
from cellblock.operations.data import execution_of, milliseconds, read_answer
from cellblock.operations.executions import Follow, Submit
from cellblock.operations.file_parts import FileReading, write_in_parts
from cellblock.operations.files import Install, ReadFile, WriteFile
from cellblock.operations.saving import Load, Save
from cellblock.operations.sessions import Destroy
from cellblock.operations.tools import RegisterServer

if TYPE_CHECKING:
    from cellblock.cluster.link import ClusterLink
    from cellblock.model.checkpoints import Changes, FilesMode
    from cellblock.model.saving import LoadReport, SaveReport

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Client(AsyncBaseClient):
    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    async def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        return await self._link.call(request, body)


def _of_session(
    method: Callable[Concatenate[AsyncBaseClient, SessionRecord | str, _P], _T],
) -> Callable[Concatenate[ClusterSession, _P], _T]:
    """Return a client's method on a session as a method of the session."""

    @wraps(method)
    def of_session(self: ClusterSession, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return method(self._client, self.id, *args, **options)

    signature = inspect.signature(method)
    own, _, *others = signature.parameters.values()
    vars(of_session)["__signature__"] = signature.replace(parameters=[own, *others])
    return of_session


def _of_client(
    method: Callable[Concatenate[AsyncBaseClient, _P], _T],
) -> Callable[Concatenate[ClusterSession, _P], _T]:
    """Return a client's method on an execution, or on permissions, as a method of the session."""

    @wraps(method)
    def of_client(self: ClusterSession, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return method(self._client, *args, **options)

    return of_client


class ClusterSession:
    """A session on one of the cluster's nodes. Its paths are the node's.

    What is only assigned here is a method of `AsyncBaseClient`, without its first argument.

    Attributes:
        record: The session's record when it was created or found.
    """

    def __init__(self, link: ClusterLink, record: SessionRecord) -> None:
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
            return CodeExecutionResult.from_dict(await self._link.call(request, as_code(code)))
        except asyncio.CancelledError:
            await asyncio.shield(stop_submission(self._link.call, self.id, request.key))
            raise

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
        return ExecutionRecord.from_dict(await self._link.call(request, as_code(code)))

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

    executions = _of_session(AsyncBaseClient.executions)
    history = _of_session(AsyncBaseClient.history)
    interrupt = _of_session(AsyncBaseClient.interrupt)
    restart = _of_session(AsyncBaseClient.restart)
    status = _of_session(AsyncBaseClient.status)
    variables = _of_session(AsyncBaseClient.variables)
    lookup = _of_client(AsyncBaseClient.lookup)
    cancel = _of_client(AsyncBaseClient.cancel)
    answer = _of_client(AsyncBaseClient.answer)

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
        registered = await self._link.call(RegisterServer(self.id, name, params))
        return [*registered["tools"]]

    async def close(self) -> None:
        """End the session, with its variables. The operation is idempotent."""
        await self._link.call(Destroy(self.id))

    # -- states ----------------------------------------------------------------------------------------------------------

    checkpoint = _of_session(AsyncBaseClient.checkpoint)
    checkpoints = _of_session(AsyncBaseClient.checkpoints)
    restore = _of_session(AsyncBaseClient.restore)
    drop_checkpoint = _of_session(AsyncBaseClient.drop_checkpoint)
    undo = _of_session(AsyncBaseClient.undo)
    redo = _of_session(AsyncBaseClient.redo)
    trash = _of_session(AsyncBaseClient.trash)
    restore_trash = _of_session(AsyncBaseClient.restore_trash)
    diff = _of_session(AsyncBaseClient.diff)
    file_versions = _of_session(AsyncBaseClient.file_versions)

    async def fork(
        self,
        names: Sequence[str],
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
    ) -> list[ClusterSession]:
        """Create sessions with these names from the current state, on the same node, as `Session.fork` does."""
        records = await self._client.fork(self.id, names, files=files, seeds=seeds, same_random_state=same_random_state)
        return [ClusterSession(self._link, record) for record in records]

    async def adopt(self, branch: ClusterSession | SessionRecord | str) -> Changes:
        """Continue from another session's state on the same node (usually a branch), and close that session."""
        return await self._client.adopt(self.id, branch.record if isinstance(branch, ClusterSession) else branch)

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0
    ) -> SaveReport:
        """Save the session to an absolute path on its node; return the saved items, and those that could not be saved."""
        request = Save(self.id, os.fspath(path), workspace, milliseconds(timeout))
        report: SaveReport = read_answer(Save, await self._link.call(request))
        return report

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = 120.0
    ) -> LoadReport:
        """Load a saved session from a file on the node, into a fresh kernel."""
        request = Load(self.id, os.fspath(path), workspace, milliseconds(timeout))
        report: LoadReport = read_answer(Load, await self._link.call(request))
        return report

    # -- files -----------------------------------------------------------------------------------------------------------

    list_files = _of_session(AsyncBaseClient.list_files)
    file_info = _of_session(AsyncBaseClient.file_info)
    make_folder = _of_session(AsyncBaseClient.make_folder)
    rename_file = _of_session(AsyncBaseClient.rename_file)
    remove_file = _of_session(AsyncBaseClient.remove_file)

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file of up to 64 MiB; `read_parts` reads larger ones."""
        return await self._link.call(ReadFile(self.id, path))

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
            return FileInfo.from_dict(await self._link.call(WriteFile(self.id, path), as_bytes(data, "data")))
        return FileInfo.from_dict(await write_in_parts(self._link.call, self.id, path, data))

    # -- programs beside the kernel, approvals, network ------------------------------------------------------------------

    exec = _of_session(AsyncBaseClient.exec_process)
    spawn = _of_session(AsyncBaseClient.spawn_process)
    processes = _of_session(AsyncBaseClient.processes)
    read_process = _of_session(AsyncBaseClient.read_process)
    write_process = _of_session(AsyncBaseClient.write_process)
    signal_process = _of_session(AsyncBaseClient.signal_process)
    resize_process = _of_session(AsyncBaseClient.resize_process)
    stop_process = _of_session(AsyncBaseClient.stop_process)
    pending = _of_session(AsyncBaseClient.pending)
    allowed = _of_session(AsyncBaseClient.allowed)
    network = _of_session(AsyncBaseClient.network)
    change_network = _of_session(AsyncBaseClient.change_network)
    decide = _of_client(AsyncBaseClient.decide)
    revoke = _of_client(AsyncBaseClient.revoke)
